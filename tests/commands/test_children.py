"""Workers that cannot begin, or need not any more, hold nobody up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest

from gateway.commands.children import Children, Process
from gateway.commands.supervisor import Supervisor
from tests.e2e.test_workers import below

forking = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers do not fork")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@forking
@pytest.mark.timeout(120)
async def test_who_waits_for_a_worker_that_loads_hears_at_once_that_none_begins_any_more(
    listener: socket.socket,
) -> None:
    before = below(os.getpid())
    children = Children(listener, "")
    await children.open()
    (nursery,) = below(os.getpid()) - before
    os.kill(nursery, signal.SIGSTOP)  # it loads for ever
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = asyncio.create_task(children.begin(theirs))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(30):  # half of what one may take to load
            await children.close()
            with pytest.raises(ConnectionAbortedError):
                await waiting
            with pytest.raises(ConnectionAbortedError):
                await children.begin(theirs)
    assert below(os.getpid()) - before == set()


@forking
def test_a_nursery_whose_second_fork_fails_does_not_take_itself_for_a_worker() -> None:
    program = """if True:
        import os
        from gateway.commands import nursery
        real, calls = os.fork, []
        def fork():
            calls.append(1)
            if len(calls) == 2:
                raise BlockingIOError("no room")
            return real()
        os.fork = fork
        try:
            print("went on as", nursery._forked())
        except OSError as error:
            print(type(error).__name__)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("ChildProcessError\n", "")


async def test_a_worker_that_cannot_begin_is_one_that_ended(listener: socket.socket) -> None:
    class Full:
        async def begin(self, wire: socket.socket) -> Process:
            raise BlockingIOError(11, "Resource temporarily unavailable")

    place: Any = None
    supervisor = Supervisor(2, listener, cast(Any, None), None, place, cast(Children, Full()))
    code, failure = await supervisor._live(1)
    assert code == 1
    assert failure is not None
    assert "Resource temporarily unavailable" in failure
