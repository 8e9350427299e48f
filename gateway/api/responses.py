"""`POST /v1/responses`: plain ASGI, as Chat Completions is.

Knows one request from bytes to bytes: JSON, a stream of typed events, or a run that goes on without it. How a response is made
is the turn's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace as replaced
from starlette.types import Receive, Scope, Send

from gateway.api.address import origin_of
from gateway.api.answered_approvals import answer_approvals
from gateway.api.auth import for_user, read_headers
from gateway.api.cycle import CYCLE, ClientGone, Cycle, head_lines
from gateway.api.errors import ErrorAnswer, describe, internal
from gateway.api.event_stream import EventStream
from gateway.api.http import read_body
from gateway.api.services import Services
from gateway.api.sse import SILENCE_S
from gateway.api.standing import standing_headers
from gateway.api.stored_responses import followed
from gateway.api.told import answer_lines
from gateway.chat.codecs.responses import ResponsesRequest, decode_responses
from gateway.chat.codecs.responses_stream import told_again
from gateway.errors import Draining, GatewayError
from gateway.runs.responses import response_run
from gateway.runs.run import NewRun
from gateway.security.principal import NOWHERE, Principal
from gateway.turn.foreseen import refuse_hopeless
from gateway.turn.making import Making

ENDPOINT: Final = "/v1/responses"
# Seconds a client that does not read may keep a stopping gateway from stopping.
_LAST_WORD_S: Final = 1.0

_encode = msgspec.json.Encoder().encode


class Responses:
    """The endpoint.

    Args:
        services: the objects behind it.
        silence_s: seconds without a byte after which a stream gets a comment.
    """

    def __init__(self, services: Services, *, silence_s: float = SILENCE_S) -> None:
        self._services = services
        self._silence_s = silence_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        services = self._services
        cycle: Cycle = scope[CYCLE]
        trace_id = cycle.trace_id
        principal: Principal | None = None
        origin = NOWHERE
        try:
            snapshot = services.versions.serving
            origin = origin_of(scope, snapshot.keys.trusted_proxies)
            principal, wishes = await read_headers(
                scope, snapshot.keys, services.clock.now(), snapshot.tools.forward_headers
            )
            body = await read_body(scope, snapshot.body_limit_bytes)
            request = decode_responses(body)
            principal = for_user(principal, request.user)
            await answer_approvals(request.items, principal, services.desk)
            earlier, request = await services.responding.continued(request, principal.owner)
            making = services.responding.make(trace_id, principal, request, earlier, wishes, ENDPOINT, body, origin)
            if request.background:
                refuse_hopeless(making.chat, principal, snapshot)
                run = response_run(body, principal, wishes, trace_id, origin)
                await self._background(cycle, principal, request, run, receive, send)
                return
        except ClientGone:
            return
        except GatewayError as error:
            services.turns.refuse(trace_id, principal, ENDPOINT, error, origin)
            cycle.fail(describe(error))
            return
        exchange = _Exchange(services, making, request, cycle, receive, send, self._silence_s)
        await exchange.run()

    async def _background(
        self,
        cycle: Cycle,
        principal: Principal,
        request: ResponsesRequest,
        new: NewRun,
        receive: Receive,
        send: Send,
    ) -> None:
        services = self._services
        trace_id = cycle.trace_id
        services.drain.refuse()
        response = await services.responding.queue(trace_id, principal.owner, request)
        try:
            run = await services.runs.submit(new)
        except BaseException:
            await services.responding.delete(response["id"], principal.owner)
            raise
        if run.trace_id != trace_id:
            # The same request again: its first time made the response.
            await services.responding.delete(response["id"], principal.owner)
            row = await services.responding.get(f"resp_{run.trace_id}", principal.owner)
            response = msgspec.json.decode(row.body)
        if not request.stream:
            cycle.answer(200, _encode(response))
            return
        row = await services.responding.get(response["id"], principal.owner)
        follower = followed(services, row, -1, self._silence_s)
        stream = EventStream(send, bytes)
        await stream.open()
        await stream.pour(follower, receive)


class _Exchange:
    """One request and its answer, until one of both sides has had enough."""

    def __init__(
        self,
        services: Services,
        making: Making,
        request: ResponsesRequest,
        cycle: Cycle,
        receive: Receive,
        send: Send,
        silence_s: float,
    ) -> None:
        self._services = services
        self._making = making
        self._request = request
        self._cycle = cycle
        self._receive = receive
        self._send = send
        self._silence_s = silence_s
        self._answered = False

    async def run(self) -> None:
        """Make the response; stop, or leave it, when the client goes away."""
        task = self._services.responding.start(self._making)
        if self._request.stream:
            await self._stream(task)
        else:
            await self._plain(task)

    async def _plain(self, task: asyncio.Task[dict[str, Any]]) -> None:
        watcher = asyncio.get_running_loop().create_task(_gone(self._receive))
        try:
            await asyncio.wait([task, watcher], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()  # nobody is left to answer
                await asyncio.wait([task])
                return
            answer = await self._outcome(task)
            if isinstance(answer, ErrorAnswer):
                self._cycle.fail(answer)
                return
            self._cycle.answer(200, _encode(answer), self._lines())
            self._making.delivered()
        except asyncio.CancelledError:
            task.cancel()
            if not task.done():
                self._cycle.fail(describe(_cut_off()))
            raise
        finally:
            watcher.cancel()
            if task.done() and not task.cancelled():
                _raise_defect(task)

    async def _stream(self, task: asyncio.Task[dict[str, Any]]) -> None:
        making = self._making
        stream = EventStream(self._send, self._lines)
        try:
            if await stream.pour(self._events(task), self._receive):
                if not task.done():
                    await asyncio.wait([task])
                answer = await self._outcome(task)
                if not isinstance(answer, ErrorAnswer):
                    making.delivered()
                elif not stream.started:
                    self._cycle.fail(answer)
            elif not task.done():
                self._services.responding.left(making, task)
        except asyncio.CancelledError:
            task.cancel()
            if not stream.ended:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORD_S):
                        answer = describe(_cut_off())
                        if stream.started:
                            await asyncio.wait([task])
                            await stream.write(making.last_words(answer.status, answer.message, answer.code), last=True)
                        else:
                            self._cycle.fail(answer)
            raise
        finally:
            if task.done() and not task.cancelled():
                _raise_defect(task)

    async def _events(self, task: asyncio.Task[dict[str, Any]]) -> AsyncGenerator[Sequence[bytes], None]:
        """The response's events; what is left to say where it has none."""
        making = self._making
        told = waited = False
        async with contextlib.aclosing(making.log.follow(-1, self._silence_s)) as batches:
            async for frames in batches:
                told = told or bool(frames)
                waited = waited or not frames
                yield frames
        if told:
            return
        answer = await self._outcome(task)
        if isinstance(answer, ErrorAnswer):
            if waited:  # the status is spent
                yield making.last_words(answer.status, answer.message, answer.code)
        elif making.replayed is not None:
            row = await self._services.responding.get(making.id, making.principal.owner)
            async with contextlib.aclosing(self._services.responding.follow(row, -1, self._silence_s)) as batches:
                async for frames in batches:
                    told = told or bool(frames)
                    yield frames
            if not told:
                yield told_again(answer)

    async def _outcome(self, task: asyncio.Task[dict[str, Any]]) -> dict[str, Any] | ErrorAnswer:
        """What came of it; a defect is an error like any other to its client."""
        await asyncio.wait([task])
        if task.cancelled():
            return describe(_cut_off())
        error = task.exception()
        if error is None:
            return task.result()
        if not isinstance(error, GatewayError):
            return internal()
        answer = describe(error)
        if (turn := self._making.turn) is not None and turn.standing is not None:
            answer = replaced(answer, headers=(*answer.headers, *standing_headers(turn.standing)))
        return answer

    def _lines(self) -> bytes:
        making = self._making
        lines = answer_lines(making.turn) if making.turn is not None else b""
        if making.left_out:
            lines += head_lines([(b"x-gateway-left-out", ", ".join(making.left_out).encode("latin-1", "replace"))])
        return lines


def _cut_off() -> Draining:
    return Draining("The gateway stopped before the answer was complete.")


def _raise_defect(task: asyncio.Task[Any]) -> None:
    """A defect is the log's, too: whoever catches it at the edge writes it there."""
    error = task.exception()
    if error is not None and not isinstance(error, GatewayError):
        raise error


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
