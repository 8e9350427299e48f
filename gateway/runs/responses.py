"""A response as a run: asked for by `background`, answered by `GET /v1/responses/{id}`.

Knows how a run's response is made: the same turn a request has, under the run's trace id, its events behind those that are kept
already. Does not know the queue.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.chat.codecs.responses import decode_responses
from gateway.errors import NotFound
from gateway.runs.frame import framed, read_frame
from gateway.runs.progress import told
from gateway.runs.run import Attempt, Done, NewRun
from gateway.security.principal import NOWHERE, Origin, Principal
from gateway.store.run_records import RunRow
from gateway.turn.prepare import Wishes
from gateway.turn.responding import Responding

KIND: Final = "response"
_ENDPOINT: Final = "/v1/responses"


class ResponseHandler:
    """Executes response runs.

    Args:
        responding: makes responses.
    """

    def __init__(self, responding: Responding) -> None:
        self._responding = responding

    async def execute(self, run: RunRow, attempt: Attempt) -> Done:
        """Make the response, or go on making it."""
        frame = read_frame(run.caller)
        request = decode_responses(run.body)
        earlier, request = await self._responding.continued(request, run.owner)
        wishes = frame.wishes_of(run.id)
        making = self._responding.make(
            run.trace_id, frame.principal, request, earlier, wishes, _ENDPOINT, run.body, frame.origin
        )
        if not await self._responding.resume(making):
            # It was deleted, or another attempt has ended it.
            return Done((await self._responding.get(f"resp_{run.trace_id}", run.owner)).body)
        async with told(attempt, lambda: making.turn):
            response = await making.run()
        turn = making.turn
        return Done(msgspec.json.encode(response), turn.told() if turn is not None else None)

    async def came_of(self, run: RunRow) -> Done | None:
        """The response, where it was whole before its run was stopped."""
        try:
            row = await self._responding.get(f"resp_{run.trace_id}", run.owner)
        except NotFound:
            return None
        return Done(row.body) if row.status in ("completed", "incomplete") else None


def response_run(body: bytes, principal: Principal, wishes: Wishes, trace_id: str, origin: Origin = NOWHERE) -> NewRun:
    """The run that a background request asks for, from `origin`."""
    return NewRun(
        kind=KIND,
        trace_id=trace_id,
        owner=principal.owner,
        body=body,
        caller=framed(principal, wishes, origin),
        idempotency_key=wishes.key,
        retried=wishes.retried,
        key=principal.key_id,
    )
