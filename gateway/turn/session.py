"""Sessions: the conversation that a turn continues, and what it makes of it.

Knows what is put together, in which order turns of one session run, and what of a turn is kept: all of it, once there is an
answer, and nothing before. Does not know SQL, nor what of a conversation is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import structlog
from cachetools import LRUCache

from gateway.chat.blocks import Message, ToolResult
from gateway.chat.codecs.chat_completions import check_pairs, decode_message, encode_message
from gateway.chat.request import ChatRequest
from gateway.clock import Clock
from gateway.config.context import SessionsConfig
from gateway.errors import NotFound, SessionBusy, StoreUnavailable
from gateway.observe.events import Recorder
from gateway.scribe.strategies import parts
from gateway.security.principal import Principal
from gateway.store.session_records import Change, SessionRow, Sessions
from gateway.turn.context import Turn
from gateway.turn.prepare import Wishes

# Seconds a turn waits for the one before it in its session, and between two looks.
_WAIT_S: Final = 10.0
_LOOK_S: Final = 0.02
_LONGEST_LOOK_S: Final = 0.25
# Beyond a turn's own limit, so that nobody takes over a session whose turn is about to end.
_GRACE_S: Final = 30.0
# Bytes of conversations that are remembered as they were read.
_REMEMBERED: Final = 64 * 1024 * 1024
_CLOSE_S: Final = 5.0
# What a call is told that was never run.
_NOT_RUN: Final = "This call was not run: the conversation went on without it."

_log: Any = structlog.get_logger("gateway.sessions")
_encode = msgspec.json.Encoder().encode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Stay:
    """A turn in a session.

    Args:
        keeper: where it came from.
        row: the session as it was found.
        holder: who is in it.
        config: how long and how much is kept.
        request: the request with the whole conversation.
        wishes: what it asks for; not to be put together again.
        history: the stored messages that it goes on from.
        asked: a print of what it brings.

    Attributes:
        request: as given.
        wishes: as given.
    """

    def __init__(
        self,
        keeper: SessionKeeper,
        row: SessionRow,
        holder: str,
        config: SessionsConfig,
        request: ChatRequest,
        wishes: Wishes,
        history: tuple[Message, ...],
        asked: str,
    ) -> None:
        self.request = request
        self.wishes = wishes
        self._keeper = keeper
        self._row = row
        self._holder = holder
        self._config = config
        self._history = history
        self._asked = asked
        self._left = False

    @property
    def appends(self) -> bool:
        """Whether the client sent what is new alone."""
        return self.wishes.whole

    async def keep(self, turn: Turn, said: Sequence[Message]) -> None:
        """Commit what was asked and said; the next turn may come then.

        Raises:
            StoreUnavailable: it could not be written.
            SessionBusy: the turn took so long that another one has begun.
        """
        row, history = self._row, self._history
        head, _ = parts(self.request.messages)
        _, body = parts(turn.messages)
        kept = len(history) if body[: len(history)] == history else 0
        new = (*body[kept:], *said)
        wires = [encode_message(message) for message in new]
        whole = (*history[:kept], *(decode_message(wire) for wire in wires))
        sizes = [len(message.wire or b"") for message in whole]
        drop, size = _dropped(whole, sizes, int(self._config.max_mb * 1024 * 1024))
        upto = row.first + kept
        change = Change(
            first=row.first + drop,
            upto=upto,
            messages=wires,
            head=_encode([msgspec.Raw(encode_message(message)) for message in head]),
            size=size,
            last=upto,
            last_print=self._asked,
        )
        if not await self._keeper.change(row, self._holder, change, whole[drop:], self._config.ttl_s):
            if await self._keeper.exists(row):
                raise SessionBusy("Another turn has begun in this session before this one was kept.")
            return  # forgotten meanwhile, as its owner wished
        self._left = True
        turn.record.emit("session.kept", session=row.name, messages=len(new), forgotten=drop)

    def leave(self, record: Recorder | None) -> None:
        """The turn is over: what it did not keep is left out."""
        if self._left:
            return
        self._left = True
        if record is not None:
            record.emit("session.left_out", session=self._row.name)
        self._keeper.release(self._row, self._holder)


class SessionKeeper:
    """Lets turns into sessions, one at a time.

    Args:
        sessions: where they are.
        holder: this process.
        alive: whether a holder may still be at work.
        clock: time.
    """

    def __init__(self, sessions: Sessions, holder: str, alive: Callable[[str], bool], clock: Clock) -> None:
        self._sessions = sessions
        self._holder = holder
        self._alive = alive
        self._clock = clock
        # By all that makes a session this one: databases give the number of one that is gone to the next.
        self._known: LRUCache[tuple[str, str, int, float], tuple[int, tuple[Message, ...], int]] = LRUCache(
            _REMEMBERED, getsizeof=lambda known: max(1024, known[2])
        )
        self._releasing: set[asyncio.Task[None]] = set()

    async def enter(
        self,
        request: ChatRequest,
        principal: Principal,
        wishes: Wishes,
        config: SessionsConfig,
        record: Recorder,
        limit_s: float,
    ) -> Stay:
        """Begin a turn in the session that it names, once it is free.

        Args:
            request: as it came: what it brings is added, or takes the place of everything if an answer is in it.
            principal: whose session.
            wishes: with the session's name.
            config: how sessions are kept.
            record: the turn's trace.
            limit_s: seconds the turn may take.

        Raises:
            SessionBusy: another turn is in it.
            InvalidRequest: what it brings does not go on from what is there.
            StoreUnavailable: it cannot be read.
        """
        assert wishes.session is not None, "whoever has no session does not enter one"
        holder = f"{self._holder}|{record.trace_id}"
        # A turn that may only ask for an answer again waits for it as long as it takes.
        patient = wishes.retried or wishes.key is not None or wishes.durable
        row = await self._take(principal.owner, wishes.session, holder, limit_s, limit_s if patient else _WAIT_S)
        try:
            return await self._enter(row, holder, request, wishes, config, record)
        except BaseException:
            self.release(row, holder)
            raise

    async def _take(self, owner: str, name: str, holder: str, limit_s: float, wait_s: float) -> SessionRow:
        until, look_s = self._clock.monotonic() + wait_s, _LOOK_S
        while True:
            now = self._clock.now()
            held_until = now + limit_s + _GRACE_S
            taking = asyncio.ensure_future(
                self._sessions.take(owner, name, holder, until=held_until, now=now, alive=self._alive)
            )
            try:
                row = await asyncio.shield(taking)
            except asyncio.CancelledError:
                # Whether it is taken by now is not known: whoever would have come in goes out at once.
                self._soon(self._give_up(taking, holder))
                raise
            if row is not None:
                return row
            if self._clock.monotonic() >= until:
                raise SessionBusy(f"Another turn is under way in the session {name!r}.", retry_after_s=1.0)
            await self._clock.sleep(look_s)
            look_s = min(2 * look_s, _LONGEST_LOOK_S)

    async def _enter(
        self,
        row: SessionRow,
        holder: str,
        request: ChatRequest,
        wishes: Wishes,
        config: SessionsConfig,
        record: Recorder,
    ) -> Stay:
        head, rest = parts(request.messages)
        asked = hashlib.sha256(b"\0".join(encode_message(message) for message in rest)).hexdigest()
        history: tuple[Message, ...] = ()
        replaces = any(message.role == "assistant" for message in rest)
        if not replaces and row.revision and row.expires_at > self._clock.now():
            history = await self._messages(row)
            if wishes.retried and row.last_print == asked:
                # Its client has not got the answer, and asks the same again.
                history = history[: max(0, row.last - row.first)]
            head = head or tuple(decode_message(bytes(raw)) for raw in _decode_list(row.head))
        closed = _closed(history, rest)
        messages = (*head, *history, *closed, *rest)
        check_pairs(messages)
        record.emit("session.opened", session=row.name, messages=len(history), replaced=replaces)
        whole = msgspec.structs.replace(request, messages=messages)
        return Stay(self, row, holder, config, whole, replace(wishes, whole=not replaces), history, asked)

    async def _messages(self, row: SessionRow) -> tuple[Message, ...]:
        known = self._known.get(_identity(row))
        if known is not None and known[0] == row.revision:
            return known[1]
        found = tuple(decode_message(wire) for wire in await self._sessions.messages(row.number))
        self._remember(row, row.revision, found, row.size)
        return found

    def _remember(self, row: SessionRow, revision: int, messages: tuple[Message, ...], size: int) -> None:
        self._known.pop(_identity(row), None)
        if size <= _REMEMBERED // 4:
            self._known[_identity(row)] = (revision, messages, size)

    async def change(
        self, row: SessionRow, holder: str, change: Change, messages: tuple[Message, ...], ttl_s: float
    ) -> bool:
        """See `Sessions.change`."""
        done = await self._sessions.change(row.number, holder, change, now=self._clock.now(), ttl_s=ttl_s)
        if done:
            self._remember(row, row.revision + 1, messages, change.size)
        return done

    async def exists(self, row: SessionRow) -> bool:
        """Whether nobody has forgotten a session."""
        found = await self._sessions.get(row.owner, row.name, now=self._clock.now())
        return found is not None and _identity(found) == _identity(row)

    def release(self, row: SessionRow, holder: str) -> None:
        """Hold a session no more, in a moment."""
        self._soon(self._release(row, holder))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="session-release")
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _give_up(self, taking: Awaitable[SessionRow | None], holder: str) -> None:
        with contextlib.suppress(StoreUnavailable):
            row = await taking
            if row is not None:
                await self._release(row, holder)

    async def _release(self, row: SessionRow, holder: str) -> None:
        try:
            await self._sessions.release(row.number, holder)
        except StoreUnavailable as error:
            # It is free once its time is over.
            _log.warning("a session could not be released", error=error.message)

    async def shown(self, owner: str, name: str) -> dict[str, Any]:
        """A session with its messages.

        Raises:
            NotFound: there is none of this owner's.
            StoreUnavailable: it cannot be read.
        """
        row = await self._sessions.get(owner, name, now=self._clock.now())
        if row is None:
            raise NotFound(f"Session with id {name!r} not found.")
        wires = [*_decode_list(row.head), *map(msgspec.Raw, await self._sessions.messages(row.number))]
        return {
            "id": row.name,
            "object": "session",
            "created_at": int(row.created_at),
            "updated_at": int(row.updated_at),
            "expires_at": int(row.expires_at),
            "revision": row.revision,
            "bytes": row.size,
            "messages": [msgspec.json.decode(wire) for wire in wires],
        }

    async def delete(self, owner: str, name: str) -> None:
        """Forget a session.

        Raises:
            NotFound: there is none of this owner's.
            StoreUnavailable: it cannot be removed.
        """
        if not await self._sessions.delete(owner, name):
            raise NotFound(f"Session with id {name!r} not found.")

    async def close(self) -> None:
        """Wait until what was to be released is."""
        if self._releasing:
            await asyncio.wait(self._releasing, timeout=_CLOSE_S)


def _identity(row: SessionRow) -> tuple[str, str, int, float]:
    return row.owner, row.name, row.number, row.created_at


def _closed(history: Sequence[Message], rest: Sequence[Message]) -> tuple[Message, ...]:
    """Results for the calls at the end of a history that what follows has none for."""
    given: set[str] = set()
    index = len(history) - 1
    while index >= 0 and history[index].role == "tool":
        given.update(block.call_id for block in history[index].blocks if isinstance(block, ToolResult))
        index -= 1
    if index < 0 or not history[index].tool_calls:
        return ()
    for message in rest:
        if message.role != "tool":
            break
        given.update(block.call_id for block in message.blocks if isinstance(block, ToolResult))
    owed = [call.id for call in history[index].tool_calls if call.id not in given]
    return tuple(Message("tool", (ToolResult(call_id, _NOT_RUN),)) for call_id in owed)


def _dropped(messages: Sequence[Message], sizes: Sequence[int], most: int) -> tuple[int, int]:
    """How many of the oldest messages are forgotten, whole turns, so that the rest takes no more; and what that takes."""
    size = sum(sizes)
    drop = 0
    while size > most:
        following = next((at for at in range(drop + 1, len(messages)) if messages[at].role == "user"), None)
        if following is None:
            break
        size -= sum(sizes[drop:following])
        drop = following
    return drop, size
