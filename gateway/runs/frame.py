"""Who asked for a run, in bytes: the caller and the wishes of the headers, by value.

A run is executed as the caller was when it was asked for, whatever becomes of the key meanwhile, unless it is revoked or blocked.
Knows this form alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from gateway.config.section import Section
from gateway.errors import StoreUnavailable
from gateway.security.principal import NOWHERE, Origin, Principal
from gateway.turn.prepare import Wishes


class Frame(msgspec.Struct, frozen=True):
    """The caller, what their headers wished for, and where they asked from."""

    principal: Principal
    wishes: Wishes
    origin: Origin = NOWHERE

    def wishes_of(self, run_id: str) -> Wishes:
        """What the run's turn is asked with. It is one turn, whoever runs it and however often: found by the run's id, recorded
        round by round.
        """
        return replace(self.wishes, key=run_id, retried=False, durable=True, deadline_s=None)


def _as_json(value: Any) -> Any:
    if isinstance(value, Section):
        return value.model_dump()
    raise NotImplementedError(f"a {type(value).__name__} has no JSON form")


def _from_json(kind: type, value: Any) -> Any:
    if issubclass(kind, Section):
        return kind.model_validate(value)
    raise NotImplementedError(f"a {kind.__name__} has no JSON form")


_encode = msgspec.json.Encoder(order="deterministic", enc_hook=_as_json).encode
_decode = msgspec.json.Decoder(Frame, dec_hook=_from_json).decode


def framed(principal: Principal, wishes: Wishes, origin: Origin = NOWHERE) -> bytes:
    """What `NewRun.caller` takes. How often it was asked is no part of what was asked."""
    return _encode(Frame(principal, replace(wishes, key=None, retried=False), origin))


def read_frame(caller: bytes) -> Frame:
    """The caller and the wishes. Raises `StoreUnavailable` where they were written by another version of this program."""
    try:
        return _decode(caller)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreUnavailable("The run's caller was written by another version.", retryable=False) from error
