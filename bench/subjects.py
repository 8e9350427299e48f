"""The processes under measurement: how they start, become ready, are pinned, metered and stopped.

Knows processes and ports. What they serve and what is asked of them stands elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "LD_LIBRARY_PATH")


class SubjectFailed(Exception):
    """A process didn't become ready; the message holds the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A process that serves on 127.0.0.1."""

    name: str
    pid: int
    port: int

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    def cpu_s(self) -> float:
        """CPU time that it and its children have used so far, in seconds."""
        return sum(_cpu_s(pid) for pid in family(self.pid))

    def resident_mb(self) -> float:
        """What it and its children hold in memory, in megabytes; NaN where the system does not say."""
        try:
            pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in family(self.pid))
        except OSError:
            return float("nan")
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core serves whom: the subject has one to itself, load and mock share the other. None: not pinned."""

    subject: int | None
    load: int | None

    @classmethod
    def of_this_machine(cls) -> Cores:
        """The last and the first of the cores this process may use, if there are two and pinning is possible."""
        if not hasattr(os, "sched_setaffinity"):
            return cls(None, None)
        usable = sorted(os.sched_getaffinity(0))
        return cls(usable[-1], usable[0]) if len(usable) > 1 else cls(None, None)


def inherited() -> dict[str, str]:
    """What a process may know of the caller's environment: nothing that could configure it."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def pin(pid: int, core: int | None) -> None:
    """Keep a process, 0 for this one, on a core. Does nothing without one."""
    if core is not None:
        os.sched_setaffinity(pid, {core})


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@asynccontextmanager
async def running(
    name: str, arguments: Sequence[str], *, core: int | None, ready_path: str | None = None, port: int | None = None
) -> AsyncIterator[Subject]:
    """Run `python -m ARGUMENTS --port PORT` until the block ends, once it accepts, or answers 200 at `ready_path`.

    Raises SubjectFailed when it doesn't in 30 seconds.
    """
    port = port or free_port()
    environment = {**inherited(), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as place, (Path(place) / "output").open("w+b") as output:
        command = [sys.executable, "-m", *arguments, "--port", str(port)]
        # An empty working directory: no `.env` and no `data/` of this checkout reaches the subject.
        process = await asyncio.create_subprocess_exec(
            *command, cwd=place, env=environment, stdout=output, stderr=output
        )
        pin(process.pid, core)
        try:
            if not await _becomes_ready(process, port, ready_path):
                ended = f"ended with code {process.returncode}" if process.returncode is not None else "gave no sign"
                output.seek(0)
                printed = output.read().decode(errors="replace")[-4000:]
                raise SubjectFailed(f"{name} {ended} before it was ready ({_START_TIMEOUT_S:g} s at most):\n{printed}")
            yield Subject(name, process.pid, port)
        finally:
            await stop(process)


async def _becomes_ready(process: asyncio.subprocess.Process, port: int, path: str | None) -> bool:
    deadline = monotonic() + _START_TIMEOUT_S
    while process.returncode is None and monotonic() < deadline:
        if await _answers(port, path):
            return True
        await asyncio.sleep(0.05)
    return False


async def _answers(port: int, path: str | None) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        if path is None:
            return True
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(5):
            return (await reader.readline()).split(b" ")[1:2] == [b"200"]
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a process: by its leave, else without."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def family(pid: int) -> list[int]:
    """The process and its children, grandchildren and so on."""
    found = [pid]
    for parent in found:
        # Absent on kernels without CONFIG_PROC_CHILDREN and on other systems: then the process alone counts.
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                continue
    return found


def _cpu_s(pid: int) -> float:
    try:
        # Fields are counted after the last ")": a process may have any character in its name.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _cpu_s_by_ps(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _cpu_s_by_ps(pid: int) -> float:
    """Where there is no /proc: `ps` prints [[days-]hours:]minutes:seconds."""
    with os.popen(f"ps -o cputime= -p {pid}") as answer:
        text = answer.read().strip()
    days, _, clock = text.rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part or 0)
    return seconds + 86_400 * int(days or 0)
