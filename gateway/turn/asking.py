"""What a round asks: of which model, and what that model may call.

Pure. Knows which of a turn's models does tool work and which one answers. Does not know backends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.backends.backend import ModelCall
from gateway.backends.pool import Pool
from gateway.chat.codecs.chat_completions import with_system_text
from gateway.scribe.tokens import conversation_tokens, tools_tokens
from gateway.turn.choice import NONE, later_choice
from gateway.turn.context import Turn
from gateway.turn.progress import Progress

# What a call gets whose turn has no time left: it fails as one that took too long.
_LEAST_S: Final = 0.001
REMINDER: Final = "Call one of the tools before you answer: an answer without one is not accepted here."


class Asking(msgspec.Struct, frozen=True, gc=False):
    """One model call to come.

    Attributes:
        pool: whose.
        call: what is asked.
        held: whether words count only beside a call: words alone are withheld from the client.
    """

    pool: Pool
    call: ModelCall
    held: bool


def asking(turn: Turn, progress: Progress, left_s: float) -> Asking:
    """The next model call of a turn, which may take `left_s` seconds."""
    pool, messages, held, tools_in = turn.pool, progress.messages, False, None
    fields: Mapping[str, msgspec.Raw] = turn.fields
    if turn.tools_wire is not None:
        final = progress.enough is not None or progress.answering
        must_call = turn.requires_tool and not progress.used and not final
        if final:
            pool = turn.answer_pool
        held = must_call or (not final and pool is not turn.answer_pool)
        tools_in = turn.wires.differing
        # What came of an approval stands in the conversation: a call has been made.
        first = (turn.machine.rounds == 1 and not progress.used) or must_call
        choice = NONE if final else turn.choice if first else later_choice(turn.choice)
        fields = {**fields, "tools": msgspec.Raw(turn.tools_wire)}
        if choice is not None:
            fields["tool_choice"] = msgspec.Raw(choice)
        if turn.request.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = msgspec.Raw(b"true" if turn.parallel else b"false")
        if must_call and progress.reminded:
            # For this call alone: in the conversation nothing is left of it.
            messages = with_system_text(messages, REMINDER)
    call = ModelCall(
        messages,
        fields,
        turn.record.trace_id,
        max(_LEAST_S, left_s),
        turn.shown_model,
        turn.wanted,
        conversation_tokens(messages) + tools_tokens(fields) if pool.sized else 0,
        tools_in,
        turn.window,
        turn.private,
    )
    return Asking(pool, call, held)
