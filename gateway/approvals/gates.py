"""The gates: which calls a human has to approve, and what is bound to the approval.

Pure. Each gate alone is enough to stop a call. Does not know tools, turns or who approves.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

Gate = Literal["needs_confirmation", "confidence", "deletes"]

# Digits of the code that has to be typed before something is deleted.
_CODE_DIGITS: Final = 6

_encode = msgspec.json.Encoder(order="deterministic").encode


def gates_of(
    *,
    needs_confirmation: bool,
    confidence_gate: bool,
    deletes: bool,
    confidence: float | None,
    threshold: float,
) -> tuple[Gate, ...]:
    """The gates that stop a call; none where it may be made.

    Args:
        needs_confirmation: what its tool says.
        confidence_gate: too.
        deletes: too.
        confidence: how sure the model is of this call, 0 to 1; None where that is not known, which counts as not sure.
        threshold: how sure it has to be.
    """
    found: list[Gate] = []
    if needs_confirmation:
        found.append("needs_confirmation")
    if confidence_gate and (confidence is None or not confidence >= threshold):
        found.append("confidence")
    if deletes:
        found.append("deletes")
    return tuple(found)


def canonical(arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Arguments as canonical JSON text, and its hex SHA-256: equal arguments are equal texts."""
    text = _encode(arguments)
    return text.decode(), hashlib.sha256(text).hexdigest()


def new_approval_id() -> str:
    """`apr_` and 24 hex digits."""
    return f"apr_{secrets.token_hex(12)}"


def new_code() -> str:
    """The code that has to be typed before something is deleted."""
    return f"{secrets.randbelow(10**_CODE_DIGITS):0{_CODE_DIGITS}}"


def call_id_of(approval_id: str) -> str:
    """The id of the call under which a model is told the outcome, always the same: who has been told is seen by it."""
    return f"call_{approval_id.removeprefix('apr_')}"
