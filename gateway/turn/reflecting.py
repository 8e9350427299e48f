"""What a model should think about before it goes on: results that failed or are empty, and that tools have come to an end.

Pure. Knows the form of a result (`{"ok", "result" | "error"}`) and writes the reason into it as `note`, where the model reads
it. Whatever stands in a result was said by a tool; the note is the gateway's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.tools.outcome import Outcome
from gateway.tools.result import noted
from gateway.tools.spec import ToolSpec

EMPTY_NOTE: Final = (
    "The tool ran and found nothing. Try other arguments, or say that nothing was found; do not make it up."
)
_MOST_SHOWN: Final = 200
# A result without its outer braces and white space, as the Courier writes it.
_EMPTY: Final = (
    '{"ok":true,"result":null}',
    '{"ok":true,"result":""}',
    '{"ok":true,"result":[]}',
    '{"ok":true,"result":{}}',
)

_encode = msgspec.json.Encoder().encode


def reason_to_reflect(outcomes: Sequence[Outcome], offered: Mapping[str, ToolSpec]) -> str | None:
    """Why a round's results are worth a thought, or None where all went well.

    Args:
        outcomes: what came of the round's calls.
        offered: the tools by name; of one that changes something, nothing is a good result.
    """
    for outcome in outcomes:
        if not outcome.ok:
            return f"`{outcome.name}` failed: {(outcome.error or 'no reason was given')[:_MOST_SHOWN]}"
    for outcome in outcomes:
        if _is_empty(outcome, offered):
            return f"`{outcome.name}` found nothing"
    return None


def contents(outcomes: Sequence[Outcome], offered: Mapping[str, ToolSpec], ended: str | None) -> list[str]:
    """What the model reads as the results of a round, notes included.

    Args:
        outcomes: in the calls' order.
        offered: as in `reason_to_reflect`.
        ended: why no tool can be called any more, or None.
    """
    texts = [noted(o.content, EMPTY_NOTE) if _is_empty(o, offered) else o.content for o in outcomes]
    if ended is not None:
        texts[-1] = noted(texts[-1], f"No tool can be called any more: {ended}. Answer with what there is.")
    return texts


def _is_empty(outcome: Outcome, offered: Mapping[str, ToolSpec]) -> bool:
    if not outcome.ok or outcome.content not in _EMPTY:
        return False
    spec = offered.get(outcome.name)
    return spec is not None and not spec.writes
