"""The events of one response on their way: to whoever listens now, and to whoever comes back for them.

Knows numbers, memory and the store. Does not know what an event says, nor HTTP.

Events are in memory from their making until they are kept; from there on, only the latest are. Readers who want older ones read
the store. What nobody keeps stays until its one reader has it, and a maker who is too far ahead waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import msgspec
import structlog

from gateway.clock import Clock
from gateway.errors import StoreUnavailable
from gateway.store.response_records import EventBatch, Responses

# How long the maker of a response holds on to it without a sign of life.
HELD_S: Final = 30.0
# How often events are written behind, and how many bytes of them are not waited with.
_WRITE_EVERY_S: Final = 0.25
_WRITE_AT_ONCE_S: Final = 0.02
_WRITE_AT_BYTES: Final = 64 * 1024
# Kept events that stay in memory all the same, for those who come back soon.
_RECENT_BYTES: Final = 256 * 1024
# What a maker may be ahead of the store, or, without one, of its reader.
_AHEAD_BYTES: Final = 4 * 1024 * 1024
# Batches that are read at once.
_READ: Final = 16

_log: Any = structlog.get_logger("gateway.responses")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


def packed(first: int, frames: Sequence[bytes]) -> EventBatch:
    """Frames as they are kept; `first` is the number of the first."""
    return EventBatch(first, first + len(frames) - 1, zlib.compress(_encode(list(frames)), 1))


def unpacked(batch: EventBatch, after: int) -> list[bytes]:
    """The frames of a batch that come behind a number."""
    frames = _decode(zlib.decompress(batch.frames))
    return frames[max(0, after + 1 - batch.first) :]


class ResponseLog:
    """The events of one response that is being made here.

    Args:
        response_id: whose events.
        holder: who makes it.
        store: where they are kept, or None where they are not.
        clock: for the time until which the response is held.
        number: the number of the first event that will be made here.
        durable: whether nothing is seen before it is kept: somebody else may go on with the response.

    Attributes:
        over: whether there will be no more.
        readers: how many follow it.
    """

    def __init__(
        self,
        response_id: str,
        holder: str,
        store: Responses | None,
        clock: Clock,
        *,
        number: int = 0,
        durable: bool = False,
    ) -> None:
        self.over = False
        self.readers = 0
        self._id = response_id
        self._holder = holder
        self._store = store
        self._clock = clock
        self._frames: deque[bytes] = deque()
        self._first = number
        self._bytes = 0
        self._durable = durable
        # The number of the first event that is not kept yet.
        self._unkept = number
        self._unkept_bytes = 0
        self._news = asyncio.Event()
        self._moved = asyncio.Event()
        self._added = asyncio.Event()
        self._due = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._stopping = False
        self._deleted = False

    @property
    def next(self) -> int:
        """The number of the next event."""
        return self._first + len(self._frames)

    @property
    def begun(self) -> bool:
        """Whether there are any events."""
        return bool(self._frames) or self._first > 0

    @property
    def recent(self) -> int:
        """How many events are in memory."""
        return len(self._frames)

    def rename(self, response_id: str) -> None:
        """Be the events of another response, as long as there are none."""
        self._id = response_id

    def start(self) -> None:
        """Begin to write behind. Needed once, where there is a store and the response is in it."""
        if self._store is not None and self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="response-events")

    def add(self, frames: Sequence[bytes]) -> None:
        """Take events in, in order."""
        if not frames:
            return
        self._frames.extend(frames)
        size = sum(map(len, frames))
        self._bytes += size
        self._unkept_bytes += size
        self._added.set()
        if self._unkept_bytes >= _WRITE_AT_BYTES:
            self._due.set()
        if not self._durable:
            self._tell()

    async def room(self) -> None:
        """Wait until what was added has gone far enough on its way."""
        while self._unkept_bytes > _AHEAD_BYTES and not self.over:
            if self._deleted and not self.readers:
                self._forget(self.next)  # nobody can come back for it
                return
            self._moved.clear()
            await self._moved.wait()

    def unkept(self) -> list[EventBatch]:
        """What is not kept yet, for whoever keeps it together with the end."""
        frames = list(self._frames)[self._unkept - self._first :]
        return [packed(self._unkept, frames)] if frames and self._store is not None else []

    async def stop(self) -> None:
        """Write no more behind; what is not kept yet stays with `unkept`."""
        # Never in the middle: what a commit became would not be known.
        self._stopping = True
        self._added.set()
        self._due.set()
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def flush(self) -> None:
        """Keep what is not kept yet, once nobody writes behind."""
        if self._store is not None and self._unkept < self.next:
            await self._write_once()

    def end(self) -> None:
        """There will be no more."""
        self.over = True
        self._moved.set()
        self._tell()

    async def follow(self, after: int, silence_s: float) -> AsyncGenerator[Sequence[bytes], None]:
        """The events behind a number, those that come together at once, until there are no more; none after `silence_s` without.

        Raises:
            StoreUnavailable: older ones cannot be read.
        """
        self.readers += 1
        try:
            at = after + 1
            while True:
                if at < self._first:
                    batches = await self._store.events(self._id, after=at - 1, limit=_READ) if self._store else ()
                    if not batches:
                        return  # they are gone: the response was deleted
                    for batch in batches:
                        frames = unpacked(batch, at - 1)
                        at = batch.last + 1
                        yield frames
                    continue
                until = self._unkept if self._durable and not self.over else self.next
                frames = list(self._frames)[at - self._first : until - self._first]
                if frames:
                    at += len(frames)
                    if self._store is None:
                        self._forget(at)
                    yield frames
                elif self.over:
                    return
                else:
                    news = self._news
                    try:
                        async with asyncio.timeout(silence_s):
                            await news.wait()
                    except TimeoutError:
                        yield ()
        finally:
            self.readers -= 1
            self._moved.set()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _forget(self, until: int) -> None:
        """What its one reader has is kept nowhere."""
        while self._frames and self._first < until:
            size = len(self._frames.popleft())
            self._first += 1
            self._bytes -= size
            self._unkept_bytes -= size
        self._unkept = self._first
        self._moved.set()

    async def _write(self) -> None:
        pause_s = _WRITE_AT_ONCE_S if self._durable else _WRITE_EVERY_S
        while not self._stopping:
            self._added.clear()
            if self._unkept == self.next:
                await _happens(self._added, HELD_S / 3)
            if self._unkept < self.next:
                await _happens(self._due, pause_s)
                self._due.clear()
            if not self._stopping:
                await self._write_once()
            if self._store is None:
                return

    async def _write_once(self) -> None:
        assert self._store is not None
        until, size, batch = self.next, self._unkept_bytes, self.unkept()
        try:
            kept = await self._store.append(self._id, self._holder, batch, until=self._clock.now() + HELD_S)
        except StoreUnavailable as error:
            _log.warning("events of a response were not kept", error=error.message)
            return
        if not kept:
            # It was deleted, or is somebody else's: nobody will ask for these but who reads them now.
            self._store = None
            self._deleted = True
            self._moved.set()
            return
        self._unkept = until
        self._unkept_bytes -= size
        if self._durable:
            self._tell()
        while self._bytes > _RECENT_BYTES and self._first < self._unkept:
            self._bytes -= len(self._frames.popleft())
            self._first += 1
        self._moved.set()


async def _happens(event: asyncio.Event, within_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
