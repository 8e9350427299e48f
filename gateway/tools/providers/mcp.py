"""The tools of one MCP server as a ToolProvider.

Knows their names here, what the server's hints and the operator's words make of them, and the lock of a pinned server. Does
not know how the server is reached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec
import structlog

from gateway.config.mcp_servers import McpServerConfig
from gateway.errors import Problem
from gateway.tools.decorator import deletes_by_name
from gateway.tools.lock import LOCK_NAME
from gateway.tools.names import callable_name
from gateway.tools.provider import Hook
from gateway.tools.providers.mcp_server import McpServer
from gateway.tools.remote import RemoteTool
from gateway.tools.spec import ToolContext, ToolSpec, make_spec
from gateway.tools.validate import ArgumentValidator, SchemaInvalid

_log = structlog.stdlib.get_logger("gateway.tools.mcp")

_EMPTY: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


def is_allowed(name: str, config: McpServerConfig) -> bool:
    """Whether a tool of the server, by the server's own name for it, may be offered at all."""
    return any(fnmatchcase(name, pattern) for pattern in config.allow)


class McpProvider:
    """One server's tools in one version.

    Attributes:
        told: what of the server is not offered, and why, for who checks; complete once `list` has answered. None of it keeps
            a version from serving.
        absent: globs of names that may be tools of this server, though it does not offer them now.
    """

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        server: McpServer | None,
        locked: Sequence[RemoteTool] | None,
        put_back: Callable[[McpServer], None],
        *,
        timeout_s: float,
        retries: int = 0,
        place: Problem,
    ) -> None:
        """Nothing is asked yet.

        Args:
            name: the server's, as configured.
            config: what is offered of it.
            server: the server, already taken; None to go by the lock alone.
            locked: its tools as the lock has them; None where the lock does not know it.
            put_back: takes the server back.
            timeout_s: seconds a call may take.
            retries: how often a call is made again whose connection failed; of a writing one only where it surely was not sent.
            place: where it is configured, as a problem without words.
        """
        self.told: list[Problem] = []
        self.absent: tuple[str, ...] = ()
        self._server_name = name
        self._config = config
        self._server = server
        self._locked = locked
        self._put_back = put_back
        self._timeout_s = timeout_s
        self._retries = retries
        self._place = place
        self._tools: dict[str, RemoteTool] = {}
        self._specs: tuple[ToolSpec, ...] | None = None

    @property
    def name(self) -> str:
        """`mcp:` and the server's name."""
        return f"mcp:{self._server_name}"

    @property
    def hooks(self) -> Mapping[str, Sequence[Hook]]:
        """None: a server's code does not run here."""
        return {}

    @property
    def fingerprint(self) -> str:
        """A hash of how the server is reached, secrets left out, and of what is offered of it."""
        shown = self._config.model_dump(mode="json", exclude={"env", "headers"})
        return hashlib.sha256(msgspec.json.encode([self.name, shown], order="sorted")).hexdigest()

    async def open(self) -> None:
        """Nothing to do: the server was started when it was taken."""

    async def list(self) -> Sequence[ToolSpec]:
        """The server's tools that may be offered, in its order.

        A server that is away is known by what it offered last, else by its lock, else not at all.
        """
        if self._specs is None:
            found = await self._server.known() if self._server is not None else None
            if self._server is not None and self._server.error is not None:
                unknown = found is None and self._locked is None
                self._tell(self._away(self._server), "error", loud=unknown)
            if self._server is None and self._locked is None:
                self._tell(f"{LOCK_NAME} does not know the MCP server `{self._server_name}`: its tools are not checked")
            tools = self._locked if found is None else found
            if tools is None:
                # What it will offer is not known: whoever names its tools, or any by their own names, may be right.
                self.absent = ("*",)
            self._specs = self._made(
                self._agreed([tool for tool in tools or () if is_allowed(tool.name, self._config)])
            )
        return self._specs

    async def check(self) -> tuple[Problem, ...]:
        """Whether the server is there; nothing else of it can be tried without effects."""
        if self._server is None or self._server.error is None:
            return ()
        return (self._problem(self._away(self._server)),)

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Call the tool under the server's own name for it, in the caller's own session where the server is reached over HTTP.

        Raises:
            TransportFailed: the server is away, or went away meanwhile.
            InvalidArguments: the server finds fault with the arguments.
            CallFailed: the tool failed.
        """
        assert self._server is not None, "a registry that only looks is not called"
        owner = msgspec.json.encode([context.key, context.user]).decode()
        return await self._server.call(owner, self._tools[name].name, arguments)

    async def probe(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> tuple[bool, Any]:
        """No MCP tool can be probed."""
        raise NotImplementedError

    async def close(self) -> None:
        """Give the server back."""
        server, self._server = self._server, None
        if server is not None:
            self._put_back(server)

    def _away(self, server: McpServer) -> str:
        words = f"; it said: {server.words}" if server.words else ""
        return f"the MCP server `{self._server_name}` is away: {server.error}{words}"

    def _agreed(self, tools: Sequence[RemoteTool]) -> Sequence[RemoteTool]:
        """Of a pinned server, what is exactly as its lock has it."""
        if not self._config.pin:
            return tools
        locked = {tool.name: tool.digest for tool in self._locked or ()}
        kept = []
        for tool in tools:
            if locked.get(tool.name) == tool.digest:
                kept.append(tool)
                continue
            self.absent += (self._called(tool), callable_name(tool.name))
            if self._locked is None:
                continue
            what = "has another description or schema than" if tool.name in locked else "is not in"
            self._tell(
                f"`{tool.name}` of the pinned MCP server `{self._server_name}` {what} {LOCK_NAME} and is not offered; "
                "look at it, then `hermes-gateway tools --lock`",
                loud=True,
            )
        if self._locked is None and tools:
            self._tell(
                f"{LOCK_NAME} does not know the pinned MCP server `{self._server_name}`, and none of its {len(tools)} tools "
                "is offered; look at them, then `hermes-gateway tools --lock`",
                loud=True,
            )
        if self._server is not None:
            self._server.refused = len(tools) - len(kept)
        return kept

    def _made(self, tools: Sequence[RemoteTool]) -> tuple[ToolSpec, ...]:
        specs = []
        for tool in tools:
            called = self._called(tool)
            parameters = {**_EMPTY, **tool.parameters}
            try:
                ArgumentValidator(parameters)
            except SchemaInvalid as error:
                self._tell(f"`{tool.name}` of `{self._server_name}` is not offered: its schema is invalid: {error}")
                continue
            if called in self._tools:
                self._tell(f"`{self._server_name}` lists `{tool.name}` twice; the first one is offered")
                continue
            try:
                spec = self._spec(called, tool, parameters)
            except RecursionError:
                self._tell(f"`{tool.name}` of `{self._server_name}` is not offered: its schema is nested too deeply")
                continue
            self._tools[called] = tool
            specs.append(spec)
        return tuple(specs)

    def _spec(self, called: str, tool: RemoteTool, parameters: Mapping[str, Any]) -> ToolSpec:
        deletes = deletes_by_name(tool.name) or self._overridden(tool.name)
        reads = tool.hints.get("readOnlyHint", False)
        return make_spec(
            name=called,
            description=tool.description or tool.name,
            parameters=parameters,
            provider=self.name,
            origin=f"{self._place.file}:{self._place.line}",
            timeout_s=self._timeout_s,
            retries=self._retries,
            writes=deletes or not reads,
            deletes=deletes or (tool.hints.get("destructiveHint", False) and not reads),
            remote_name=tool.name,
            output=tool.output,
            implementation=tool.digest,
        )

    def _overridden(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._config.overrides)

    def _called(self, tool: RemoteTool) -> str:
        return callable_name(f"{self._server_name}__{tool.name}")

    def _problem(self, text: str, severity: str = "error") -> Problem:
        return Problem(self._place.file, self._place.line, text, severity)

    def _tell(self, text: str, severity: str = "warning", *, loud: bool = False) -> None:
        self.told.append(self._problem(text, severity))
        (_log.error if loud else _log.warning)("mcp tools not as expected", server=self._server_name, reason=text)
