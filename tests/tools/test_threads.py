from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from gateway.tools.threads import Threads

WHERE: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


async def until(condition: object) -> None:
    async with asyncio.timeout(5):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


async def test_a_function_runs_in_a_thread_with_its_context() -> None:
    threads = Threads()
    WHERE.set("here")
    assert await threads.run(lambda a, b: (a + b, WHERE.get(), threading.current_thread().daemon), 1, b=2) == (
        3,
        "here",
        True,
    )
    assert (threads.working, threads.abandoned) == (0, 0)


@pytest.mark.parametrize(
    ("raised", "caught"), [(ValueError, ValueError), (StopIteration, RuntimeError), (SystemExit, RuntimeError)]
)
async def test_what_it_raises_comes_back(raised: type[BaseException], caught: type[Exception]) -> None:
    def fail() -> None:
        raise raised("text")

    with pytest.raises(caught, match="text"):
        await Threads().run(fail)


async def test_no_more_run_at_once_than_allowed() -> None:
    threads = Threads(max_working=2)
    release = threading.Event()
    running = [asyncio.create_task(threads.run(release.wait, 5)) for _ in range(5)]
    await until(lambda: threads.working == 2)
    await asyncio.sleep(0)
    assert threads.working == 2
    release.set()
    assert await asyncio.gather(*running) == [True] * 5


async def test_threads_that_were_left_behind_are_counted_and_replaced_up_to_a_bound() -> None:
    threads = Threads(max_working=1, max_abandoned=1)
    release = threading.Event()

    async def give_up() -> None:
        task = asyncio.create_task(threads.run(release.wait, 5))
        await until(lambda: threads.working == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    await give_up()
    assert threads.abandoned == 1
    assert await asyncio.wait_for(threads.run(lambda: "fresh"), 5) == "fresh"
    await give_up()
    assert threads.abandoned == 2
    # The bound is reached: the second one holds on to the only slot.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(threads.run(lambda: "none left"), 0.05)
    release.set()
    await until(lambda: threads.abandoned == 0)
    assert await asyncio.wait_for(threads.run(lambda: "again"), 5) == "again"
