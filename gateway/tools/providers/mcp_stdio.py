"""An MCP server as a child process: its pipes, and what it says on standard error.

Knows how the process is started and how much of its words the log takes. Imports the MCP SDK, which is heavy: `mcp_sdk.py`
says when.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import structlog
from mcp.client.stdio import StdioServerParameters, stdio_client

from gateway.tools.providers import mcp_child

_log = structlog.stdlib.get_logger("gateway.tools.mcp")

# A line of standard error is cut behind this many bytes; of more lines in a minute than this the log has the number alone.
MAX_LINE_BYTES: Final = 1000
MAX_LINES_A_MINUTE: Final = 120
# How long the last words of a process that has ended are waited for.
_LAST_WORDS_S: Final = 1.0


@asynccontextmanager
async def child_streams(
    server: str,
    command: str,
    args: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    heard: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[tuple[Any, Any]]:
    """The streams of a process that is started here, in a group of its own; leaving ends the whole group.

    `cwd` is where it starts. Of the gateway's environment it gets what finds programs and a home (`PATH`, `HOME`, `USER` and the like), and `env`.
    `heard` is told every line of its standard error that the log takes.

    Raises:
        OSError: it cannot be started.
    """
    path = env.get("PATH") or os.environ.get("PATH")
    program = str(cwd / command) if os.sep in command else command
    if await asyncio.to_thread(shutil.which, program, path=path) is None:
        raise FileNotFoundError(errno.ENOENT, f"there is no program `{command}`")
    parameters = StdioServerParameters(
        command=sys.executable,
        # Isolated and without site-packages: it starts in milliseconds and reads nobody's variables.
        args=["-I", "-S", mcp_child.__file__, str(os.getpid()), command, *args],
        env=dict(env),
        cwd=cwd,
        encoding_error_handler="replace",
    )
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as words:
        hearing = asyncio.create_task(_hear(server, read_end, heard), name=f"standard error of {server}")
        try:
            async with stdio_client(parameters, words) as streams:
                # The child has its own: so the end of the pipe is seen when the last of the group has gone.
                words.close()
                yield streams
        finally:
            words.close()
            await asyncio.wait({hearing}, timeout=_LAST_WORDS_S)
            hearing.cancel()


async def _hear(server: str, descriptor: int, heard: Callable[[str], None]) -> None:
    def tell(line: str) -> None:
        _log.info("mcp server says", server=server, line=line)
        heard(line)

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    lines = Lines(tell, loop.time)
    try:
        while block := await reader.read(4096):
            lines.feed(block)
        lines.end()
    finally:
        transport.close()


class Lines:
    """Bytes in, lines out: each of them cut, and not too many.

    Args:
        tell: takes a line.
        now: seconds, on any clock.
    """

    def __init__(self, tell: Callable[[str], None], now: Callable[[], float]) -> None:
        self._tell = tell
        self._now = now
        self._line = bytearray()
        self._minute = now()
        self._told = 0

    def feed(self, block: bytes) -> None:
        """Take some bytes."""
        first, *others = block.split(b"\n")
        self._line += first[: MAX_LINE_BYTES + 1 - len(self._line)]
        for piece in others:
            self.end()
            self._line += piece[: MAX_LINE_BYTES + 1]

    def end(self) -> None:
        """The line is complete."""
        line, self._line = bytes(self._line), bytearray()
        if not line.strip():
            return
        if self._now() - self._minute >= 60:
            if self._told > MAX_LINES_A_MINUTE:
                self._tell(f"({self._told - MAX_LINES_A_MINUTE} lines left out)")
            self._minute, self._told = self._now(), 0
        self._told += 1
        if self._told <= MAX_LINES_A_MINUTE:
            text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip()
            self._tell(text + "…" if len(line) > MAX_LINE_BYTES else text)
