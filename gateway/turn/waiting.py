"""What a turn knows of approvals: those its conversation carries, those it waits for, those it tells of.

Values of one turn. Pure but for being changed while the turn runs. Does not know the desk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import field

from gateway.approvals.gates import call_id_of
from gateway.approvals.words import pending_result, settled_result
from gateway.chat.blocks import Message, Text, ToolCall, ToolResult
from gateway.store.approval_records import ApprovalRow, ApprovalStatus
from gateway.tools.result import noted

PREFIX: Final = "apr_"
# Behind the id of a call whose outcome is not there yet.
BEING_DONE: Final = "_w"
_ID: Final = re.compile(r"apr_[0-9a-f]{24}(?![0-9a-f])")


class TurnApprovals(msgspec.Struct, eq=False):
    """A turn's approvals.

    Attributes:
        known: those that its conversation carries, by id.
        waiting: those of its own calls that are not settled, by id.
        told: those whose outcome its model is told.
        until: monotonic seconds until which its calls wait; None while none does.
    """

    known: dict[str, ApprovalRow] = field(default_factory=dict)
    waiting: dict[str, ApprovalRow] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    until: float | None = None


def ids_in(messages: Sequence[Message]) -> tuple[str, ...]:
    """The approvals that a conversation's answers name.

    Answers alone: clients copy whole conversations into questions of their own, for a title for example, which are not the
    conversation going on.
    """
    found: dict[str, None] = {}
    for message in messages:
        if message.role != "assistant":
            continue
        for block in message.blocks:
            if isinstance(block, Text) and PREFIX in block.text:
                found.update(dict.fromkeys(_ID.findall(block.text)))
    return tuple(found)


def is_told(row: ApprovalRow, messages: Sequence[Message]) -> bool:
    """Whether the model has been told the outcome in this conversation, as far as can be seen from it.

    Where it was told in rounds that are not there any more, only an answer that was asked for anew is told once more.
    """
    wanted = call_id_of(row.id)
    if any(call.id == wanted for message in messages for call in message.tool_calls):
        return True
    if row.told_at is None:
        return False
    last = next((message for message in reversed(messages) if message.role == "assistant"), None)
    return last is None or row.id not in last.text


def told_messages(rows: Sequence[tuple[ApprovalRow, ApprovalStatus]], notes: Mapping[str, str]) -> tuple[Message, ...]:
    """The calls and their outcomes, as the conversation is to have them; of what is being done, that it is.

    `notes` are remarks on outcomes, by the approvals' ids.
    """
    calls: list[ToolCall] = []
    results: list[Message] = []
    for row, status in rows:
        done = status != "approved" or row.finished_at is not None
        # Another id: who was told this has not been told the outcome.
        call_id = call_id_of(row.id) if done else f"{call_id_of(row.id)}{BEING_DONE}"
        content = settled_result(row, status) if done else pending_result(row)
        content = noted(content, notes[row.id]) if row.id in notes else content
        calls.append(ToolCall(call_id, row.name, row.arguments))
        results.append(Message("tool", (ToolResult(call_id, content),)))
    return (Message("assistant", tuple(calls)), *results) if calls else ()
