"""A Chat Completions request as a run: asked for by `metadata.background`, answered by `GET /v1/runs/{id}`.

Knows what of `metadata` is the gateway's, and how a run's turn is made: the same turn a request has, under the run's trace id, which
records every round, so that whoever takes the run over goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.chat.codecs.chat_completions import decode_request
from gateway.chat.codecs.functions import functions_answer
from gateway.chat.request import ChatRequest
from gateway.errors import InvalidRequest
from gateway.runs.frame import framed, read_frame
from gateway.runs.progress import told
from gateway.runs.run import Attempt, Done, NewRun
from gateway.security.principal import NOWHERE, Origin, Principal
from gateway.store.run_records import PRIORITIES, Priority, RunRow
from gateway.turn.context import Turn
from gateway.turn.prepare import Wishes
from gateway.turn.service import Turns

KIND: Final = "chat"
ENDPOINT: Final = "/v1/chat/completions"
# What of `metadata` is for the gateway, and not for a model.
_OURS: Final = ("background", "priority", "delay_s")
_FURTHEST_S: Final = 366 * 86_400.0


class ChatHandler:
    """Executes chat runs.

    Args:
        turns: runs turns.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def execute(self, run: RunRow, attempt: Attempt) -> Done:
        """Answer the request, or go on answering it."""
        frame = read_frame(run.caller)
        request = without_ours(decode_request(run.body, paired=False))
        wishes = frame.wishes_of(run.id)
        turns: list[Turn] = []
        async with told(attempt, lambda: turns[0] if turns else None):
            result = await self._turns.answer(
                run.trace_id, frame.principal, request, wishes, ENDPOINT, turns.append, run.body, frame.origin
            )
        assert result.body is not None
        turn = turns[0]
        body = functions_answer(result.body) if request.functions else result.body
        return Done(body, turn.replayed if turn.replayed is not None else turn.told())


def wants_background(request: ChatRequest) -> bool:
    """Whether a chat request asks to be a run.

    Raises:
        InvalidRequest: it says something else than yes or no.
    """
    if (raw := request.fields.get("metadata")) is None or b'"background"' not in bytes(raw):
        return False
    metadata = _metadata(request)
    value = metadata.get("background")
    if value in (None, False, "false"):
        return False
    if value in (True, "true"):
        return True
    raise InvalidRequest(
        f"`metadata.background` is {value!r}; expected `true` or `false`.", param="metadata.background"
    )


def chat_run(
    request: ChatRequest,
    body: bytes,
    principal: Principal,
    wishes: Wishes,
    trace_id: str,
    now: float,
    origin: Origin = NOWHERE,
) -> NewRun:
    """The run that a chat request asks for, from `origin`.

    Raises:
        InvalidRequest: what it asks for cannot be.
    """
    if request.stream:
        raise InvalidRequest("A background run cannot be streamed: ask without `stream`.", param="stream")
    metadata = _metadata(request)
    priority = metadata.get("priority", "normal")
    if priority not in PRIORITIES:
        raise InvalidRequest(
            f"`metadata.priority` is {priority!r}; expected one of {', '.join(PRIORITIES)}.", param="metadata.priority"
        )
    not_before: float | None = None
    if (delay := metadata.get("delay_s")) is not None:
        not_before = now + _seconds(delay)
    chosen: Priority = priority
    return NewRun(
        kind=KIND,
        trace_id=trace_id,
        owner=principal.owner,
        body=body,
        caller=framed(principal, wishes, origin),
        idempotency_key=wishes.key,
        retried=wishes.retried,
        priority=chosen,
        key=principal.key_id,
        not_before=not_before,
    )


def without_ours(request: ChatRequest) -> ChatRequest:
    """The request without what of `metadata` is the gateway's."""
    if request.fields.get("metadata") is None:
        return request
    rest = {name: value for name, value in _metadata(request).items() if name not in _OURS}
    fields: dict[str, msgspec.Raw] = {name: raw for name, raw in request.fields.items() if name != "metadata"}
    if rest:
        fields["metadata"] = msgspec.Raw(msgspec.json.encode(rest))
    return msgspec.structs.replace(request, fields=fields)


def _metadata(request: ChatRequest) -> Mapping[str, Any]:
    found = msgspec.json.decode(request.fields["metadata"]) if "metadata" in request.fields else None
    if not isinstance(found, dict):
        return {}
    return found


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if isinstance(value, bool) or not 0 <= seconds <= _FURTHEST_S:
        raise InvalidRequest(
            f"`metadata.delay_s` is {value!r}; expected seconds from 0 to {_FURTHEST_S:.0f}.", param="metadata.delay_s"
        )
    return seconds
