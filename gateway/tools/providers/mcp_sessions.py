"""Callers' own sessions with a server over HTTP: what a server remembers of one caller is never another's.

Knows owners, how many sessions stay open and for how long. Does not know what a session is made of.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from gateway.tools.providers.mcp_sdk import Link, MakeLink, SessionGone

# Sessions that stay open: the one used longest ago goes first, and any that nobody used for this many seconds.
MAX_SESSIONS: Final = 64
IDLE_S: Final = 300.0


class _Seat:
    """One owner's session and how many calls are on it."""

    def __init__(self, opening: asyncio.Task[Link]) -> None:
        self.opening = opening
        self.busy = 0
        self.used = 0.0


class McpSessions:
    """One session an owner.

    Args:
        make: makes a session.
        open_s: seconds one may take to open.
    """

    def __init__(self, make: MakeLink, open_s: float) -> None:
        self._make = make
        self._open_s = open_s
        self._seats: OrderedDict[str, _Seat] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, owner: str, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool in the owner's session; a session that the server has forgotten is begun anew, once.

        Raises:
            TransportFailed: there is no session, or it ended.
            Exception: as `Link.call`.
        """
        try:
            return await self._once(owner, name, arguments)
        except SessionGone:
            return await self._once(owner, name, arguments)

    async def _once(self, owner: str, name: str, arguments: Mapping[str, Any]) -> Any:
        seat = self._seat(owner)
        seat.busy += 1
        try:
            link = await asyncio.shield(seat.opening)
            return await link.call(name, arguments)
        except SessionGone:
            self._leave(owner, seat)
            raise
        finally:
            seat.busy -= 1
            seat.used = asyncio.get_running_loop().time()
            if self._seats.get(owner) is not seat and not seat.busy:
                self._end(seat)

    def _seat(self, owner: str) -> _Seat:
        seat = self._seats.get(owner)
        if seat is not None and seat.opening.done() and (_failed(seat) or seat.opening.result().gone.is_set()):
            self._leave(owner, seat)
            seat = None
        if seat is None:
            seat = _Seat(asyncio.create_task(self._open(), name="mcp session"))
            self._seats[owner] = seat
        self._seats.move_to_end(owner)
        for other in list(self._seats)[: max(0, len(self._seats) - MAX_SESSIONS)]:
            # A busy one goes when its last call is over.
            self._leave(other, self._seats[other])
        return seat

    async def _open(self) -> Link:
        link = await self._make(None)
        try:
            await link.open(self._open_s)
        except BaseException:
            await link.close()
            raise
        return link

    def sweep(self) -> None:
        """Let go of sessions that nobody has used for a while."""
        oldest = asyncio.get_running_loop().time() - IDLE_S
        for owner, seat in list(self._seats.items()):
            if not seat.busy and seat.used < oldest:
                self._leave(owner, seat)

    def _leave(self, owner: str, seat: _Seat) -> None:
        if self._seats.get(owner) is seat:
            del self._seats[owner]
            if not seat.busy:
                self._end(seat)

    def _end(self, seat: _Seat) -> None:
        task = asyncio.create_task(_closed(seat), name="closing an mcp session")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all of them at the same time; bounded, as each is."""
        for owner, seat in list(self._seats.items()):
            del self._seats[owner]
            self._end(seat)
        if self._closing:
            await asyncio.wait(self._closing)


def _failed(seat: _Seat) -> bool:
    return seat.opening.cancelled() or seat.opening.exception() is not None


async def _closed(seat: _Seat) -> None:
    if not seat.opening.done():
        seat.opening.cancel()
        await asyncio.wait({seat.opening})
    if not _failed(seat):
        await seat.opening.result().close()
