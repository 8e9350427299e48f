"""Owns one llama.cpp server: starts it in a process of its own, knows where it is, starts it again when it dies.

Knows processes and waits. What is asked of the server is `llamacpp.py`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from gateway.backends import llamacpp_child
from gateway.errors import UpstreamUnavailable

# Loading some tens of gigabytes from a slow disk.
_LOAD_S: Final = 600.0
# A server that stays up this long has proved itself: the next death is its first again.
_PROVED_S: Final = 60.0
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0
# Seconds a server gets to end by itself.
_END_S: Final = 3.0
_LONGEST_LINE: Final = 64 * 1024

_log: Any = structlog.get_logger("gateway.backends")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and the key it asks for: made anew at each start, so that nobody else on the machine has it."""

    url: str
    key: str


class LlamaProcess:
    """One server process, from the first time somebody needs it until `close`.

    Args:
        name: the backend's name, for the log.
        asked: what the server is to load: `path`, `model`, `slots`, `context_tokens`, `threads`.
        command: the program to run; the real one by default.
    """

    def __init__(self, name: str, asked: dict[str, Any], command: Sequence[str] | None = None) -> None:
        self._name = name
        self._asked = asked
        # Isolated: neither the working folder nor this one may shadow what the server imports.
        self._command = command or (sys.executable, "-I", str(Path(llamacpp_child.__file__)))
        self._keeper: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._address: Address | None = None
        self._failure: str | None = None
        self._again_at = 0.0
        self._closed = False

    def start(self) -> None:
        """Begin to load, without waiting for it. More than once is once."""
        if self._keeper is None and not self._closed:
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"llama.cpp {self._name}")

    async def address(self) -> Address:
        """Where it is; waits while it loads. The caller bounds the wait.

        Raises:
            UpstreamUnavailable: it does not run, and is not about to.
        """
        self.start()
        while self._address is None:
            if self._failure is not None or self._closed:
                left = max(0.0, self._again_at - asyncio.get_running_loop().time())
                raise UpstreamUnavailable(
                    f"The local model does not run: {self._failure or 'it was stopped'}.",
                    status=503,
                    retry_after_s=round(left, 1),
                )
            await self._changed.wait()
        return self._address

    async def close(self) -> None:
        """End the process."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        self._tell(None, None)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = _FIRST_WAIT_S
        while True:
            began = loop.time()
            self._tell(None, None)
            failure = await self._run()
            if loop.time() - began >= _PROVED_S:
                wait_s = _FIRST_WAIT_S
            _log.error("local model stopped", backend=self._name, reason=failure, again_in_s=wait_s)
            self._again_at = loop.time() + wait_s
            self._tell(None, failure)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _run(self) -> str:
        """One life of the process; why it ended."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_LONGEST_LINE,
                # Ctrl-C on the gateway's terminal is the gateway's: answers under way still need their server.
                start_new_session=True,
            )
        except OSError as error:
            return f"it cannot be started ({error.strerror})"
        try:
            key = secrets.token_urlsafe(24)
            said = await self._greet(process, key)
            if isinstance(said, str):
                return said
            _log.info("local model loaded", backend=self._name)
            self._tell(Address(said[0], key), None)
            code = await process.wait()
            return f"its process ended with code {code}"
        finally:
            await _end(process)

    async def _greet(self, process: asyncio.subprocess.Process, key: str) -> str | tuple[str]:
        """Say what to load; what went wrong, or the address in a tuple."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_LOAD_S):
                process.stdin.write(_encode({**self._asked, "key": key}) + b"\n")
                await process.stdin.drain()
                answer = msgspec.json.decode(await process.stdout.readline(), type=_Told)
        except TimeoutError:
            return f"it was not loaded within {_LOAD_S:g} s"
        except (OSError, ValueError, msgspec.DecodeError):
            return "its process ended while it loaded"
        return (answer.url,) if answer.url else answer.error or "it did not say why"

    def _tell(self, address: Address | None, failure: str | None) -> None:
        """Change what callers see, and wake those that wait."""
        self._address, self._failure = address, failure
        self._changed.set()
        self._changed = asyncio.Event()


class _Told(msgspec.Struct):
    url: str | None = None
    error: str | None = None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let it end by itself, for a moment; then end it. Not to be interrupted: a process must not be left behind."""
    if process.returncode is None:
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        ending = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({ending}, timeout=_END_S)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await ending
