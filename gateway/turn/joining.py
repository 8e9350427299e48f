"""Turns that another request may join: a client's repeat gets the first one's answer, and nothing is done twice.

Knows what makes two requests the same, who may run a turn now, and what is written before a turn changes the world. Does not
know SQL, HTTP or how rounds are run.

A turn is found by its `Idempotency-Key`; without one, a request that its SDK marks as a retry is found by what it asks. It
waits for the turn while somebody runs it, gets the stored answer where there is one, and else takes the turn over: recorded
model answers are not asked for again, recorded results not fetched again, effects are the ledger's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from gateway.chat.blocks import Message
from gateway.chat.usage import Usage
from gateway.clock import Clock
from gateway.config.models import IdempotencyConfig
from gateway.errors import IdempotencyConflict, StoreUnavailable, UpstreamTimeout, UpstreamUnavailable
from gateway.store.store import Journal, JournalEntry
from gateway.store.turn_records import TurnRow, Turns
from gateway.tools.outcome import Outcome

# How far back an SDK's retry looks for its first attempt.
JOIN_S = 600.0
# A running turn is held this long from its last sign of life, of which it gives three in that time.
HELD_S = 15.0
_LOOK_AGAIN_S = 0.2
# The kind of the journal's entry that says what decides a turn.
_PIN = "decision"

_log: Any = structlog.get_logger("gateway.turns")


@dataclass(frozen=True, slots=True)
class Asked:
    """What makes a request this one.

    Attributes:
        owner: whose it is.
        body: as it came, and with it what else of the request decides.
        key: the `Idempotency-Key`, or None.
        retried: whether the SDK says that it asks again.
        durable: whether it is a run's: every step is recorded before the next begins. Its records need not wait for the disk,
            for the ledger's and the run's own do.
        pin: a JSON value to record before anything else: what decides it. None where that is recorded, or nobody asks for it.
    """

    owner: str
    body: bytes
    key: str | None
    retried: bool
    durable: bool = False
    pin: Any = None

    def digest(self) -> str:
        """Hex SHA-256 of what was asked."""
        return hashlib.sha256(self.body).hexdigest()


class RecordedRound(msgspec.Struct):
    """A round that an earlier attempt has been through.

    Attributes:
        message: the model's answer.
        outcomes: what came of its registry calls, by their position; those that are missing were not recorded.
    """

    message: Message
    finish_reason: str | None
    usage: Usage | None
    outcomes: dict[int, Outcome] = {}


@dataclass(slots=True)
class Joinable:
    """One attempt at a turn that others may join.

    Attributes:
        turn_id: the trace id of the first attempt.
        recorded: rounds of earlier attempts, by their number.
        holder: this attempt, for others that find the turn held.
        begun: whether the turn is in the store.
        ended: whether its answer is.
        held_until: seconds since the epoch until which nobody else takes the turn over.
        rivals_since: since when another attempt without a key may have begun to write, seconds since the epoch; None where
            attempts without a key are not joined.
        pending: what is in hand, to be committed before its next writing call.
    """

    turn_id: str
    asked: Asked
    digest: str
    holder: str
    recorded: dict[int, RecordedRound] = field(default_factory=dict)
    begun: bool = False
    ended: bool = False
    held_until: float = 0.0
    rivals_since: float | None = None
    pending: list[JournalEntry] = field(default_factory=list)
    keeper: asyncio.Task[None] | None = None


class Replay(msgspec.Struct, frozen=True):
    """A turn that is over: its answer's body and what its headers said."""

    turn_id: str
    body: bytes
    meta: Any


class JoinElsewhere(Exception):
    """Another attempt at this turn has begun to change the world; this one has not, and joins it."""


class Joining:
    """Finds the turn that a request belongs to, and keeps what the next attempt needs.

    Args:
        turns: the turns that can be joined.
        journal: their rounds.
        clock: for times and waits.
        holder: this process.
        alive: whether a holder may still be at work.
    """

    def __init__(self, turns: Turns, journal: Journal, clock: Clock, holder: str, alive: Callable[[str], bool]) -> None:
        self._turns = turns
        self._journal = journal
        self._clock = clock
        self._holder = holder
        self._alive = alive
        self._live: dict[tuple[str, str], tuple[Joinable, asyncio.Event]] = {}
        self._tidying: set[asyncio.Task[Any]] = set()

    async def enter(self, asked: Asked, trace_id: str, config: IdempotencyConfig, deadline: float) -> Joinable | Replay:
        """The turn of a request: new, taken over, or over.

        Args:
            asked: the request.
            trace_id: names the turn where it is new.
            config: how long keys are kept, and whether retries are joined.
            deadline: monotonic seconds until which somebody else's attempt is waited for.

        Raises:
            IdempotencyConflict: the key was used for something else.
            UpstreamTimeout: somebody else still runs the turn at the deadline.
            StoreUnavailable: it cannot be found out.
        """
        digest, now = asked.digest(), self._clock.now()
        joins = asked.key is not None or (asked.retried and config.join_sdk_retries)
        name = _name(asked, digest)
        while True:
            live = self._live.get(name)
            if live is not None and joins:
                if live[0].digest != digest:
                    raise _conflict()
                await self._wait(live[1], deadline)
                continue
            fresh = Joinable(trace_id, asked, digest, self._new_holder())
            if config.join_sdk_retries:
                fresh.rivals_since = now - JOIN_S if asked.retried else now
            found = await self._known(fresh, config) if joins else None
            if found is None:
                self._entered(name, fresh)
                if asked.durable:
                    # A run begun again long after: its turn may be forgotten, its steps are not.
                    try:
                        await self._resume(fresh)
                    except BaseException:
                        self.leave(fresh)
                        raise
                return fresh
            if found.body_hash != digest:
                raise _conflict()
            if found.status == "answered" and found.answer is not None:
                return Replay(found.turn_id, found.answer, found.meta)
            if found.status == "running" and self._somebody_runs(found):
                await self._pause(deadline)
            elif name not in self._live and (taken := await self._taken(name, found, fresh)):
                return taken

    async def _known(self, fresh: Joinable, config: IdempotencyConfig) -> TurnRow | None:
        """The turn in the store that this is; with a key, one that is not there is begun."""
        asked = fresh.asked
        if asked.key is None:
            rows = await self._turns.by_body(asked.owner, fresh.digest, since=self._clock.now() - JOIN_S)
            return rows[0] if rows else None
        row = self._row(fresh)
        since = self._clock.now() - config.ttl_s
        found = await self._turns.begin(row, hasty=asked.durable, keys_since=since)
        if found is not None and found.created_at < since and found.status != "running":
            await self._turns.forget(found.turn_id)
            found = await self._turns.begin(row, keys_since=since)
        fresh.begun, fresh.held_until = found is None, row.held_until
        return found

    async def _taken(self, name: tuple[str, str], found: TurnRow, fresh: Joinable) -> Joinable | None:
        """The turn taken over with what is recorded of it; None where somebody was quicker."""
        joinable = self._entered(name, Joinable(found.turn_id, fresh.asked, fresh.digest, fresh.holder, begun=True))
        try:
            now = self._clock.now()
            if await self._turns.take(found.turn_id, joinable.holder, seen=found, until=now + HELD_S, now=now):
                joinable.held_until = now + HELD_S
                await self._resume(joinable)
                return joinable
        except BaseException:
            self.leave(joinable)
            raise
        self.leave(joinable)
        return None

    async def _resume(self, joinable: Joinable) -> None:
        """Know what is recorded of the turn, and record what decides it where nothing says so yet."""
        asked = joinable.asked
        entries = await self._journal.of_turn(joinable.turn_id, asked.owner)
        joinable.recorded = _rounds(entries)
        if asked.pin is None:
            return
        before = _pin_in(entries)
        if before is None:
            entry = self._entry(joinable, joinable.turn_id, 0, _PIN, 0, asked.pin)
            await self._journal.append([entry], held_by=joinable.holder, hasty=asked.durable)
        elif before != asked.pin:
            raise StoreUnavailable("Another attempt has decided this turn meanwhile.", retryable=True)

    async def pin_of(self, turn_id: str, owner: str) -> Any:
        """What is recorded of what decides a turn; None where nothing is."""
        return _pin_in(await self._journal.of_turn(turn_id, owner))

    def note_answer(self, joinable: Joinable, number: int, done: RecordedRound, trace_id: str) -> None:
        """Have an answer in hand, to be committed before anything it asks for changes the world."""
        content = {
            "message": msgspec.to_builtins(done.message),
            "finish_reason": done.finish_reason,
            "usage": msgspec.to_builtins(done.usage),
        }
        joinable.pending.append(self._entry(joinable, trace_id, number, "answer", 0, content))

    def note_outcomes(self, joinable: Joinable, number: int, outcomes: Sequence[Outcome], trace_id: str) -> None:
        """Have the results of a round in hand, in the order of its registry calls."""
        for position, outcome in enumerate(outcomes):
            content = msgspec.to_builtins(outcome)
            joinable.pending.append(self._entry(joinable, trace_id, number, "tool", position, content))

    async def before_writes(self, joinable: Joinable) -> None:
        """Commit what is in hand.

        Raises:
            JoinElsewhere: another attempt got here first.
            UpstreamUnavailable: this request's own retry did.
            StoreUnavailable: it could not be committed; nothing may be changed.
        """
        if not joinable.begun:
            asked = joinable.asked
            row = self._row(joinable)
            if await self._turns.begin(row, since=joinable.rivals_since) is not None:
                if asked.retried:
                    raise JoinElsewhere
                # Who asks again has left the first request, whether this process has heard of it or not.
                raise UpstreamUnavailable("This turn is being answered already; ask again.")
            joinable.begun, joinable.held_until = True, row.held_until
        elif joinable.held_until <= self._clock.now() and not await self._held(joinable):
            # A model that thinks for long, or a process that stood still: somebody has taken the turn over meanwhile.
            raise JoinElsewhere
        if joinable.keeper is None:
            joinable.keeper = asyncio.get_running_loop().create_task(self._keep(joinable), name="turn-keeper")
        # Who has lost the turn cannot write, not even in the moment after it looked.
        await self._journal.append(joinable.pending, held_by=joinable.holder, hasty=joinable.asked.durable)
        joinable.pending.clear()

    async def answered(self, joinable: Joinable, body: bytes, meta: Any) -> None:
        """Commit the answer, before its last byte is sent.

        Raises:
            StoreUnavailable: it could not be committed, or the turn is somebody else's by now.
        """
        if not joinable.begun:
            return
        kept = await self._turns.end(
            joinable.turn_id,
            joinable.holder,
            status="answered",
            http_status=200,
            answer=body,
            meta=meta,
            now=self._clock.now(),
            hasty=joinable.asked.durable,
        )
        if not kept:
            raise StoreUnavailable("Another process has taken this turn over.", retryable=True)
        joinable.ended = True

    def delivered(self, joinable: Joinable) -> None:
        """Note, in its own time, that the client has the answer."""
        if joinable.ended:
            self._soon(self._turns.delivered(joinable.turn_id))

    def leave(self, joinable: Joinable, http_status: int = 499) -> None:
        """End this attempt: whoever waits looks again. Without an answer, the next one may take the turn over at once."""
        name = _name(joinable.asked, joinable.digest)
        live = self._live.get(name)
        if live is not None and live[0] is joinable:
            del self._live[name]
            live[1].set()
        if joinable.keeper is not None:
            joinable.keeper.cancel()
        if joinable.begun and not joinable.ended:
            now = self._clock.now()
            self._soon(
                self._turns.end(
                    joinable.turn_id,
                    joinable.holder,
                    status="failed",
                    http_status=http_status,
                    answer=b"",
                    meta=None,
                    now=now,
                )
            )

    async def close(self, timeout_s: float = 5.0) -> None:
        """Wait for what is still to be noted."""
        if self._tidying:
            await asyncio.wait(self._tidying, timeout=timeout_s)

    def _entered(self, name: tuple[str, str], joinable: Joinable) -> Joinable:
        # Of equal turns that run at once without a key, retries join the first.
        self._live.setdefault(name, (joinable, asyncio.Event()))
        return joinable

    def _somebody_runs(self, row: TurnRow) -> bool:
        return (
            not row.holder.startswith(self._holder) and row.held_until > self._clock.now() and self._alive(row.holder)
        )

    async def _wait(self, over: asyncio.Event, deadline: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                await over.wait()
        except TimeoutError as error:
            raise _still_running() from error

    async def _pause(self, deadline: float) -> None:
        if self._clock.monotonic() >= deadline:
            raise _still_running()
        await self._clock.sleep(_LOOK_AGAIN_S)

    async def _keep(self, joinable: Joinable) -> None:
        while True:
            await self._clock.sleep(HELD_S / 3)
            with contextlib.suppress(StoreUnavailable):
                if not await self._held(joinable):
                    return

    async def _held(self, joinable: Joinable) -> bool:
        """Hold on to the turn; False where it is somebody else's by now."""
        until = self._clock.now() + HELD_S
        kept = await self._turns.keep(joinable.turn_id, joinable.holder, until=until)
        joinable.held_until = until if kept else 0.0
        return kept

    def _soon(self, coroutine: Any) -> None:
        async def quietly() -> None:
            try:
                await coroutine
            except StoreUnavailable as error:
                _log.warning("how a turn ended was not noted", error=error.message)

        task = asyncio.get_running_loop().create_task(quietly())
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)

    def _row(self, joinable: Joinable) -> TurnRow:
        now = self._clock.now()
        return TurnRow(
            turn_id=joinable.turn_id,
            owner=joinable.asked.owner,
            key=joinable.asked.key,
            body_hash=joinable.digest,
            retried=joinable.asked.retried,
            holder=joinable.holder,
            held_until=now + HELD_S,
            created_at=now,
            updated_at=now,
        )

    def _new_holder(self) -> str:
        # Of this process, and of this attempt alone: what an earlier one still has to say comes too late.
        return f"{self._holder}|{secrets.token_hex(4)}"

    def _entry(
        self, joinable: Joinable, trace_id: str, number: int, kind: str, position: int, content: Any
    ) -> JournalEntry:
        return JournalEntry(
            turn_id=joinable.turn_id,
            trace_id=trace_id,
            owner=joinable.asked.owner,
            round=number,
            kind=kind,
            position=position,
            content=content,
            created_at=self._clock.now(),
        )


def _name(asked: Asked, digest: str) -> tuple[str, str]:
    return (asked.owner, f"key {asked.key}" if asked.key is not None else f"body {digest}")


def _rounds(entries: Sequence[JournalEntry]) -> dict[int, RecordedRound]:
    """Recorded rounds by number; those behind a gap never happened."""
    found: dict[int, RecordedRound] = {}
    for entry in entries:
        if entry.kind == "answer":
            content = entry.content
            found[entry.round] = RecordedRound(
                msgspec.convert(content["message"], Message),
                content["finish_reason"],
                msgspec.convert(content["usage"], Usage | None),
            )
    for entry in entries:
        if entry.kind == "tool" and entry.round in found:
            found[entry.round].outcomes[entry.position] = msgspec.convert(entry.content, Outcome)
    whole: dict[int, RecordedRound] = {}
    while len(whole) + 1 in found:
        whole[len(whole) + 1] = found[len(whole) + 1]
    return whole


def _pin_in(entries: Sequence[JournalEntry]) -> Any:
    return next((entry.content for entry in entries if entry.kind == _PIN), None)


def _conflict() -> IdempotencyConflict:
    return IdempotencyConflict("This `Idempotency-Key` was used for another request.")


def _still_running() -> UpstreamTimeout:
    return UpstreamTimeout("The first request of this turn is still being answered.")
