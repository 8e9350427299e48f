"""What was used, added up here and written behind.

Knows rows and when they are written. What could not be written yet is kept and written later; where too much of it waits, the
figures of different days and tags run together no further: the newest are dropped, and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec
import structlog

from gateway.errors import StoreUnavailable
from gateway.store.usage_records import UsageRow, Usages

# Seconds in which turns are added up before they are written: what a process that is killed forgets at most.
GATHER_S: Final = 1.0
_RETRY_S: Final = 5.0
_MOST_ROWS: Final = 20_000
# Turns of one row that wait to be added up.
_MOST_COUNTS: Final = 4096
_CLOSE_S: Final = 5.0

_log = structlog.stdlib.get_logger("gateway.usage")

_Place = tuple[str, str, str, str, str, str, str, str, str]
# In the order of `UsageRow`: turns (0 for what was used outside of any), those that did not end well, tokens of prompts, those of
# them that were cached, tokens of answers, cost in billionths of the currency, and whether the price of some of it is not known.
Counts = tuple[int, bool, int, int, int, int, bool]


class UsageWriter:
    """Adds up and writes.

    Args:
        usage: where to.

    Attributes:
        dropped: turns whose usage was lost so far.
    """

    def __init__(self, usage: Usages) -> None:
        self._usage = usage
        self._rows: dict[_Place, list[tuple[int, ...]]] = {}
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self.dropped = 0

    def open(self) -> None:
        """Begin to write, in a task of its own."""
        self._task = asyncio.create_task(self._run(), name="usage-writer")

    def add(self, place: _Place, counts: Counts) -> None:
        """Count one turn.

        Args:
            place: day, owner, key, user, team, tags, route, model and backend, as in `UsageRow`.
            counts: what is to be added up there.
        """
        waiting = self._rows.get(place)
        if waiting is None:
            if len(self._rows) >= _MOST_ROWS:
                self.dropped += 1
                return
            waiting = self._rows[place] = []
            self._wake.set()  # once for each place: what waits is written whole
        elif len(waiting) >= _MOST_COUNTS:
            waiting[:] = [_sum(waiting)]
        # Added up once a second, all at once: that costs a tenth of seven additions a turn.
        waiting.append(counts)

    async def flush(self) -> None:
        """Write what was added by now. Raises `StoreUnavailable`; nothing is lost by it."""
        async with self._writing:
            rows = {place: _sum(counts) for place, counts in self._rows.items()}
            self._rows = {}
            if not rows:
                return
            try:
                await self._usage.add([_row(place, counts) for place, counts in rows.items()])
            except BaseException:
                # Whether a commit whose answer was lost has happened is not known; money that is counted twice does less
                # harm than money that is not counted.
                for place, counts in rows.items():
                    self._rows.setdefault(place, []).append(counts)
                raise

    async def close(self) -> None:
        """Write what is left, and stop."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.flush()
        except (StoreUnavailable, TimeoutError):
            lost = sum(_sum(counts)[0] for counts in self._rows.values())
            self.dropped += lost
            _log.error("usage was lost", turns=lost)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(_RETRY_S if self._failing else GATHER_S)
            self._wake.clear()
            try:
                await self.flush()
                self._failing = False
            except StoreUnavailable as error:
                if not self._failing:
                    _log.warning("usage cannot be written for now", reason=error.message)
                self._failing = True
                self._wake.set()
            except Exception:  # noqa: BLE001 - nobody else would tell, and what was added waits for the next attempt
                if not self._failing:
                    _log.exception("usage could not be written")
                self._failing = True
                self._wake.set()


def _sum(counts: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*counts, strict=True)))


def _row(place: _Place, counts: tuple[int, ...]) -> UsageRow:
    names = UsageRow.__struct_fields__
    return msgspec.convert(dict(zip(names, (*place, *counts), strict=True)), UsageRow)
