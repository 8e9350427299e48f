"""Runs of the types that plugins add: asked for by `POST /v1/runs`, executed by the plugin's handler.

Knows how a handler's steps and progress are recorded under the run's lease, and that it is held to the version it began its attempt
with. What a type is, is `tools/run_types.py`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from gateway.clock import Clock
from gateway.config.versions import Versioned
from gateway.errors import InvalidRequest, NotAllowed, NotFound, StoreUnavailable, ToolFailed
from gateway.runs.frame import framed, read_frame
from gateway.runs.run import Attempt, Done, NewRun
from gateway.security.principal import NOWHERE, Origin, Principal
from gateway.store.run_records import Priority, RunRecords, RunRow
from gateway.tools.outcome import words_of
from gateway.tools.run_types import RunContext
from gateway.tools.spec import InvalidArguments, ToolFatal
from gateway.turn.prepare import Wishes
from gateway.turn.snapshot import Snapshot

FURTHEST_S: Final = 366 * 86_400.0
_LONGEST_STEP: Final = 128
_LARGEST_PROGRESS: Final = 65_536

_encode = msgspec.json.Encoder(order="deterministic").encode


class AskedTask(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/runs`."""

    type: str
    input: dict[str, Any] = {}
    priority: Priority = "normal"
    delay_s: float = 0.0


class TaskHandler:
    """Executes runs of plugins' types.

    Args:
        versions: where the active version is.
        records: where steps are kept.
        clock: time.
    """

    def __init__(self, versions: Versioned[Snapshot], records: RunRecords, clock: Clock) -> None:
        self._versions = versions
        self._records = records
        self._clock = clock

    def knows(self, kind: str) -> bool:
        """Whether a plugin of the active version executes runs of this type."""
        return kind in self._versions.current.tools.run_types

    async def execute(self, run: RunRow, attempt: Attempt) -> Done:
        """Have the plugin take the run to its end."""
        frame = read_frame(run.caller)
        lease = self._versions.acquire()
        try:
            snapshot = lease.value
            kind = snapshot.tools.run_types.get(run.kind)
            if kind is None:
                raise NotFound(f"No plugin executes runs of the type {run.kind!r} any more.")
            caller = frame.principal
            if not snapshot.tools.may_run(kind, caller):
                raise NotAllowed(f"This key may not ask for runs of the type {run.kind!r}.")
            await snapshot.keys.still(caller, self._clock.now(), lasting=True)
            context = RunContext(
                user=caller.user,
                key=caller.key_id,
                team=caller.team,
                session=frame.wishes.session,
                trace_id=run.trace_id,
                idempotency_key=run.id,
                resources=kind.resources,
                id=run.id,
                attempt=attempt.number,
                recorder=_Recorder(run, attempt, self._records, self._clock, await self._records.steps(run)),
            )
            limit_s = kind.timeout_s or snapshot.config.server.turn_timeout_s
            limit = asyncio.timeout(limit_s)
            try:
                async with limit:
                    # What a schedule gives has been looked at by nobody else.
                    made = await kind.run(kind.validator.validate(msgspec.json.decode(run.body)), context)
            except (StoreUnavailable, NotFound):
                raise
            except InvalidArguments as error:
                raise InvalidRequest(f"`input`: {words_of(error)}", param="input") from error
            except ToolFatal as error:
                raise ToolFailed(words_of(error)) from error
            except TimeoutError as error:
                why = f"did not end within {limit_s:g} s" if limit.expired() else f"failed: {words_of(error)}"
                raise ToolFailed(f"The handler of `{run.kind}` {why}.", retryable=True) from error
            except Exception as error:
                raise ToolFailed(f"The handler of `{run.kind}` failed: {words_of(error)}", retryable=True) from error
            return Done(_json(made, f"the handler of `{run.kind}` returned"))
        finally:
            self._versions.release(lease)


def task_run(
    asked: AskedTask,
    principal: Principal,
    wishes: Wishes,
    trace_id: str,
    snapshot: Snapshot,
    now: float,
    origin: Origin = NOWHERE,
) -> NewRun:
    """The run that is asked for, by `origin`.

    Raises:
        InvalidRequest: there is no such type for this caller, or its input cannot be.
    """
    tools = snapshot.tools
    kind = tools.run_types.get(asked.type)
    if kind is None or not tools.may_run(kind, principal):
        known = ", ".join(
            f"`{name}`" for name, each in sorted(tools.run_types.items()) if tools.may_run(each, principal)
        )
        raise InvalidRequest(
            f"`type` is {asked.type!r}; expected {known or 'a type that a plugin adds, and none does'}.", param="type"
        )
    if not 0 <= asked.delay_s <= FURTHEST_S:
        raise InvalidRequest(
            f"`delay_s` is {asked.delay_s!r}; expected seconds from 0 to {FURTHEST_S:.0f}.", param="delay_s"
        )
    try:
        given = kind.validator.validate(asked.input)
    except InvalidArguments as error:
        raise InvalidRequest(f"`input`: {error}", param="input") from error
    return NewRun(
        kind=asked.type,
        trace_id=trace_id,
        owner=principal.owner,
        body=_encode(given),
        caller=framed(principal, wishes, origin),
        idempotency_key=wishes.key,
        retried=wishes.retried,
        priority=asked.priority,
        key=principal.key_id,
        not_before=now + asked.delay_s if asked.delay_s else None,
    )


class _Recorder:
    """Writes down what a handler did, as long as the run is this process's."""

    def __init__(
        self, run: RunRow, attempt: Attempt, records: RunRecords, clock: Clock, known: Mapping[str, Any]
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._records = records
        self._clock = clock
        self._known = dict(known)

    async def report(self, progress: Any) -> None:
        told = _json(progress, "`report` was given")
        if len(told) > _LARGEST_PROGRESS:
            raise ToolFatal(f"`report` was given {len(told)} bytes; at most {_LARGEST_PROGRESS} are shown")
        await self._attempt.report(msgspec.json.decode(told))

    async def step(self, name: Any, make: Callable[[], Awaitable[Any]]) -> Any:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_STEP:
            raise ToolFatal(f"a step's name has 1 to {_LONGEST_STEP} characters, not {name!r}")
        if name not in self._known:
            # As it will be read, so that no attempt sees another value than a later one.
            value = msgspec.json.decode(_json(await make(), f"the step `{name}` returned"))
            if not await self._records.keep_step(self._run, name, value, now=self._clock.now()):
                raise StoreUnavailable("Another process has taken this run over.", retryable=True)
            self._known[name] = value
        return self._known[name]


def _json(value: Any, said: str) -> bytes:
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ToolFailed(f"What {said} has no JSON form: {words_of(error)}") from error
