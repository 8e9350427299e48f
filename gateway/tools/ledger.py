"""The ledger: a writing tool's effect happens once, whatever is retried, re-delivered or resumed.

Knows what makes two calls one effect, what is written before and after it, and what is told of an effect whose end nobody
saw. Does not know SQL, turns or how a tool runs.

An effect is begun in the ledger, made, and ended in the ledger. Who finds it ended gets what it came to; who finds it begun
waits for whoever makes it; and where they are gone, the tool's `probe` says whether it happened. Without a probe it is
`unknown`: the model is told, operators settle it, and it is never made again by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import structlog

from gateway.clock import Clock
from gateway.errors import StoreUnavailable
from gateway.observe.events import Recorder
from gateway.store.turn_records import EffectRow, Effects, EffectStatus
from gateway.tools.outcome import Done, words_of
from gateway.tools.result import failure, noted
from gateway.tools.spec import ToolSpec

# Beyond its timeout, a tool may take this long to notice and be written down.
_GRACE_S = 5.0
# A call that was given up may still be at work, in a thread that nobody can stop. While its process lives, a probe that has
# found nothing is not believed for this long; nor is an effect counted as abandoned.
LINGER_S: Final = 60.0
_LOOK_AGAIN_S = 0.2
# How often an end is tried to be written down; after that the effect is `unknown` to whoever comes next.
_WRITES = 5
_WRITE_AGAIN_S = 0.5
_MAX_BYTES = 8192
_EARLIER: Final = "This had been done before, with other arguments than these. It was not done again: the result is that of the earlier call."
# The note of an effect whose tool ended the turn: it does so again for whoever asks again.
_FATAL: Final = "the tool ended the turn"

_ELSE: Final = "another call of this turn stands in its place"
ABANDONED: Final = "the process that ran it has ended"

_Result = TypeVar("_Result")
Probe = Callable[[Mapping[str, Any]], Awaitable[tuple[bool, str]]]
Run = Callable[[], Awaitable[Done]]

_encode = msgspec.json.Encoder(order="deterministic").encode
_log: Any = structlog.get_logger("gateway.effects")


@dataclass(frozen=True, slots=True)
class EffectPlace:
    """Which call of which turn: without a declared key, what makes an effect this one.

    Attributes:
        turn_id: the same for every attempt at the turn.
        round: counted from 1.
        position: of the call in its answer, counted from 0.
    """

    owner: str
    turn_id: str
    trace_id: str
    round: int
    position: int


class Ledger:
    """Makes effects once.

    Args:
        store: where they are written down.
        clock: for times and waits.
        holder: this process, for others that find its effects begun.
        alive: whether a holder may still be at work.
    """

    def __init__(self, store: Effects, clock: Clock, holder: str, alive: Callable[[str], bool]) -> None:
        self._store = store
        self._clock = clock
        self._holder = holder
        self._alive = alive
        self._running: dict[tuple[str, str], _Running] = {}

    @property
    def running(self) -> int:
        """How many effects this process is making."""
        return len(self._running)

    async def perform(
        self,
        place: EffectPlace,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        key: str,
        run: Run,
        probe: Probe | None,
        record: Recorder,
    ) -> Done:
        """Make an effect, or tell what came of it before.

        Args:
            place: the call.
            spec: the writing tool.
            arguments: as they were validated.
            key: the call's `effect_key`.
            run: makes it; raises nothing but its cancellation.
            probe: says of a call with these arguments whether it happened, and what the model is to see if so.
            record: takes `effect.*` events.

        Cancelling it leaves the effect to itself: it is made and written down.

        Raises:
            StoreUnavailable: it could not be begun, and was not made.
        """
        canonical = _encode(arguments).decode()
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        known = self._running.get((place.owner, key))
        if known is not None:
            if known.arguments_hash != digest and key == _key_of_place(place.turn_id, place.round, place.position):
                return _unknown(_ELSE)
            done: Done = await asyncio.shield(known.task)
            if done.ok and known.arguments_hash != digest:
                done = _otherwise(done)
            return msgspec.structs.replace(done, replayed=True)
        row = EffectRow(
            id=f"eff_{secrets.token_hex(12)}",
            effect_key=key,
            owner=place.owner,
            turn_id=place.turn_id,
            trace_id=place.trace_id,
            round=place.round,
            position=place.position,
            tool=spec.name,
            spec_hash=spec.spec_hash,
            arguments=canonical,
            arguments_hash=digest,
            holder=self._holder,
            held_until=self._clock.now() + spec.timeout_s + _GRACE_S,
            started_at=self._clock.now(),
        )
        return await self._task(row, self._make(row, run, probe, record))

    async def repeat(
        self, seen: EffectRow, spec: ToolSpec, run: Run, probe: Probe | None, record: Recorder
    ) -> Done | None:
        """Make an effect once more that has failed or is unknown, because an operator says so.

        Args:
            seen: as the operator saw it.
            spec: the writing tool as it is now.
            run: makes it, with the stored arguments.
            probe: asked first; what has happened is not done again.
            record: takes `effect.*` events.

        Returns:
            what came of it, or None where it changed since it was seen.

        Raises:
            StoreUnavailable: it could not be begun, and was not made.
        """
        now = self._clock.now()
        row = msgspec.structs.replace(
            seen,
            spec_hash=spec.spec_hash,
            status="started",
            content=None,
            note=None,
            holder=self._holder,
            held_until=now + spec.timeout_s + _GRACE_S,
            started_at=now,
            finished_at=None,
        )
        if (seen.owner, seen.effect_key) in self._running:
            return None
        return await self._task(row, self._repeat(seen, row, run, probe, record))

    async def _task(self, row: EffectRow, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Work at an effect, on its own: whoever waits may go."""
        task = asyncio.get_running_loop().create_task(work, name=f"effect-{row.id}")
        place = (row.owner, row.effect_key)
        self._running[place] = _Running(row.arguments_hash, task)

        def over(ended: asyncio.Task[Any]) -> None:
            self._running.pop(place, None)
            if not ended.cancelled():
                # Read, so that the loop does not report it as lost where nobody waits any more.
                ended.exception()

        task.add_done_callback(over)
        return await asyncio.shield(task)

    async def close(self, grace_s: float) -> None:
        """Wait for effects that are being made, then cancel them: whoever comes next finds them begun."""
        if self._running:
            _, late = await asyncio.wait([each.task for each in self._running.values()], timeout=grace_s)
            for task in late:
                task.cancel()

    async def _make(self, row: EffectRow, run: Run, probe: Probe | None, record: Recorder) -> Done:
        found = await self._store.start(row)
        if found is None:
            return await self._run(row.id, row, run, record)
        while found is not None and found.status == "started" and self._somebody_makes(found):
            await self._clock.sleep(_LOOK_AGAIN_S)
            found = await self._store.get(found.id, found.owner)
        if found is None:  # settled and forgotten meanwhile
            return await self._make(row, run, probe, record)
        if found.arguments_hash != row.arguments_hash and found.effect_key == _key_of_place(
            row.turn_id, row.round, row.position
        ):
            # Of a declared key the rest of the arguments may differ: what it names is the same thing.
            return _unknown(_ELSE)
        same_call = (found.turn_id, found.round, found.position) == (row.turn_id, row.round, row.position)
        if found.status == "done" or (found.status == "failed" and same_call):
            record.emit("effect.found", effect=found.id, tool=found.tool, status=found.status)
            done = _again(found)
            return done if found.arguments_hash == row.arguments_hash or not done.ok else _otherwise(done)
        if found.status == "failed":  # another call asks for what did not happen
            return await self._anew(found, row, run, record)
        told = await self._told_by(probe, found, record)
        return await self._anew(found, row, run, record) if told is None else told

    async def _repeat(
        self, seen: EffectRow, row: EffectRow, run: Run, probe: Probe | None, record: Recorder
    ) -> Done | None:
        if seen.status == "unknown" and probe is not None:
            told = await self._told_by(probe, seen, record)
            if told is not None and not told.uncertain:
                return told
        if not await self._store.restart(seen.id, seen=seen, row=row):
            return None
        return await self._run(seen.id, row, run, record)

    async def _told_by(self, probe: Probe | None, found: EffectRow, record: Recorder) -> Done | None:
        """What is told of an effect whose end nobody saw; None where it certainly did not happen."""
        why = (found.status == "unknown" and found.note) or ABANDONED
        if probe is not None:
            try:
                happened, content = await probe(msgspec.json.decode(found.arguments))
            except Exception as error:  # noqa: BLE001 - foreign code: what cannot be found out stays unknown
                why = f"{ABANDONED}, and its probe failed: {words_of(error)}"
            else:
                record.emit("effect.probed", effect=found.id, tool=found.tool, happened=happened)
                if happened:
                    await self._store.finish(
                        found.id, status="done", content=content, note="probe", now=self._clock.now()
                    )
                    return Done(True, content, replayed=True)
                if not self._may_linger(found):
                    return None
                why = "it was given up, and may still be at work"
        done = _unknown(why)
        if found.status == "started":
            await self._store.finish(found.id, status="unknown", content=done.content, note=why, now=self._clock.now())
        record.emit("effect.unknown", effect=found.id, tool=found.tool, error=why)
        return done

    async def _anew(self, found: EffectRow, row: EffectRow, run: Run, record: Recorder) -> Done:
        if not await self._store.restart(found.id, seen=found, row=row):
            return _unknown("somebody else is at it")
        return await self._run(found.id, row, run, record)

    async def _run(self, id: str, row: EffectRow, run: Run, record: Recorder) -> Done:  # noqa: A002 - the contract's word
        record.emit("effect.started", effect=id, tool=row.tool)
        done = await run()
        status: EffectStatus = "unknown" if done.uncertain else "done" if done.ok else "failed"
        for left in range(_WRITES - 1, -1, -1):
            try:
                note = _FATAL if done.fatal is not None else done.error
                undo = {} if done.undo is None else {"undo": done.undo}
                await self._store.finish(
                    id, status=status, content=done.content, note=note, now=self._clock.now(), **undo
                )
            except StoreUnavailable as error:
                if not left:
                    _log.error("the end of an effect could not be written down", effect=id, error=error.message)
                await self._clock.sleep(_WRITE_AGAIN_S)
            else:
                break
        record.emit("effect.finished", effect=id, tool=row.tool, status=status)
        return done

    def _somebody_makes(self, row: EffectRow) -> bool:
        return row.held_until > self._clock.now() and row.holder != self._holder and self._alive(row.holder)

    def _may_linger(self, row: EffectRow) -> bool:
        """Whether a call that was given up may still be at work in a living process."""
        return row.held_until + LINGER_S > self._clock.now() and row.status == "unknown" and self._alive(row.holder)


@dataclass(frozen=True, slots=True)
class _Running:
    arguments_hash: str
    task: asyncio.Task[Any]


def effect_key(place: EffectPlace, spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """What makes a call this effect, as hex SHA-256: the tool's declared key, else the call's place in its turn.

    Raises whatever the tool's own code raises, and `TypeError` where its key is no JSON value.
    """
    declared = spec.effect_key(arguments) if spec.effect_key is not None else None
    if declared is None:
        return _key_of_place(place.turn_id, place.round, place.position)
    return hashlib.sha256(_encode(["declared", spec.name, declared])).hexdigest()


def told_key(owner: str, key: str, turn_id: str, number: int, position: int) -> str:
    """What the tool is told to be idempotent by: the same for every attempt at an effect, another for another owner's."""
    if key == _key_of_place(turn_id, number, position):
        return f"{turn_id}.{number}.{position}"
    return hashlib.sha256(f"{owner}\0{key}".encode()).hexdigest()[:40]


def unknown_content(why: str) -> str:
    """What the model sees of an effect whose outcome is not known."""
    return _unknown(why).content


def _key_of_place(turn_id: str, number: int, position: int) -> str:
    return hashlib.sha256(_encode(["call", turn_id, number, position])).hexdigest()


def _again(found: EffectRow) -> Done:
    content = found.content or ""
    if found.status == "done":
        return Done(True, content, replayed=True)
    error = found.note or content
    fatal = None
    if found.note == _FATAL:
        fatal = error = msgspec.json.decode(content)["error"]
    return Done(False, content, error, fatal, replayed=True)


def _otherwise(done: Done) -> Done:
    """The result of a call that was asked for with other arguments."""
    return msgspec.structs.replace(done, content=noted(done.content, _EARLIER))


def _unknown(why: str) -> Done:
    text = (
        f"Whether this took effect is not known: {why}. It was not repeated. "
        "Say so, and do not call it again without asking."
    )
    return Done(False, failure(text, _MAX_BYTES), text, uncertain=True)
