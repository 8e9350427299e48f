"""One session with an MCP server, lived in one task of its own, as the SDK's cancel scopes require.

Knows the SDK's client and what its errors mean. Does not know how the server is reached, nor who asks again. Imports the MCP
SDK, which is heavy: `mcp_sdk.py` says when.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self

import anyio
import pydantic
from mcp import types
from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError

from gateway import __version__
from gateway.tools.outcome import AnswerUnreadable, CallFailed, TransportFailed
from gateway.tools.providers.mcp_http import BROKEN, NOT_SENT, REFUSED
from gateway.tools.providers.mcp_mending import usable_tools
from gateway.tools.providers.mcp_result import value_of
from gateway.tools.providers.mcp_sdk import SessionGone
from gateway.tools.remote import RemoteTool
from gateway.tools.spec import InvalidArguments

Streams = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]

# Seconds a session may take to end before its task is cancelled: a process gets two to go by itself and two when asked to.
CLOSE_S: Final = 8.0
# Most pages and tools of a list: a server that goes on for ever is wrong.
_MAX_PAGES: Final = 100
_MAX_TOOLS: Final = 2000


class McpLink:
    """A session, from `open` until it is `gone`.

    Args:
        name: the server's, for messages.
        streams: opens the transport.
        changed: told when the server says that its tools have changed; None for who does not want to know.

    Attributes:
        gone: set once nothing can be asked any more.
        words: the last lines that a child process has written on its standard error; for operators, not for callers.
    """

    def __init__(self, name: str, streams: Streams, changed: Callable[[], None] | None = None) -> None:
        self.gone = asyncio.Event()
        self.words: deque[str] = deque(maxlen=2)
        self._name = name
        self._streams = streams
        self._changed = changed
        self._leave = asyncio.Event()
        self._mends = False
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, timeout_s: float) -> None:
        """Start the session.

        Raises:
            TransportFailed: it did not come about in time, or the server refused it.
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(opened), name=f"mcp session with {self._name}")
        await asyncio.wait({opened}, timeout=timeout_s)
        if not opened.done():
            opened.cancel()
            raise TransportFailed(f"it did not answer within {timeout_s:g} s", processed=False)
        opened.result()

    async def list(self) -> tuple[RemoteTool, ...]:
        """The server's tools, in its own order.

        Raises:
            TransportFailed: it did not list them.
        """
        client = self._asked()
        try:
            return await self._all_pages(client)
        except pydantic.ValidationError:
            # One tool that is wrong breaks the whole page: from now on each is looked at by itself.
            self._mends = True
        try:
            return await self._all_pages(client)
        except pydantic.ValidationError as error:
            raise TransportFailed("its list of tools is not what the protocol allows") from error

    async def _all_pages(self, client: Client) -> tuple[RemoteTool, ...]:
        found: list[RemoteTool] = []
        cursor: str | None = None
        try:
            for _ in range(_MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                found += [_tool(each) for each in page.tools]
                cursor = page.next_cursor
                if not cursor or len(found) > _MAX_TOOLS:
                    break
        except MCPError as error:
            raise _as_transport(error) from error
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise TransportFailed("the connection to the server ended", processed=False) from error
        return tuple(found[:_MAX_TOOLS])

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool by the server's own name for it, and return its result as a JSON value.

        Raises:
            TransportFailed: the session or the server ended, or never took the call.
            InvalidArguments: the server finds fault with the arguments.
            AnswerUnreadable: it answered what the protocol, or its own output schema, does not allow.
            CallFailed: the tool failed.
        """
        client = self._asked()
        try:
            result = await client.call_tool(name, dict(arguments))
        except MCPError as error:
            raise _meant(error) from error
        except (pydantic.ValidationError, RuntimeError) as error:
            # RuntimeError: what came is not what the tool's own output schema promises, or asks for more input.
            raise AnswerUnreadable("the server's answer is not what its tool promises") from error
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise TransportFailed("the connection to the server ended") from error
        return value_of(result)

    async def close(self) -> None:
        """End the session; bounded."""
        self._leave.set()
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=CLOSE_S)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_S)

    def _asked(self) -> Client:
        if self._client is None or self.gone.is_set():
            raise TransportFailed("the connection to the server ended", processed=False)
        return self._client

    async def _live(self, opened: asyncio.Future[None]) -> None:
        implementation = types.Implementation(name="hermes-gateway", version=__version__)
        transport = _Watched(self._streams(), self.gone, self._mend)
        client = Client(transport, client_info=implementation, cache=None, message_handler=self._heard)
        try:
            async with client:
                self._client = client
                if not opened.done():
                    opened.set_result(None)
                await self._until_over(client)
        except Exception as error:  # noqa: BLE001 - the task ends nowhere else; the SDK wraps whatever went wrong in groups
            if not opened.done():
                opened.set_exception(_as_transport(error))
        finally:
            self.gone.set()
            self._client = None
            if not opened.done():
                opened.set_exception(TransportFailed("the session ended while it began", processed=False))

    def _mend(self, received: Any) -> None:
        """Leave out of a list of tools what would make it unreadable."""
        answer = getattr(getattr(received, "message", None), "result", None)
        if self._mends and isinstance(answer, dict) and isinstance(answer.get("tools"), list):
            answer["tools"] = usable_tools(self._name, answer["tools"])

    async def _until_over(self, client: Client) -> None:
        waiting = {asyncio.ensure_future(self._leave.wait()), asyncio.ensure_future(self.gone.wait())}
        listening = asyncio.ensure_future(self._listen(client))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*waiting, listening):
                task.cancel()
            await asyncio.wait({*waiting, listening}, timeout=CLOSE_S)

    async def _listen(self, client: Client) -> None:
        """Newer servers tell of changes only to who asks for it."""
        capabilities = client.server_capabilities
        if self._changed is None or client.session.discover_result is None:
            return
        if capabilities.tools is None or not capabilities.tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._changed()
        except (MCPError, SubscriptionLost, TimeoutError):
            return  # looked at again from time to time anyway

    async def _heard(self, message: Any) -> None:
        if self._changed is not None and isinstance(message, types.ToolListChangedNotification):
            self._changed()


class _Watched:
    """A transport that says when nothing can come from it any more, and shows what comes before the SDK sees it."""

    def __init__(
        self, inner: AbstractAsyncContextManager[tuple[Any, Any]], gone: asyncio.Event, seen: Callable[[Any], None]
    ) -> None:
        self._inner = inner
        self._gone = gone
        self._seen = seen

    async def __aenter__(self) -> tuple[Any, Any]:
        read, write = await self._inner.__aenter__()
        return _WatchedStream(read, self._gone, self._seen), write

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


class _WatchedStream:
    def __init__(self, inner: Any, gone: asyncio.Event, seen: Callable[[Any], None]) -> None:
        self._inner = inner
        self._gone = gone
        self._seen = seen

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        try:
            received = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._gone.set()
            raise
        self._seen(received)
        return received

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = await self._inner.__aexit__(kind, error, trace)
        return ended


def _tool(tool: types.Tool) -> RemoteTool:
    hints = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    title = tool.title or hints.pop("title", None)
    return RemoteTool(
        name=tool.name,
        description=(tool.description or title or "").strip(),
        parameters=tool.input_schema,
        output=tool.output_schema,
        hints={name: value for name, value in hints.items() if isinstance(value, bool)},
    )


# The SDK's own words. Servers use the same code, the first of those that are theirs, for whatever goes wrong there.
_CLOSED: Final = ("Connection closed", "SSE stream ended")
_UNREADABLE: Final = ("Failed to parse", "Unexpected content type", "server answered a request with 202")


def _meant(error: MCPError) -> Exception:
    """An error answer by what it means for who called."""
    text = str(error) or f"error {error.code}"
    match error.code:
        case types.CONNECTION_CLOSED if text.startswith(_CLOSED):
            return TransportFailed("the connection to the server ended before it answered")
        case types.INVALID_REQUEST if text == "Session terminated":
            return SessionGone()
        case types.INVALID_REQUEST | types.PARSE_ERROR if text.startswith(_UNREADABLE):
            return AnswerUnreadable("the server's answer is not what the protocol allows")
        case code if code == NOT_SENT:
            return TransportFailed(text, processed=False)
        case code if code == BROKEN:
            return TransportFailed(text)
        case code if code == REFUSED:
            return CallFailed(text)
        case types.INVALID_PARAMS:
            return InvalidArguments(text)
        case _:
            return CallFailed(text)


def _as_transport(error: BaseException) -> TransportFailed:
    """Why a session did not come about, out of the groups that the SDK wraps errors in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TransportFailed):
        return error
    if isinstance(error, MCPError):
        meant = _meant(error)
        return TransportFailed(str(meant), processed=False)
    if isinstance(error, OSError):
        return TransportFailed(f"it cannot be started: {error.strerror or error}", processed=False)
    return TransportFailed(
        f"it did not begin a session as the protocol has it: {type(error).__name__}", processed=False
    )
