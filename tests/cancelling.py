"""Work that is cancelled where it waits for the time of a given number: at once, or just as it would go on.

Knows tasks and steps. What must be left of such work is the test's to say.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

Cancel = Callable[[asyncio.Task[Any], Any], None]


@types.coroutine
def stepped(work: Coroutine[Any, Any, Any], at: int, cancel: Cancel) -> Generator[Any, Any, bool]:
    """Go through work in this task, and cancel it where it waits for the time `at`, from 1; whether it came to wait so often."""
    task = asyncio.current_task()
    assert task is not None
    number = 0
    raised: BaseException | None = None
    while True:
        try:
            awaited = work.send(None) if raised is None else work.throw(raised)
        except StopIteration:
            return number >= at
        number, raised = number + 1, None
        if number == at:
            cancel(task, awaited)
        try:
            yield awaited
        except BaseException as error:  # noqa: BLE001 - all of it is the work's
            raised = error


def at_once(task: asyncio.Task[Any], awaited: Any) -> None:
    """While it waits."""
    task.cancel()


def just_as_it_goes_on(task: asyncio.Task[Any], awaited: Any) -> None:
    """What it waits for has come, and it has not been told yet."""
    if awaited is None:
        task.cancel()
    else:
        awaited.add_done_callback(lambda _: task.cancel())
