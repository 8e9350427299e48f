"""How a worker's process begins, and how its end is heard of.

On Linux it is forked by the nursery (`nursery.py`), which has loaded already what workers need; elsewhere, and where the
nursery cannot be asked, it is a program of its own. Does not know what workers are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from typing import Final, Protocol

import structlog

from gateway.config.bundle import Bundle

_log = structlog.stdlib.get_logger("gateway.workers")

# Run with exactly the modules that this process finds, wherever it was started from.
_PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[3:]; from gateway.commands.loading import loaded; "
    "sys.exit(loaded('gateway.commands.{module}').main(int(sys.argv[1]), {second}))"
)
_WORKER: Final = _PROGRAM.format(module="serve_worker", second="int(sys.argv[2])")
_NURSERY: Final = _PROGRAM.format(module="nursery", second="sys.argv[2]")
# Bytes of a process's id on the nursery's wire.
PID_BYTES: Final = 4
# Seconds that the nursery may take to load.
_LOAD_S: Final = 60.0
# Encoders that come with packages: what they need is read once. Of named models nobody knows whether they bear a fork.
_PACKAGED: Final = frozenset({"auto", "minilm", "multilingual"})
# Linux's number for it, in `prctl`.
_CHILD_SUBREAPER: Final = 36


class Process(Protocol):
    """A worker's process."""

    @property
    def pid(self) -> int:
        """Its id."""
        ...

    async def wait(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        ...

    def send_signal(self, number: int) -> None:
        """Send it a signal. Raises `ProcessLookupError` where it has ended."""
        ...


class Children:
    """Begins workers.

    Args:
        listener: the socket that they accept connections from.
        encoder: what their nursery loads, as `encoder_of` has it.
    """

    def __init__(self, listener: socket.socket, encoder: str) -> None:
        self._listener = listener
        self._encoder = encoder
        self._forks = _adopt(orphans=False)
        self._nursery: _Nursery | None = None
        self._asking = asyncio.Lock()
        self._closed = False

    async def open(self) -> None:
        """Let the nursery begin to load, where there is to be one."""
        if self._forks:
            self._nursery = await _Nursery.start(self._encoder)

    async def begin(self, wire: socket.socket) -> Process:
        """A worker with this end of its wire, which may be closed here afterwards.

        Raises:
            OSError: the system has no room for another process, or none is to begin any more.
        """
        if self._forks:
            async with self._asking:
                try:
                    return await self._fork(wire)
                except (OSError, TimeoutError) as error:
                    await self._lose()
                    if not self._closed:
                        _log.warning(
                            "the workers' nursery does not answer; a worker starts by itself", reason=repr(error)
                        )
        if self._closed:
            raise ConnectionAbortedError("no worker begins any more")
        return await _execute(_WORKER, wire, str(self._listener.fileno()), self._listener.fileno())

    async def close(self) -> None:
        """End the nursery, and begin no more. Workers live on."""
        self._closed = True
        if self._nursery is not None:
            self._nursery.kill()  # whoever waits for a worker hears of it
        async with self._asking:
            await self._lose()

    async def _fork(self, wire: socket.socket) -> Process:
        if self._nursery is None:
            self._nursery = await _Nursery.start(self._encoder)
        if self._closed:
            raise ConnectionAbortedError("no worker begins any more")
        # Only meanwhile: what a worker's tools leave behind when it dies is not this process's to bury.
        _adopt(orphans=True)
        try:
            return _Forked(await self._nursery.fork(wire, self._listener))
        finally:
            _adopt(orphans=False)

    async def _lose(self) -> None:
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            await nursery.close()


class _Nursery:
    """The nursery's process, and the wire to it."""

    def __init__(self, process: asyncio.subprocess.Process, wire: socket.socket) -> None:
        self._process = process
        self._wire = wire

    @classmethod
    async def start(cls, encoder: str) -> _Nursery:
        """Begin to load."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            return cls(await _execute(_NURSERY, theirs, encoder), ours)

    async def fork(self, wire: socket.socket, listener: socket.socket) -> int:
        """A worker's process; its id. Raises OSError and TimeoutError where there is none to be had."""
        socket.send_fds(self._wire, [b"w"], [wire.fileno(), listener.fileno()])
        async with asyncio.timeout(_LOAD_S):
            answer = await asyncio.get_running_loop().sock_recv(self._wire, PID_BYTES)
        if len(answer) < PID_BYTES:
            raise ConnectionResetError("it has ended")
        return int.from_bytes(answer, "big")

    def kill(self) -> None:
        """End it at once: it keeps nothing, and a wish that it has not heard yet must not be granted later."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End it."""
        self.kill()
        await self._process.wait()
        self._wire.close()


class _Forked:
    """A worker that this process adopted."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Readable once it has ended, and never another process's.
        self._ended = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._ended, self._bury)

    async def wait(self) -> int:
        """Wait for its end; the exit code."""
        return await asyncio.shield(self._code)

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self._code.done():
            raise ProcessLookupError
        signal.pidfd_send_signal(self._ended, number)

    def _bury(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ended)
        os.close(self._ended)
        _, status = os.waitpid(self.pid, 0)
        self._code.set_result(os.waitstatus_to_exitcode(status))


def encoder_of(bundle: Bundle) -> str:
    """The packaged encoder that all workers will ask, or an empty string."""
    semantic = bundle.config.router.semantic
    if not semantic.enabled or not any(route.utterances for route in bundle.routes):
        return ""
    return semantic.encoder if isinstance(semantic.encoder, str) and semantic.encoder in _PACKAGED else ""


def _adopt(*, orphans: bool) -> bool:
    """Whether orphans below this process become its children from now on; False where this system cannot do that."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        os.close(os.pidfd_open(os.getpid()))
        return bool(ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, int(orphans), 0, 0, 0) == 0)
    return False


async def _execute(program: str, wire: socket.socket, second: str, *more: int) -> asyncio.subprocess.Process:
    """A Python process with this wire, and other file descriptors."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", program, str(wire.fileno()), second, *sys.path),
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=(wire.fileno(), *more),
        # Whoever sees a connection first takes one, not all that wait: they spread over the workers.
        env={**os.environ, "UV_TCP_SINGLE_ACCEPT": "1"},
        # What is typed in a terminal is this process's to hear: workers would otherwise be told twice.
        start_new_session=True,
    )
