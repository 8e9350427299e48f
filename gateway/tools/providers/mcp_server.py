"""One configured MCP server, over all versions that use it: its tools as known now, and calls of them.

Knows how the server is watched, reached again and asked what it offers. Does not know how a session is made, nor what its tools
are called here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from gateway.tools.outcome import TransportFailed
from gateway.tools.providers.mcp_sdk import Link, MakeLink
from gateway.tools.providers.mcp_sessions import McpSessions
from gateway.tools.remote import RemoteTool

_log = structlog.stdlib.get_logger("gateway.tools.mcp")

# Seconds a session may take to begin: package runners install what they run.
OPEN_S: Final = 30.0
# Seconds after its start that a version is kept waiting for a server, and so for all of them together.
START_S: Final = 15.0
LIST_S: Final = 10.0
# Between two attempts: half a second, then twice as long each time, up to half a minute. A call does not wait for it.
FIRST_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 30.0
# Seconds between two looks at a server over HTTP, whose end or change may go unnoticed.
LOOK_S: Final = 30.0
# A session that lasted longer than this was a good one: it is begun again at once.
_GOOD_S: Final = 5.0


class McpServer:
    """A server. One task owns the session that lists tools and, for a child process, serves everybody's calls.

    Attributes:
        name: as configured.
        tools: what it offered when it was asked last; None if it never was reached.
        error: why it cannot be reached, or None where it can.
        words: what its program wrote last before it could not be reached; for operators, never for a caller.
        refused: how many of its tools the last version refused because they differ from their lock.
    """

    def __init__(self, name: str, make: MakeLink, changed: Callable[[], None], *, per_owner: bool) -> None:
        """Nothing is started yet.

        Args:
            name: as configured.
            make: makes a session.
            changed: told when `tools` is not what `known` answered last.
            per_owner: whether each caller gets a session of its own.
        """
        self.name = name
        self.tools: tuple[RemoteTool, ...] | None = None
        self.error: str | None = "it has not been reached yet"
        self.words = ""
        self.refused = 0
        self._make = make
        self._changed = changed
        self._sessions = McpSessions(make, OPEN_S) if per_owner else None
        self._link: Link | None = None
        self._listed: tuple[RemoteTool, ...] | None = None
        self._was_listed = False
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()
        self._attempt: asyncio.Future[Link | TransportFailed] = asyncio.get_running_loop().create_future()
        self._first: asyncio.Future[Link | TransportFailed] = self._attempt
        self._until = asyncio.get_running_loop().time() + START_S
        self._keeper = asyncio.create_task(self._keep(), name=f"mcp server {name}")

    async def known(self) -> tuple[RemoteTool, ...] | None:
        """The tools, asked for anew where the server is there; None where it never was.

        Waits for a server that was just started, 15 s from its start at most.
        """
        if not self._first.done():
            await asyncio.wait({self._first}, timeout=max(0.0, self._until - asyncio.get_running_loop().time()))
        link = self._link
        if link is not None and not link.gone.is_set():
            try:
                async with asyncio.timeout(LIST_S):
                    self.tools = await link.list()
            except (TransportFailed, TimeoutError) as error:
                _log.warning("mcp server does not list its tools", server=self.name, reason=str(error))
        self._listed, self._was_listed = self.tools, True
        return self.tools

    async def call(self, owner: str, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool by the server's own name for it.

        Raises:
            TransportFailed: the server is away, or went away meanwhile.
            Exception: as `Link.call`.
        """
        try:
            if self._sessions is not None:
                return await self._sessions.call(owner, name, arguments)
            return await (await self._reached()).call(name, arguments)
        except TransportFailed as error:
            text = f"the MCP server `{self.name}` failed: {error}"
            raise TransportFailed(text, processed=error.processed, retry_after_s=error.retry_after_s) from error

    async def close(self) -> None:
        """End its sessions and its process; bounded."""
        self._keeper.cancel()
        sessions = [self._sessions.close()] if self._sessions is not None else []
        await asyncio.gather(self._keeper, *sessions, return_exceptions=True)

    async def _reached(self) -> Link:
        link = self._link
        if link is not None and not link.gone.is_set():
            return link
        attempt = self._attempt
        self._wanted.set()
        found = await asyncio.shield(attempt)
        if isinstance(found, TransportFailed):
            raise TransportFailed(str(found), processed=False) from found
        return found

    async def _keep(self) -> None:
        """Hold a session for as long as the server is wanted."""
        backoff = FIRST_BACKOFF_S
        while True:
            lasted = await self._one_session()
            if lasted > _GOOD_S:
                backoff = FIRST_BACKOFF_S
                continue
            self._wanted.clear()
            try:
                async with asyncio.timeout(backoff):
                    await self._wanted.wait()
            except TimeoutError:
                backoff = min(MAX_BACKOFF_S, backoff * 2)

    async def _one_session(self) -> float:
        """Begin one and follow it to its end; the seconds it lasted."""
        now = asyncio.get_running_loop().time
        try:
            link = await self._make(self._news.set)
        except ImportError as error:
            self._lost(f"the MCP SDK cannot be imported: {error}")
            return 0.0
        try:
            try:
                await link.open(OPEN_S)
                async with asyncio.timeout(LIST_S):
                    tools = await link.list()
            except (TransportFailed, TimeoutError) as error:
                self.words = "; ".join(link.words)
                self._lost(str(error) or f"it did not list its tools within {LIST_S:g} s")
                return 0.0
            began = now()
            self._up(link, tools)
            await self._follow(link)
            self._link = None
            self._lost("its session has ended")
            return now() - began
        finally:
            self._link = None
            await link.close()

    def _up(self, link: Link, tools: tuple[RemoteTool, ...]) -> None:
        self._link = link
        self.error = None
        self._take(tools)
        self._attempted(link)
        _log.info("mcp server reached", server=self.name, tools=len(tools))

    def _lost(self, reason: str) -> None:
        if reason != self.error:
            _log.warning("mcp server is away", server=self.name, reason=reason)
        was_reached = self.error is None
        self.error = reason
        if not was_reached:
            self._attempted(TransportFailed(reason, processed=False))

    def _attempted(self, found: Link | TransportFailed) -> None:
        attempt, self._attempt = self._attempt, asyncio.get_running_loop().create_future()
        if not attempt.done():
            attempt.set_result(found)

    async def _follow(self, link: Link) -> None:
        """Until the session has ended, or a server over HTTP does not answer."""
        while not link.gone.is_set():
            await self._something(link)
            if link.gone.is_set():
                return
            self._news.clear()
            try:
                async with asyncio.timeout(LIST_S):
                    self._take(await link.list())
            except (TransportFailed, TimeoutError) as error:
                _log.warning("mcp server does not list its tools", server=self.name, reason=str(error))
                # Nobody's calls are on this session; those of a child process are.
                if self._sessions is not None:
                    return
            if self._sessions is not None:
                self._sessions.sweep()

    async def _something(self, link: Link) -> None:
        waiting = {asyncio.ensure_future(link.gone.wait()), asyncio.ensure_future(self._news.wait())}
        try:
            timeout_s = LOOK_S if self._sessions is not None else None
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _take(self, tools: tuple[RemoteTool, ...]) -> None:
        self.tools = tools
        if self._was_listed and tools != self._listed:
            _log.info("mcp server changed its tools", server=self.name, tools=len(tools))
            self._changed()
