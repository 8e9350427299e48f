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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from gateway.clock import Clock
from gateway.errors import StoreUnavailable
from gateway.observe.events import Recorder
from gateway.store.turn_records import EffectRow, Effects, EffectStatus
from gateway.tools.outcome import Done, words_of
from gateway.tools.result import failure
from gateway.tools.spec import ToolSpec

# Beyond its timeout, a tool may take this long to notice and be written down.
_GRACE_S = 5.0
_LOOK_AGAIN_S = 0.2
# How often an end is tried to be written down; after that the effect is `unknown` to whoever comes next.
_WRITES = 5
_WRITE_AGAIN_S = 0.5
_MAX_BYTES = 8192

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
        self._running: dict[tuple[str, str], asyncio.Task[Done]] = {}

    @property
    def running(self) -> int:
        """How many effects this process is making."""
        return len(self._running)

    async def perform(
        self,
        place: EffectPlace,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        run: Callable[[], Awaitable[Done]],
        probe: Callable[[], Awaitable[tuple[bool, str]]] | None,
        record: Recorder,
    ) -> Done:
        """Make an effect, or tell what came of it before.

        Args:
            place: the call.
            spec: the writing tool.
            arguments: as they were validated.
            run: makes it; raises nothing but its cancellation.
            probe: says whether it happened, and what the model is to see if so.
            record: takes `effect.*` events.

        Cancelling it leaves the effect to itself: it is made and written down.

        Raises:
            StoreUnavailable: it could not be begun, and was not made.
        """
        canonical = _encode(arguments).decode()
        key = hashlib.sha256(_identity(place, spec, arguments)).hexdigest()
        known = self._running.get((place.owner, key))
        if known is not None:
            done = await asyncio.shield(known)
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
            arguments_hash=hashlib.sha256(canonical.encode()).hexdigest(),
            holder=self._holder,
            held_until=self._clock.now() + spec.timeout_s + _GRACE_S,
            started_at=self._clock.now(),
        )
        task = asyncio.get_running_loop().create_task(self._make(row, run, probe, record), name=f"effect-{row.id}")
        self._running[place.owner, key] = task
        task.add_done_callback(lambda _: self._running.pop((place.owner, key), None))
        return await asyncio.shield(task)

    async def close(self, grace_s: float) -> None:
        """Wait for effects that are being made, then cancel them: whoever comes next finds them begun."""
        if self._running:
            _, late = await asyncio.wait(self._running.values(), timeout=grace_s)
            for task in late:
                task.cancel()

    async def _make(
        self,
        row: EffectRow,
        run: Callable[[], Awaitable[Done]],
        probe: Callable[[], Awaitable[tuple[bool, str]]] | None,
        record: Recorder,
    ) -> Done:
        found = await self._store.start(row)
        if found is None:
            return await self._run(row.id, row, run, record)
        while found is not None and found.status == "started" and self._somebody_makes(found):
            await self._clock.sleep(_LOOK_AGAIN_S)
            found = await self._store.get(found.id, found.owner)
        if found is None:  # settled and forgotten meanwhile
            return await self._make(row, run, probe, record)
        if found.arguments_hash != row.arguments_hash:
            return _unknown("another call of this turn stands in its place")
        same_call = (found.turn_id, found.round, found.position) == (row.turn_id, row.round, row.position)
        if found.status == "done" or (found.status == "failed" and same_call):
            assert found.content is not None
            record.emit("effect.found", effect=found.id, status=found.status)
            return _again(found.status == "done", found.content)
        if found.status == "failed":  # another turn asks for what did not happen
            return await self._anew(found, row, run, record)
        return await self._settle(found, row, run, probe, record)

    async def _settle(
        self,
        found: EffectRow,
        row: EffectRow,
        run: Callable[[], Awaitable[Done]],
        probe: Callable[[], Awaitable[tuple[bool, str]]] | None,
        record: Recorder,
    ) -> Done:
        why = "the process that ran it has ended"
        if probe is not None:
            try:
                happened, content = await probe()
            except Exception as error:  # noqa: BLE001 - foreign code: what cannot be found out stays unknown
                why = f"{why}, and its probe failed: {words_of(error)}"
            else:
                if not happened:
                    record.emit("effect.probed", effect=found.id, happened=False)
                    return await self._anew(found, row, run, record)
                record.emit("effect.probed", effect=found.id, happened=True)
                await self._store.finish(found.id, status="done", content=content, note="probe", now=self._clock.now())
                return _again(ok=True, content=content)
        done = _unknown(why)
        if found.status == "started":
            await self._store.finish(found.id, status="unknown", content=done.content, note=why, now=self._clock.now())
        record.emit("effect.unknown", effect=found.id, reason=why)
        return done

    async def _anew(
        self, found: EffectRow, row: EffectRow, run: Callable[[], Awaitable[Done]], record: Recorder
    ) -> Done:
        if not await self._store.restart(found.id, seen=found, row=row):
            return _unknown("somebody else is at it")
        return await self._run(found.id, row, run, record)

    async def _run(self, id: str, row: EffectRow, run: Callable[[], Awaitable[Done]], record: Recorder) -> Done:  # noqa: A002
        record.emit("effect.started", effect=id, tool=row.tool)
        done = await run()
        status: EffectStatus = "unknown" if done.uncertain else "done" if done.ok else "failed"
        for left in range(_WRITES - 1, -1, -1):
            try:
                await self._store.finish(
                    id, status=status, content=done.content, note=done.error, now=self._clock.now()
                )
            except StoreUnavailable as error:
                if not left:
                    _log.error("the end of an effect could not be written down", effect=id, error=error.message)
                await self._clock.sleep(_WRITE_AGAIN_S)
            else:
                break
        record.emit("effect.finished", effect=id, status=status)
        return done

    def _somebody_makes(self, row: EffectRow) -> bool:
        return row.held_until > self._clock.now() and row.holder != self._holder and self._alive(row.holder)


def _identity(place: EffectPlace, spec: ToolSpec, arguments: Mapping[str, Any]) -> bytes:
    declared = spec.effect_key(arguments) if spec.effect_key is not None else None
    if declared is not None:
        return _encode(["declared", spec.name, declared])
    return _encode(["call", place.turn_id, place.round, place.position])


def _again(ok: bool, content: str) -> Done:
    error = None if ok else content
    return Done(ok, content, error, replayed=True)


def _unknown(why: str) -> Done:
    text = (
        f"Whether this took effect is not known: {why}. It was not repeated. "
        "Say so, and do not call it again without asking."
    )
    return Done(False, failure(text, _MAX_BYTES), text, uncertain=True)
