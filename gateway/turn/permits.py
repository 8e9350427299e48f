"""Letting turns in, and counting what came of them.

Knows when the counters are asked, what a turn sets aside before it runs, and what it pays. Who is counted under which name is
`security/allowances.py`'s, the counting the counters'.

A turn sets aside what it may cost: its prompt by estimate, and as many tokens as its answer may have. Before each further
round it sets aside what it has used by then and the next round; and its key has to count still. At its end it pays what the
upstreams say it used, whichever way it ends, and everything else is free again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import structlog

from gateway.chat.blocks import Message
from gateway.chat.usage import Usage
from gateway.clock import Clock
from gateway.errors import NotAllowed, StoreUnavailable
from gateway.observe.usage import UsageWriter
from gateway.routing.text import estimate_tokens
from gateway.security.allowances import NOTHING, Allowance, Today
from gateway.security.counters import RENEW_S, Counters, Entry, Exit, Given, Hold, Paid, Slot, Stay, Take, Verdict
from gateway.security.prices import Bound
from gateway.security.principal import NO_BUDGETS, NO_LIMITS
from gateway.store.usage_records import NANO, Usages
from gateway.turn.context import Turn
from gateway.turn.refusal import refusal_of, standing_of

# Tokens that an answer is reckoned with that may be as long as it likes.
ANSWER_TOKENS: Final = 1024
# Requests name any number; the counters hold 64 bits. More than any limit or budget may be.
MOST_RECKONED: Final = 2**62
_MOST_WARNED: Final = 10_000

_log = structlog.stdlib.get_logger("gateway.limits")
_tags = msgspec.json.Encoder().encode


class Permit(msgspec.Struct, eq=False):
    """A turn's stay, from its being let in to its end; where nothing is counted, that of all turns of a day.

    Attributes:
        permits: where it was let in.
        allowance: what it is counted by.
        today: the day it was let in on.
        counts: whether anything is counted for it.
        number: of a stay that counts, in this process.
        taken: what it has taken out of its buckets.
        slots: the places it has.
        holds: what it has set aside.
    """

    permits: Permits
    allowance: Allowance
    today: Today
    counts: bool
    number: int = 0
    taken: Sequence[Take] = ()
    slots: Sequence[Slot] = ()
    holds: Sequence[Hold] = ()

    async def next_round(self, turn: Turn, messages: Sequence[Message]) -> None:
        """Make sure that its turn may go on to its next round, which sends these messages.

        Raises:
            Unauthenticated: its key has ended meanwhile.
            BudgetExceeded: what it has used and the next round are more than is left.
            StoreUnavailable: it cannot be found out.
        """
        await self.permits.go_on(self, turn, messages)

    @property
    def id(self) -> str:
        """The name of the stay: no other process has one like it."""
        return f"{self.permits.process}{self.number}"

    @property
    def stay(self) -> Stay:
        """What it holds."""
        return Stay(self.id, [slot.name for slot in self.slots], [(hold.name, hold.amount) for hold in self.holds])

    def entry(self, tokens: int, cost: int) -> Entry:
        """What the turn needs to be let in.

        Args:
            tokens: what it is reckoned with.
            cost: what that costs, billionths of the currency.
        """
        allowed = self.allowance
        takes = [*allowed.requests, *(Take(take.name, take.limit, tokens) for take in allowed.tokens)]
        holds = [Hold(purse.counter(self.today), purse.limit, cost, kept_s=purse.kept_s) for purse in allowed.purses]
        return Entry(self.id, takes, allowed.slots, holds)

    def further(self, cost: int) -> Entry:
        """What it needs to go on, now that it is reckoned with this cost."""
        holds = [msgspec.structs.replace(hold, amount=max(cost, hold.amount), old=hold.amount) for hold in self.holds]
        return Entry(self.id, (), (), holds)

    def took(self, entry: Entry) -> None:
        """It was let in by this."""
        self.taken = entry.takes or self.taken
        self.slots = entry.slots or self.slots
        self.holds = entry.holds

    def exit(self, tokens: int, cost: int) -> Exit | None:
        """The end of the stay, for a turn that used so many tokens and cost so much; None where nothing was counted."""
        if not (self.taken or self.slots or self.holds):
            return None
        # Behind those of requests, which stay taken.
        given = [
            Given(take.name, take.limit, tokens - min(take.amount, take.limit))
            for take in self.taken[len(self.allowance.requests) :]
        ]
        paid = [Paid(hold.name, hold.amount, cost) for hold in self.holds]
        return Exit(self.id, given, [slot.name for slot in self.slots], paid)


class Permits:
    """Lets turns in and out.

    Args:
        counters: where is counted.
        usage: what was used before, for counters that do not know.
        writer: writes down what was used.
        clock: time.
    """

    def __init__(self, counters: Counters, usage: Usages, writer: UsageWriter, clock: Clock) -> None:
        self._counters = counters
        self._usage = usage
        self._writer = writer
        self._clock = clock
        self._open: set[Permit] = set()
        # Of turns that nothing is counted for.
        self._free: Permit | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._warned: set[str] = set()
        self._away = False
        # What names of stays begin with.
        self.process = f"{secrets.token_hex(6)}."
        self._numbers = itertools.count()

    def start(self) -> None:
        """Begin to give word of turns that run, where others count too."""
        if self._counters.shared:
            self._renewing = asyncio.create_task(self._renew(), name="permits")

    async def close(self) -> None:
        """Stop. What still runs is let out by whoever runs it."""
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        await self._counters.close()

    def begin(self, turn: Turn) -> Permit | None:
        """The permit that a turn has to `enter` by; None where nothing is counted for it, and it has one already.

        Once it has one, it is given back by `leave`, however the turn ends.
        """
        allowances, who = turn.snapshot.allowances, turn.principal
        today = allowances.today(self._clock.now())
        # Most keys have none of their own: the one object that says so.
        if allowances.binds_all or who.limits is not NO_LIMITS or who.budgets is not NO_BUDGETS:
            allowed = allowances.of(who, turn.tags, turn.pool.name, turn.decision.route)
            return Permit(self, allowed, today, counts=True)
        free = self._free
        if free is None or free.today is not today:
            free = self._free = Permit(self, NOTHING, today, counts=False)
        turn.permit = free
        return None

    async def enter(self, permit: Permit, turn: Turn) -> None:
        """Let a turn in that something is counted for.

        Raises:
            RateLimited: too much at once, or in a minute.
            BudgetExceeded: it may cost more than is left.
            NotAllowed: its price is not known, and has to be.
            StoreUnavailable: it cannot be found out, and has to be.
        """
        if permit.allowance:
            permit.number = next(self._numbers)
            await self._count_in(permit, turn)
        turn.permit = permit

    async def _count_in(self, permit: Permit, turn: Turn) -> None:
        allowed = permit.allowance
        tokens, cost = 0, 0
        if allowed.tokens or allowed.purses:
            tokens, cost = self._reckoned(turn, turn.messages, bool(allowed.purses))
        entry = permit.entry(tokens, cost)
        verdict = await self._asked(turn, permit, entry)
        if verdict is None:
            return
        turn.standing = standing_of(allowed, entry, verdict)
        if verdict.outcome != "in":
            raise refusal_of(allowed, verdict)
        permit.took(entry)
        self._open.add(permit)
        self._warn(turn, entry, verdict)

    async def go_on(self, permit: Permit, turn: Turn, messages: Sequence[Message]) -> None:
        """See `Permit.next_round`."""
        lasting = turn.joinable is not None and turn.joinable.asked.durable
        await turn.snapshot.keys.still(turn.principal, self._clock.now(), lasting=lasting)
        if not permit.holds:
            return
        _, next_cost = self._reckoned(turn, messages, priced=True)
        spent, _ = turn.snapshot.prices.of(turn.spent)
        entry = permit.further(spent + next_cost)
        verdict = await self._asked(turn, permit, entry)
        if verdict is None:
            return
        if verdict.outcome != "in":
            raise refusal_of(permit.allowance, verdict)
        permit.took(entry)

    def leave(self, turn: Turn, *, ok: bool) -> None:
        """Let a turn out that has been let in: what it used is paid and written down, everything else is free again."""
        permit: Any = turn.permit  # its own `Permit`
        turn.permit = None
        spent, turn.spent = turn.spent, []
        if turn.record.failed_attempts:
            spent = [*spent, *_failed_attempts(turn)]
        prices = turn.snapshot.prices
        if len(spent) == 1:  # nearly all turns
            backend, used = spent[0]
            cost, known = prices.of_one(backend, used)
        else:
            (cost, known), used = prices.of(spent), _sum(spent)
        if permit.counts:
            self._open.discard(permit)
            if (exit_ := permit.exit(used.total_tokens, cost)) is not None:
                self._counters.leave(exit_)
        self._writer.add(
            _place(turn, permit.today.day, turn.backend or ""),
            (1, not ok, used.prompt_tokens, used.cached_tokens, used.completion_tokens, cost, not known),
        )

    def book(self, turn: Turn, backend: str, usage: Usage) -> None:
        """Pay and write down what was used for a turn's caller once the turn was over."""
        snapshot, who = turn.snapshot, turn.principal
        today = snapshot.allowances.today(self._clock.now())
        allowed = snapshot.allowances.of(who, turn.tags, turn.pool.name, turn.decision.route)
        cost, known = snapshot.prices.of([(backend, usage)])
        if allowed.purses:
            paid = [Paid(purse.counter(today), 0, cost) for purse in allowed.purses]
            self._counters.leave(Exit(f"{self.process}{next(self._numbers)}", (), (), paid))
        self._writer.add(
            _place(turn, today.day, backend),
            (0, False, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, cost, not known),
        )

    def _reckoned(self, turn: Turn, messages: Sequence[Message], priced: bool) -> tuple[int, int]:
        """The tokens a round may take, and what they cost at most."""
        prompt = estimate_tokens(messages) + len(turn.tools_wire or b"") // 4
        most = _most_tokens(turn)
        cost = 0
        if priced:
            bound: Bound = turn.snapshot.bound_of(turn.pool, fallbacks=turn.fallbacks)
            if not bound.known and turn.snapshot.config.budgets.unknown_price == "refuse":
                raise NotAllowed(
                    f"The price of `{turn.decision.model}` is not known, and `budgets.unknown_price` is `refuse`."
                )
            cost = bound.of(prompt, (ANSWER_TOKENS if most is None else most) * turn.request.n)
            if not bound.known:
                # Nobody knows what it will cost; once everything is spent, nothing may.
                cost = max(cost, 1)
        return min(prompt + (most or 0) * turn.request.n, MOST_RECKONED), min(cost, MOST_RECKONED)

    async def _asked(self, turn: Turn, permit: Permit, entry: Entry) -> Verdict | None:
        """What the counters say; None where they are away and the turn may run all the same."""
        config = turn.snapshot.config
        try:
            verdict = await self._counters.enter(entry)
            if verdict.outcome == "unknown":
                verdict = await self._counters.enter(await self._told(permit, entry, verdict))
        except asyncio.CancelledError:
            self._give_up(entry)
            raise
        except StoreUnavailable as error:
            self._give_up(entry)
            closed = (entry.holds and config.budgets.store_down == "closed") or (
                (entry.takes or entry.slots) and config.limits.store_down == "closed"
            )
            if not self._away:
                _log.warning("limits and budgets cannot be counted", reason=error.message)
            self._away = True
            if closed:
                raise
            return None
        self._away = False
        return verdict

    def _give_up(self, entry: Entry) -> None:
        """Give back what may have been taken by an entry whose answer was not heard."""
        paid = [Paid(hold.name, hold.amount, 0) for hold in entry.holds if not hold.old]
        if entry.slots or paid:
            self._counters.leave(Exit(entry.id, (), [slot.name for slot in entry.slots], paid))

    async def _told(self, permit: Permit, entry: Entry, verdict: Verdict) -> Entry:
        """The entry with what was spent before, for counters that do not know."""
        # What this process has not written down yet belongs to it.
        await self._writer.flush()
        holds = list(entry.holds)
        for index, (hold, purse) in enumerate(zip(holds, permit.allowance.purses, strict=True)):
            if verdict.spent[index] < 0:
                since = permit.today.first_day(purse.period)
                spent = await self._usage.spent(purse.scope, purse.whose, since=since)
                holds[index] = msgspec.structs.replace(hold, initial=spent)
        return msgspec.structs.replace(entry, holds=holds)

    def _warn(self, turn: Turn, entry: Entry, verdict: Verdict) -> None:
        """Tell, once for each budget and period, that it is nearly spent."""
        share = turn.snapshot.config.budgets.warn_at
        for hold, spent, held in zip(entry.holds, verdict.spent, verdict.held, strict=True):
            if spent + held >= share * hold.limit and hold.name not in self._warned:
                if len(self._warned) >= _MOST_WARNED:
                    self._warned.clear()
                self._warned.add(hold.name)
                turn.record.emit("budget.warned", budget=hold.name, spent=spent / NANO, limit=hold.limit / NANO)
                _log.warning("a budget is nearly spent", budget=hold.name, spent=spent / NANO, limit=hold.limit / NANO)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            stays = [permit.stay for permit in self._open]
            with contextlib.suppress(StoreUnavailable):
                await self._counters.renew([stay for stay in stays if stay.slots or stay.held])


def _place(turn: Turn, day: str, backend: str) -> tuple[str, str, str, str, str, str, str, str, str]:
    """Where a turn's usage is added up."""
    who = turn.principal
    return (
        day,
        turn.record.owner,
        who.key_id,
        who.user or "",
        who.team or "",
        _tags(sorted(turn.tags)).decode() if turn.tags else "[]",
        turn.decision.route or "",
        turn.answering,
        backend,
    )


def _most_tokens(turn: Turn) -> int | None:
    """The tokens that one answer may have, where the request bounds them. Below 1 is no bound: to some servers it means none."""
    most: int | None = None
    for name in ("max_completion_tokens", "max_tokens"):
        raw = turn.fields.get(name)
        if raw is not None:
            with contextlib.suppress(msgspec.MsgspecError):
                said = msgspec.json.decode(raw, type=int)
                if said < 1:
                    return None
                # Some upstreams heed one name, some the other.
                most = max(most or 0, said)
    return most


def _failed_attempts(turn: Turn) -> list[tuple[str | None, Usage]]:
    """What attempts have cost that somebody else's answer stood in for, where their upstream said so."""
    return [
        (event.data["backend"], Usage(event.data["prompt_tokens"] or 0, event.data["completion_tokens"] or 0))
        for event in turn.record.events
        if event.type == "attempt.failed" and event.data["prompt_tokens"] is not None
    ]


def _sum(spent: Sequence[tuple[str | None, Usage]]) -> Usage:
    total = Usage()
    for _, usage in spent:
        total += usage
    return total
