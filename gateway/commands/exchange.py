"""Questions of one worker to all others, carried by the supervisor.

Knows who was asked what and has not answered yet. Does not know what is asked: see `gateway/api/together.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count

import structlog

from gateway.commands.control import ASK_S, Answer, Answers, Ask, Channel

_log = structlog.stdlib.get_logger("gateway.workers")


class Exchange:
    """Every question under way, each in a task of its own: who reads a worker's messages never waits for another's."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._asked: dict[int, asyncio.Queue[tuple[int, bytes]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def carry(self, asker: Channel, asked: Ask, others: Mapping[int, Channel]) -> None:
        """Ask the others, by their numbers, and bring back what they answer in time."""
        task = asyncio.create_task(self._carry(asker, asked, others), name="exchange")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answered(self, number: int, answer: Answer) -> None:
        """Worker `number` has answered."""
        waiting = self._asked.get(answer.id)
        if waiting is not None:
            waiting.put_nowait((number, answer.content))

    async def close(self) -> None:
        """Wait for what is under way, which is bounded."""
        await asyncio.gather(*self._tasks)

    async def _carry(self, asker: Channel, asked: Ask, others: Mapping[int, Channel]) -> None:
        id = next(self._ids)  # noqa: A001 - the message's own word
        answers: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._asked[id] = answers
        contents: dict[int, bytes] = {}
        try:
            async with asyncio.timeout(ASK_S):
                for other in others.values():
                    await other.send(Ask(id, asked.what))
                while len(contents) < len(others):
                    number, content = await answers.get()
                    contents[number] = content
        except TimeoutError:
            _log.warning("a worker did not answer another in time", answered=sorted(contents))
        finally:
            del self._asked[id]
        await asker.send(Answers(asked.id, contents))
