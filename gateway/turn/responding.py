"""Responses of this process and of others: continued, made, followed, settled.

Knows where the parts of a conversation lie and who makes a response. What a response looks like is the codec's, how it is
answered the turn's, how it is asked for the API's.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from gateway.chat.codecs.responses import ResponsesRequest
from gateway.chat.codecs.responses_answer import cancelled, response_object, unended
from gateway.chat.codecs.responses_items import with_ids
from gateway.chat.codecs.responses_parts import Item
from gateway.chat.codecs.responses_stream import ResponseWriter, Shown
from gateway.chat.codecs.responses_told import items_of
from gateway.clock import Clock
from gateway.errors import GatewayError, InvalidRequest, NotFound
from gateway.ids import new_call_id
from gateway.security.principal import NOWHERE, Origin, Principal
from gateway.store.response_records import (
    Conversations,
    ResponseRow,
    Responses,
    ResponseStatus,
    changed,
)
from gateway.turn.making import Making
from gateway.turn.prepare import Wishes
from gateway.turn.response_log import HELD_S, packed, unpacked
from gateway.turn.service import Turns

# Responses of one conversation that are put together; more of them no model has room for.
_LONGEST_CHAIN: Final = 1000
_LOOK_S: Final = 0.1
# How long a streamed response that is kept goes on when its client was cut off, before it counts as given up.
COME_BACK_S: Final = 5.0
_READ: Final = 16
_GONE: Final = "The process that made this response went away."
_CALLS: Final = ("function_call", "custom_tool_call")
_KEY: Final = re.compile(r"_([0-9a-f]{32})_")

_encode = msgspec.json.Encoder().encode


class Responding:
    """Makes responses and finds them again.

    Args:
        turns: answers.
        responses: where responses are kept.
        conversations: where conversations are.
        clock: time.
        holder: this process.
        alive: whether a holder may still be at work.
        status_of: the HTTP status and code of an error.
    """

    def __init__(
        self,
        turns: Turns,
        responses: Responses,
        conversations: Conversations,
        clock: Clock,
        holder: str,
        alive: Callable[[str], bool],
        status_of: Callable[[GatewayError], tuple[int, str | None]],
    ) -> None:
        self.conversations = conversations
        self._turns = turns
        self._responses = responses
        self._clock = clock
        self._holder = holder
        self._alive = alive
        self._status_of = status_of
        self._live: dict[str, Making] = {}
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def making(self) -> Sequence[str]:
        """Ids of the responses that are being made here and can be followed."""
        return tuple(self._live)

    def readers(self, response_id: str) -> int:
        """How many follow a response that is being made here."""
        making = self._live.get(response_id)
        return making.log.readers if making is not None else 0

    async def continued(self, request: ResponsesRequest, owner: str) -> tuple[Sequence[Item], ResponsesRequest]:
        """What a request continues: the items before its own, and the request with its references replaced.

        Raises:
            InvalidRequest: it names something that is not there, or not this owner's.
            StoreUnavailable: it cannot be read.
        """
        earlier: list[Item] = []
        if request.previous_id is not None:
            earlier = await self._chain(request.previous_id, owner)
        elif request.conversation is not None:
            if await self.conversations.get(request.conversation, owner) is None:
                raise NotFound(f"Conversation with id '{request.conversation}' not found.")
            kept = await self.conversations.items(request.conversation)
            earlier = [msgspec.json.decode(each.item) for each in kept]
        earlier = _without_cut_calls(earlier, request.items)
        if any(item["type"] == "item_reference" for item in request.items):
            found = [await self._referred(item, owner, earlier) for item in request.items]
            request = msgspec.structs.replace(request, items=tuple(found))
        return earlier, request

    async def _chain(self, previous_id: str, owner: str) -> list[Item]:
        rows = await self._responses.chain(previous_id, owner, limit=_LONGEST_CHAIN)
        if not rows:
            raise InvalidRequest(
                f"Previous response with id '{previous_id}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if rows[0].previous_id is not None:
            raise InvalidRequest(
                f"The response '{rows[0].previous_id}', which '{previous_id}' continues, is gone.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        earlier: list[Item] = []
        for row in rows:
            if not row.over and not await self._settled(row):
                raise InvalidRequest(
                    f"Previous response with id '{row.id}' has not ended yet.", param="previous_response_id"
                )
            earlier += msgspec.json.decode(row.input)
            earlier += _usable(row)
        return earlier

    async def _referred(self, item: Item, owner: str, earlier: Sequence[Item]) -> Item:
        if item["type"] != "item_reference":
            return item
        wanted = item.get("id")
        near = [each for each in earlier if each.get("id") == wanted]
        key = _KEY.search(wanted) if isinstance(wanted, str) else None
        if not near and key is not None and (row := await self._responses.get(f"resp_{key[1]}", owner)) is not None:
            there = [*msgspec.json.decode(row.input), *_output(row)]
            near = [each for each in there if each.get("id") == wanted]
        if not near:
            raise InvalidRequest(f"Item with id '{wanted}' not found.", param="input")
        return near[0]

    def make(
        self,
        trace_id: str,
        principal: Principal,
        request: ResponsesRequest,
        earlier: Sequence[Item],
        wishes: Wishes,
        endpoint: str,
        body: bytes,
        origin: Origin = NOWHERE,
    ) -> Making:
        """A response that is to be made here, asked for from `origin`. Its `run` has to be awaited, or `start` called."""
        return Making(
            self._turns,
            self._responses,
            self.conversations,
            self._clock,
            f"{self._holder}|{trace_id}",
            self._status_of,
            self._live,
            trace_id=trace_id,
            principal=principal,
            request=request,
            earlier=earlier,
            wishes=wishes,
            endpoint=endpoint,
            body=body,
            origin=origin,
        )

    def start(self, making: Making) -> asyncio.Task[dict[str, Any]]:
        """Make a response in a task of its own, which whoever asked may leave."""
        task = asyncio.get_running_loop().create_task(making.run(), name="response")
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever follows has been told; nobody else waits

    async def queue(self, trace_id: str, owner: str, request: ResponsesRequest) -> dict[str, Any]:
        """Keep a response that a run will make; the response as it is then.

        Raises:
            StoreUnavailable: it cannot be kept.
        """
        now = self._clock.now()
        response = response_object(f"resp_{trace_id}", int(now), request.model, request.echo, background=True) | {
            "status": "queued"
        }
        writer = ResponseWriter(response, Shown(), new_call_id)
        writer.queued()
        row = ResponseRow(
            id=response["id"],
            owner=owner,
            status="queued",
            background=True,
            streamed=True,
            previous_id=request.previous_id,
            conversation_id=request.conversation,
            input=_encode(with_ids(request.items, trace_id)),
            body=_encode(response),
            created_at=now,
            updated_at=now,
        )
        await self._responses.add(row, [packed(0, writer.take())])
        return response

    async def resume(self, making: Making) -> bool:
        """Take a queued response over, or one whose maker was cut off; False where it has ended or is gone.

        Raises:
            StoreUnavailable: it cannot be read or written.
        """
        now = self._clock.now()
        response_id = f"resp_{making.trace_id}"
        if not await self._responses.take(response_id, making.holder, until=now + HELD_S, now=now):
            return False
        frames: list[bytes] = []
        at = -1
        while batches := await self._responses.events(response_id, after=at, limit=_READ):
            for batch in batches:
                frames += unpacked(batch, at)
                at = batch.last
        row = await self._responses.get(response_id, making.principal.owner)
        if row is None:
            return False
        making.resumed(row, frames)
        return True

    async def get(self, response_id: str, owner: str | None) -> ResponseRow:
        """One response as it is now.

        Raises:
            NotFound: there is none of this owner's.
            StoreUnavailable: it cannot be read.
        """
        row = await self._responses.get(response_id, owner)
        if row is None:
            raise NotFound(f"Response with id '{response_id}' not found.")
        if row.over:
            return row
        making = self._live.get(response_id)
        if making is not None:
            return changed(row, body=_encode(making.response()), status="in_progress")
        if (settled := await self._settled(row)) is not None:
            return settled
        return changed(row, body=_encode(unended(msgspec.json.decode(row.body), row.status)))

    async def _settled(self, row: ResponseRow) -> ResponseRow | None:
        """A response whose maker is gone, ended as failed; None where somebody still makes it."""
        if row.background or row.id in self._live:
            return None
        if row.held_until > self._clock.now() and self._alive(row.holder):
            return None
        return await self.settle(row, "failed", _GONE)

    async def settle(self, row: ResponseRow, status: ResponseStatus, message: str) -> ResponseRow:
        """End a response that nobody makes any more; the response as it is then.

        Raises:
            StoreUnavailable: it cannot be written.
        """
        response = msgspec.json.decode(row.body)
        batches = await self._responses.events(row.id, after=-1, limit=1_000_000) if row.streamed else ()
        told = [frame for batch in batches for frame in unpacked(batch, -1)]
        writer = ResponseWriter(response, Shown(), new_call_id)
        writer.resume(items_of(told) or response.get("output", []), len(told), begun=bool(told))
        number = len(told)
        if status == "cancelled":
            ended = cancelled(response, writer.output)
        else:
            ended = writer.fail(500, message, "server_error", None)
        now = self._clock.now()
        frames = writer.take()
        events = [packed(number, frames)] if frames and row.streamed else []
        body = _encode(ended)
        if not await self._responses.end(row.id, row.holder, status=status, body=body, events=events, now=now):
            found = await self._responses.get(row.id, row.owner)
            if found is None:
                raise NotFound(f"Response with id '{row.id}' not found.")
            return found
        return changed(row, status=status, body=body, updated_at=now)

    async def follow(
        self,
        row: ResponseRow,
        after: int,
        silence_s: float,
        look: Callable[[ResponseRow], Awaitable[ResponseRow]] | None = None,
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """The events of a response behind a number, as they come, until there are no more; none after `silence_s` without.

        `look` says how the response is now, where somebody else knows better: its run.

        Raises:
            StoreUnavailable: they cannot be read.
        """
        at = after
        silent = self._clock.monotonic()
        while True:
            making = self._live.get(row.id)
            if making is not None and making.log.begun:
                async with contextlib.aclosing(making.log.follow(at, silence_s)) as batches:
                    async for frames in batches:
                        yield frames
                return
            found = await self._responses.events(row.id, after=at, limit=_READ)
            for batch in found:
                yield unpacked(batch, at)
                at = batch.last
            if found:
                silent = self._clock.monotonic()
                continue
            if row.over:
                return
            try:
                row = await (self.get(row.id, row.owner) if look is None else look(row))
            except NotFound:
                return
            if not row.over:
                await self._clock.sleep(_LOOK_S)
            if self._clock.monotonic() - silent >= silence_s:
                silent = self._clock.monotonic()
                yield ()

    async def delete(self, response_id: str, owner: str | None) -> None:
        """Forget a response; one that is being made here goes on for whoever reads it.

        Raises:
            NotFound: there is none of this owner's.
            StoreUnavailable: it cannot be removed.
        """
        if not await self._responses.delete(response_id, owner):
            raise NotFound(f"Response with id '{response_id}' not found.")

    def left(self, making: Making, task: asyncio.Task[Any]) -> None:
        """Its client has gone: a response that nobody could come back for ends at once, another when nobody does."""
        if making.turn is not None:
            making.turn.gone_away = True
        if not making.kept:
            task.cancel()
            return
        waiting = asyncio.get_running_loop().create_task(self._wait_for_readers(making, task), name="response-left")
        self._running.add(waiting)
        waiting.add_done_callback(self._done)

    async def _wait_for_readers(self, making: Making, task: asyncio.Task[Any]) -> None:
        alone = 0.0
        while not task.done():
            if alone >= COME_BACK_S:
                task.cancel()
                return
            await asyncio.wait([task], timeout=_LOOK_S)
            alone = 0.0 if making.log.readers else alone + _LOOK_S

    async def close(self) -> None:
        """Stop what is still being made, and wait for the last of its words."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=5.0)


def _output(row: ResponseRow) -> list[Item]:
    output = msgspec.json.decode(row.body).get("output")
    return output if isinstance(output, list) else []


def _without_cut_calls(earlier: list[Item], items: Sequence[Item]) -> list[Item]:
    """What came before, without calls that were cut off and have no output: nobody could have made them."""
    if not any(item.get("status") == "incomplete" and item.get("type") in _CALLS for item in earlier):
        return earlier
    made = {item.get("call_id") for item in (*earlier, *items) if str(item.get("type", "")).endswith("_output")}
    return [
        item
        for item in earlier
        if item.get("status") != "incomplete" or item.get("type") not in _CALLS or item.get("call_id") in made
    ]


def _usable(row: ResponseRow) -> list[Item]:
    """What later turns may know of a response. What was cut off in one that failed is as if it had never been."""
    output = _output(row)
    if row.status == "incomplete":
        return output
    return [item for item in output if item.get("status") != "incomplete"]
