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

REMINDER: Final = "Call one of the tools before you answer: an answer without one is not accepted here."


class Asking(msgspec.Struct, frozen=True):
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
    final = progress.enough is not None or progress.answering
    pool = turn.answer_pool if final else turn.pool
    must_call = turn.requires_tool and not progress.used and not final
    fields: Mapping[str, msgspec.Raw] = turn.fields
    if turn.tools_wire is not None:
        # What came of an approval stands in the conversation: a call has been made.
        first = (turn.machine.rounds == 1 and not progress.used) or must_call
        choice = NONE if final else turn.choice if first else later_choice(turn.choice)
        fields = {**fields, "tools": msgspec.Raw(turn.tools_wire)}
        if choice is not None:
            fields["tool_choice"] = msgspec.Raw(choice)
        if turn.request.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = msgspec.Raw(b"true" if turn.parallel else b"false")
    # For this call alone: in the conversation nothing is left of it.
    messages = with_system_text(progress.messages, REMINDER) if must_call and progress.reminded else progress.messages
    call = ModelCall(
        messages,
        fields,
        turn.record.trace_id,
        max(0.001, left_s),
        turn.shown_model,
        turn.wanted,
        conversation_tokens(messages) + tools_tokens(fields) if pool.sized else 0,
        turn.wires.differing if turn.tools_wire is not None else None,
        turn.window,
        turn.private,
    )
    return Asking(pool, call, must_call or (not final and pool is not turn.answer_pool))
