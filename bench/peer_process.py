"""A peer's process: from its start to its first answer, until it is stopped."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Final

from bench.peer_list import Peer
from bench.peer_rounds import asking
from bench.probe import Target
from bench.subjects import Cores, Subject, SubjectFailed, free_port, inherited, pin, stop

_START_S: Final = 60.0


@asynccontextmanager
async def served_by(peer: Peer, mock: Subject, cores: Cores) -> AsyncIterator[Subject]:
    """A peer's process until the block ends, from when it has answered a request."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-peer-") as place:
        folder = Path(place)
        command = peer.start(folder, mock.url, port)
        with (folder / "output").open("w+b") as output:
            began = monotonic()
            process = await asyncio.create_subprocess_exec(
                *command, cwd=folder, env={**inherited(), **peer.environment}, stdout=output, stderr=output
            )
            try:
                pin(process.pid, cores.subject)
                while not await _answers(peer, port if not peer.says_port else _said_port(folder)):
                    if process.returncode is not None or monotonic() - began > _START_S:
                        output.seek(0)
                        raise SubjectFailed(output.read().decode(errors="replace")[-1500:])
                    await asyncio.sleep(0.01)
                yield Subject(peer.name, process.pid, port if not peer.says_port else _said_port(folder))
            finally:
                await stop(process)


def _said_port(folder: Path) -> int:
    try:
        return int((folder / "port").read_text() or 0)
    except OSError:
        return 0


async def _answers(peer: Peer, port: int) -> bool:
    if not port:
        return False
    target = Target(f"http://127.0.0.1:{port}", asking(peer, f"http://127.0.0.1:{port}", stream=False))
    try:
        await target.ask_once()
    except OSError:
        return False
    finally:
        target.close()
    return not target.errors
