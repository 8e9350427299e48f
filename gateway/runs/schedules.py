"""Runs that are begun again and again, at the times of a cron expression.

Every process that executes runs looks at the clock; a time of a schedule names one run, so it is begun once. A time that passed
while nobody looked is made up for within a minute, and left out after that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo

import msgspec
import structlog
from cronsim import CronSim

from gateway.clock import Clock
from gateway.config.runs import ScheduleConfig
from gateway.errors import GatewayError
from gateway.runs.frame import framed
from gateway.runs.run import NewRun
from gateway.security.principal import Principal
from gateway.store.run_records import RunRow
from gateway.turn.prepare import Wishes

# Seconds for which a time that passed is made up for.
LATE_S: Final = 60.0

_log: Any = structlog.get_logger("gateway.runs")


class Submits(Protocol):
    """What takes a run on."""

    async def submit(self, new: NewRun) -> RunRow:
        """Record and queue a run."""
        ...


class Schedules:
    """Begins what is due.

    Args:
        runs: takes runs on.
        schedules: by name, as they are now.
        named: who the key of this name makes of its bearer, or None.
        clock: time.
    """

    def __init__(
        self,
        runs: Submits,
        schedules: Callable[[], Mapping[str, ScheduleConfig]],
        named: Callable[[str], Awaitable[Principal | None]],
        clock: Clock,
    ) -> None:
        self._runs = runs
        self._schedules = schedules
        self._named = named
        self._clock = clock
        self._begun: dict[str, str] = {}

    async def begin(self) -> None:
        """Begin what has become due since the last look.

        Raises:
            StoreUnavailable: it cannot be recorded.
        """
        now = self._clock.now()
        for name, schedule in self._schedules().items():
            time = last_time(schedule, now)
            if time is None or self._begun.get(name) == time:
                continue
            caller = await self._named(schedule.key)
            if caller is None:
                _log.error("a schedule names a key that is not there", schedule=name, key=schedule.key)
                self._begun[name] = time
                continue
            trace_id = hashlib.sha256(f"{name}\0{time}".encode()).hexdigest()[:32]
            body = schedule.input if schedule.request is None else {**schedule.request, "stream": False}
            new = NewRun(
                kind=schedule.type or "chat",
                trace_id=trace_id,
                owner=caller.owner,
                body=msgspec.json.encode(body),
                caller=framed(caller, Wishes()),
                key=caller.key_id,
            )
            try:
                await self._runs.submit(new)
            except GatewayError as error:
                if not error.retryable:
                    raise
                _log.warning("a scheduled run could not be begun yet", schedule=name, reason=error.message)
                continue
            self._begun[name] = time
            _log.info("a scheduled run was begun", schedule=name, time=time, run=new.id)


def last_time(schedule: ScheduleConfig, now: float) -> str | None:
    """The latest time of a schedule within the last minute, in ISO form; None where there is none."""
    here = datetime.fromtimestamp(now, UTC).astimezone(ZoneInfo(schedule.timezone))
    latest: datetime | None = None
    for time in CronSim(schedule.cron, here - timedelta(seconds=LATE_S)):
        if time > here:
            break
        latest = time
    return None if latest is None else latest.astimezone(UTC).isoformat()
