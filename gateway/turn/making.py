"""One response that is being made: a turn, seen and kept as a response.

Knows when a response is in the store, when its events may be seen, and how it ends. Implements `Sink`, so that a stream's chunks
come here, and listens to the turn's events, so that the gateway's own tools become items.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from gateway.chat.blocks import Message, Text
from gateway.chat.chunk import Chunk
from gateway.chat.codecs.responses import ResponsesRequest, chat_request
from gateway.chat.codecs.responses_answer import cancelled, logprobs_of, response_object
from gateway.chat.codecs.responses_items import left_out, with_ids
from gateway.chat.codecs.responses_parts import Item
from gateway.chat.codecs.responses_stream import ResponseWriter, Shown
from gateway.chat.codecs.responses_told import items_of
from gateway.chat.usage import Usage
from gateway.clock import Clock
from gateway.errors import GatewayError, InvalidRequest, StoreUnavailable
from gateway.ids import new_call_id
from gateway.observe.events import Event, Recorder
from gateway.security.principal import NOWHERE, Origin, Principal
from gateway.store.response_records import ConversationItem, Conversations, ResponseRow, Responses, ResponseStatus
from gateway.tools.salvage import replayable
from gateway.turn.context import Turn
from gateway.turn.loop import TurnResult
from gateway.turn.prepare import Wishes
from gateway.turn.response_log import HELD_S, ResponseLog, packed
from gateway.turn.response_parts import BodyChoice, behind, body_of, narrowed, spoken, used_settings
from gateway.turn.service import Turns
from gateway.turn.stream import Sink

# The label of tools that are no MCP server's.
OWN_LABEL: Final = "gateway"
# Seconds that the end of a response which was cancelled may take to be kept.
_LAST_WORD_S: Final = 5.0

_log: Any = structlog.get_logger("gateway.responses")
_encode = msgspec.json.Encoder().encode


class Making:
    """Makes one response.

    Args:
        turns: answers.
        responses: where it is kept, if it is.
        conversations: where what was said is added, if it belongs to one.
        clock: time.
        holder: who makes it.
        status_of: the HTTP status and code of an error.
        live: where others of this process find it, by its id, while it can be followed.

    Attributes:
        trace_id: its turn's.
        principal: who asks.
        holder: as given.
        log: its events; none where it is not streamed.
        chat: what its turn is asked.
        turn: its turn, once there is one.
        replayed: the response that this request has got before, where it has.
        kept: whether it is in the store.
    """

    def __init__(
        self,
        turns: Turns,
        responses: Responses,
        conversations: Conversations,
        clock: Clock,
        holder: str,
        status_of: Callable[[GatewayError], tuple[int, str | None]],
        live: MutableMapping[str, Making],
        *,
        trace_id: str,
        principal: Principal,
        request: ResponsesRequest,
        earlier: Sequence[Item],
        wishes: Wishes,
        endpoint: str,
        body: bytes,
        origin: Origin = NOWHERE,
    ) -> None:
        self.trace_id = trace_id
        self.principal = principal
        self.holder = holder
        self.turn: Turn | None = None
        self.replayed: dict[str, Any] | None = None
        self._turns = turns
        self._responses = responses
        self._conversations = conversations
        self._clock = clock
        self._status_of = status_of
        self._live = live
        self._request = request
        self._earlier = earlier
        self.chat = chat_request(request, earlier)
        self._wishes = narrowed(wishes, request)
        self._endpoint = endpoint
        self._body = body
        self._origin = origin
        self._streams = request.stream or request.background
        self._id = f"resp_{trace_id}"
        self._created = int(clock.now())
        self._writer: ResponseWriter | None = None
        self.log = ResponseLog(self._id, holder, responses if request.store else None, clock)
        self._ready = False
        self._opening: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[None] | None = None
        self.kept = False
        self._resumed: tuple[Sequence[dict[str, Any]], int, bool] | None = None
        # The round under way: its number, its words that no item holds yet, its calls' arguments.
        self._round = 1
        self._said = ""
        self._told_text = ""
        self._arguments: dict[str, str] = {}
        self._begun_calls: set[str] = set()
        self._skips = False
        self._usage: Usage | None = None

    # --- What it is ---

    @property
    def id(self) -> str:
        """The response's id; another's where the request is repeated."""
        return self.turn.answer_id if self.turn is not None else self._id

    @property
    def left_out(self) -> tuple[str, ...]:
        """Kinds of tools and items that the model did not see."""
        return tuple(
            dict.fromkeys((*self._request.tools.left_out, *sorted(left_out((*self._earlier, *self._request.items)))))
        )

    def response(self) -> dict[str, Any]:
        """The response as it is now."""
        return self._writing.response()

    @property
    def _writing(self) -> ResponseWriter:
        if self._writer is None:
            turn, request = self.turn, self._request
            model = turn.shown_model if turn is not None else request.model
            echo = {**request.echo, **(used_settings(turn) if turn is not None else {})}
            response = response_object(self.id, self._created, model, echo, background=request.background)
            shown = Shown(
                request.summary, request.sealed_thoughts, request.logprobs, request.obfuscate, request.tools.spaces
            )
            self._writer = ResponseWriter(response, shown, new_call_id, told=self._streams)
            self._writer.begin_round(self._round)
            if self._resumed is not None:
                output, number, begun = self._resumed
                self._writer.resume(output, number, begun=begun)
        return self._writer

    # --- Making it ---

    def resumed(self, row: ResponseRow, frames: Sequence[bytes]) -> None:
        """Go on with a response that is in the store, behind the events it has."""
        self.kept = True
        self._created = int(row.created_at)
        begun = any(frame.startswith(b"event: response.in_progress\n") for frame in frames)
        self._resumed = (items_of(frames), len(frames), begun)
        self.log = ResponseLog(self._id, self.holder, self._responses, self._clock, number=len(frames), durable=True)

    async def run(self) -> dict[str, Any]:
        """Make it; the response at its end.

        Raises:
            GatewayError: it failed. Whoever follows it has been told, where anything was told before.
        """
        try:
            result = await self._turns.answer(
                self.trace_id,
                self.principal,
                self.chat,
                self._wishes,
                self._endpoint,
                self._begun,
                self._body,
                self._origin,
            )
            response = await self._finish(result)
        except GatewayError as error:
            status, code = self._status_of(error)
            # A run is tried again, and says itself when it is given up.
            if not (self._request.background and error.retryable):
                param = error.param if isinstance(error, InvalidRequest) else None
                await self._failed(status, error.message, code, param)
            raise
        except asyncio.CancelledError:
            await self._cancelled()
            raise
        except Exception:
            await self._failed(500, "The gateway failed to answer.", "internal_error", None)
            raise
        finally:
            for task in (self._opening, self._publishing):
                if task is not None and not task.done():
                    task.cancel()
            await self.log.stop()
            self.log.end()
            if self._live.get(self.id) is self:
                del self._live[self.id]
        return response

    def delivered(self) -> None:
        """Its client has all of it."""
        if self.turn is not None and self.turn.joinable is not None:
            self._turns.joining.delivered(self.turn.joinable)

    def _begun(self, turn: Turn) -> Sink | None:
        self.turn = turn
        turn.prefix = "resp_"
        turn.joined(self.trace_id)
        turn.record.follow(self)
        if self.left_out:
            turn.record.emit("tools.left_out", kinds=list(self.left_out))
        if not self._streams:
            return None
        if self._wishes.key is None and not self._wishes.retried:
            # Whose turn it is is certain: the row is written while the model thinks.
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(_read)
        return None if turn.snapshot.hooks.reach is None else self

    async def _open(self) -> None:
        """Be in the store, and be found."""
        if self._request.store and not self.kept:
            now = self._clock.now()
            if self.id != self._id:
                # An earlier attempt's: its client asks for all of it again.
                await self._responses.delete(self.id, self.principal.owner)
                self.log.rename(self.id)
            await self._responses.add(self._row("in_progress", self._writing.response(), now))
            self.kept = True
        if self._request.store:
            self._live[self.id] = self
            self.log.start()
        if self._request.background:
            self._writing.begin()
            self.log.add(self._writing.take())

    def _row(self, status: ResponseStatus, response: dict[str, Any], now: float) -> ResponseRow:
        request = self._request
        return ResponseRow(
            id=self.id,
            owner=self.principal.owner,
            status=status,
            background=request.background,
            streamed=self._streams,
            previous_id=request.previous_id,
            conversation_id=request.conversation,
            input=_encode(self._input()),
            body=_encode(response),
            holder=self.holder,
            held_until=now + HELD_S,
            created_at=now,
            updated_at=now,
        )

    def _input(self) -> list[Item]:
        return with_ids(self._request.items, self.id.removeprefix("resp_"))

    # --- Sink ---

    @property
    def started(self) -> bool:
        """Whether anything of it can be seen."""
        return self.log.begun

    async def relay(self, chunks: Sequence[Chunk]) -> None:
        """Take in chunks."""
        if not self._skips:
            self._writing.feed(chunks)
        await self._publish()
        await self.log.room()

    def straight(self) -> None:
        """None: a response's events are made anew."""

    async def add(self, text: str) -> None:
        """Take in words of the gateway's own."""
        self._writing.whole(Message("assistant", (Text(text),)))
        await self._publish()

    async def finish(self, reason: str | None, usage: Usage) -> None:  # noqa: ARG002 - the seam's
        """The stream is over; the response is once it is kept."""
        self._usage = usage

    async def _publish(self) -> None:
        if not self._ready:
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
                self._opening.add_done_callback(_read)
            await asyncio.shield(self._opening)
            self._ready = True
        self.log.add(self._writing.take())

    # --- The turn's events ---

    def happened(self, _trace: Recorder, event: Event) -> None:
        """Note what the turn does; tools of the gateway's own are items."""
        data = event.data
        match event.type:
            case "round.started" | "round.recorded":
                self._round = data["round"]
                self._arguments, self._said = {}, ""
                self._skips = event.type == "round.recorded" and self._has_round(data["round"])
                if self._writer is not None:
                    self._writer.begin_round(self._round)
            case "round.answered":
                self._said = data["content"]
                self._arguments = {
                    call["id"]: replayable(call["function"]["arguments"])
                    for call in data["tool_calls"]
                    if "function" in call
                }
            case "tool.started":
                self._own_call(data["call_id"], data["name"])
            case "approval.waiting":
                self._flush_words()
                label = self._label_of(data["name"])
                self._writing.own_request(data["approval"], label, data["name"], _encode(data["arguments"]).decode())
                self._publish_soon()
            case "approval.told" if data["ok"] is not None:
                # Of an earlier turn's call: in no round of this one.
                self._writing.begin_round(0)
                self._arguments[data["call_id"]] = _encode(data["arguments"]).decode()
                self._own_call(data["call_id"], data["name"])
                error = None if data["ok"] else "it was not done, or failed"
                self._writing.own_result(data["call_id"], data["content"], error)
                self._writing.begin_round(self._round)
                self._publish_soon()
            case "tool.finished":
                self._own_call(data["call_id"], data["name"])
                error = None if data["ok"] else str(data["error"] or "it failed")
                self._writing.own_result(data["call_id"], data["content"], error)
                self._publish_soon()

    def _has_round(self, number: int) -> bool:
        """Whether an earlier attempt has shown this round."""
        items = self._resumed[0] if self._resumed is not None else ()
        return any(
            item.get("status") != "incomplete" and str(item.get("id", "")).split("_")[-2:-1] == [str(number)]
            for item in items
        )

    def _own_call(self, call_id: str, name: str) -> None:
        if call_id in self._begun_calls:
            return
        self._begun_calls.add(call_id)
        self._flush_words()
        self._writing.own_call(call_id, self._label_of(name), name, self._arguments.get(call_id, "{}"))
        self._publish_soon()

    def _flush_words(self) -> None:
        """What the round has said stands before what it does."""
        assert self.turn is not None
        if not self._is_streamed and self._said and self.turn.snapshot.hooks.reach is not None:
            self._writing.whole(Message("assistant", (Text(self._said),)))
            self._told_text += self._said
            self._said = ""

    def _label_of(self, name: str) -> str:
        """The MCP server that a tool is of."""
        spec = self.turn.offered.get(name) if self.turn is not None else None
        if spec is not None and spec.provider.startswith("mcp:"):
            return spec.provider.removeprefix("mcp:")
        return OWN_LABEL

    def _publish_soon(self) -> None:
        if not self._is_streamed:
            return
        if self._ready:
            self.log.add(self._writing.take())
        elif self._publishing is None:
            self._publishing = asyncio.get_running_loop().create_task(self._publish())
            self._publishing.add_done_callback(_read)

    @property
    def _is_streamed(self) -> bool:
        """Whether its words come as they are made: not where a hook has to see all of them first."""
        return self._streams and self.turn is not None and self.turn.snapshot.hooks.reach is not None

    # --- Its end ---

    async def _finish(self, result: TurnResult) -> dict[str, Any]:
        turn = self.turn
        assert turn is not None
        if turn.replayed is not None:
            before = await self._responses.get(turn.answer_id, self.principal.owner)
            if before is not None and before.over:
                self.replayed = msgspec.json.decode(before.body)
                return self.replayed
            self._created = turn.created
        writer = self._writing
        body = body_of(result.body)
        if not self._is_streamed or turn.replayed is not None:
            choice = body.choices[0] if body.choices else BodyChoice()
            annotations = choice.message.get("annotations")
            writer.whole(
                behind(result.message, self._told_text),
                logprobs_of(choice.logprobs) if self._request.logprobs else (),
                annotations if isinstance(annotations, list) else (),
            )
        usage = turn.replayed_usage or self._usage or turn.usage
        if turn.recalled and self._usage is None and body.usage is not None:
            usage = body.usage.usage()
        if self._streams:
            await self._publish()
        response = writer.end(result.finish_reason, usage, int(self._clock.now()))
        return await self._keep(response, writer)

    async def _keep(self, response: dict[str, Any], writer: ResponseWriter) -> dict[str, Any]:
        """Keep it, and then let its end be seen. An answer that cannot be kept is given all the same, and says so."""
        frames = writer.take()
        if self._request.store or self._request.conversation is not None:
            try:
                await self._keep_end(response["status"], response, frames)
            except StoreUnavailable as error:
                if self._request.background:
                    raise
                _log.warning("a response was not kept", error=error.message, response_id=response["id"])
                response = {**response, "store": False}
                if frames:
                    frames = [*frames[:-1], *writer.last_instead(response)]
        self.log.add(frames)
        return response

    async def _keep_end(self, status: ResponseStatus, response: dict[str, Any], frames: Sequence[bytes]) -> None:
        now = self._clock.now()
        items: list[ConversationItem] = []
        if self._request.conversation is not None and status in ("completed", "incomplete"):
            items = spoken([*self._input(), *response["output"]])
        if not self._request.store:
            assert self._request.conversation is not None
            await self._conversations.append(self._request.conversation, items)
            return
        await self.log.stop()
        events = self.log.unkept()
        if frames:
            events.append(packed(self.log.next, frames))
        if self.kept:
            await self._responses.end(
                self.id, self.holder, status=status, body=_encode(response), events=events, said=items, now=now
            )
        else:
            if self.id != self._id:
                await self._responses.delete(self.id, self.principal.owner)
            await self._responses.add(self._row(status, response, now), events, items)
            self.kept = True

    async def _failed(self, status: int, message: str, code: str | None, param: str | None) -> None:
        if not self.log.begun:
            await self._forget()
            return
        writer = self._writing
        response = writer.fail(status, message, code, param)
        frames = writer.take()
        if self._request.store:
            with contextlib.suppress(StoreUnavailable):
                await self._keep_end("failed", response, frames)
        self.log.add(frames)

    def last_words(self, status: int, message: str, code: str | None) -> list[bytes]:
        """Events for a client that was told something, or kept waiting in a stream, and of which nobody else will hear."""
        self._writing.fail(status, message, code, None)
        return self._writing.take()

    async def _cancelled(self) -> None:
        """Nobody waits for it any more; what there is of it is kept, bounded in time."""
        if self._request.background:
            # Its run goes on elsewhere, or says how it ended.
            await self.log.stop()
            with contextlib.suppress(StoreUnavailable):
                await self.log.flush()
            return
        with contextlib.suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(_LAST_WORD_S):
                if not self.log.begun:
                    await self._forget()
                elif self._request.store:
                    writer = self._writing
                    response = cancelled(writer.response(), writer.break_off())
                    await self._keep_end("cancelled", response, writer.take())

    async def _forget(self) -> None:
        """Nobody has heard of it: whoever asked gets an error instead."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self.kept and not self._request.background:
            with contextlib.suppress(StoreUnavailable):
                await self._responses.delete(self.id, self.principal.owner)


def _read(task: asyncio.Task[None]) -> None:
    """Read a task's failure: whoever needs what it does gets it too."""
    if not task.cancelled():
        task.exception()
