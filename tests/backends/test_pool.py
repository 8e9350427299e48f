"""Who is asked, in which order, how often and after which wait; and what a failure leaves of an answer."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from gateway.backends.attempts import Tier
from gateway.backends.backend import ModelCall
from gateway.backends.choice import Member
from gateway.backends.pool import Pool, PoolBatch
from gateway.backends.tap import Tap, Tapped
from gateway.backends.watched import WatchedBackend
from gateway.chat.blocks import Image, Message, Text
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.scanner import RunScanner
from gateway.clock import Clock
from gateway.config.models import BackendConfig, Balance, Capabilities
from gateway.errors import (
    ContextTooLong,
    GatewayError,
    InvalidRequest,
    QueueFull,
    UpstreamBroken,
    UpstreamDenied,
    UpstreamError,
    UpstreamHungUp,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.observe.events import Recorder
from tests.fakes import HandClock, Script, ScriptedBackend
from tests.frames import Frame, d, f, tc, u

OK = [d({"role": "assistant"}), d({"content": "ok"}), f("stop"), u(1, 1)]
DOWN = UpstreamError("cannot be reached")
LIMITED = UpstreamUnavailable("slow down", status=429)
WRONG = UpstreamRefused("invalid temperature", status=400)
BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])


def limited(seconds: float | None) -> UpstreamUnavailable:
    return UpstreamUnavailable("slow down", status=429, retry_after_s=seconds)


def watched(*backends: ScriptedBackend, **config: Any) -> WatchedBackend:
    return WatchedBackend(backends, BackendConfig(provider="demo", **config))


class Dispatch:
    """A pool, its clock and its trace."""

    def __init__(
        self,
        *tiers: Sequence[WatchedBackend | Member],
        balance: Balance = "ordered",
        retries: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or HandClock()
        made = []
        for number, members in enumerate(tiers):
            each = tuple(m if isinstance(m, Member) else Member(m) for m in members)
            choosy = any(m.backend.config.capabilities != Capabilities() for m in each)
            made.append(Tier("mnop"[number], each, balance, retries, choosy))
        self.pool = Pool("m", made, self.clock, random.Random(7))
        self.record = Recorder("0" * 32, "key", self.clock)

    async def ask(
        self, *, streamed: bool = False, prefer: str | None = None, fallbacks: bool = True, **more: Any
    ) -> str:
        """The name of the backend that answered."""
        call = a_call(**more)
        if not streamed:
            return (await self.pool.complete(call, self.record, prefer, fallbacks=fallbacks)).backend
        batches = [batch async for batch in self.pool.stream(call, self.record, prefer, fallbacks=fallbacks)]
        return batches[-1].backend

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.record.events if event.type == kind]

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        return [(event["backend"], event["outcome"]) for event in self.events("attempt.failed")]


def a_call(*, timeout_s: float = 10.0, image: bool = False, tokens: int = 0, **fields: Any) -> ModelCall:
    blocks = (Text("hi"), Image("https://example.com/a.png")) if image else (Text("hi"),)
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    return ModelCall((Message("user", blocks),), raw, "0" * 32, timeout_s, "m", "", tokens)


def named(name: str, *scripts: Script, then: Script | None = None) -> ScriptedBackend:
    return ScriptedBackend(*scripts, then=then, name=name)


@BOTH
async def test_backend_gets_its_retries_then_the_next_one_is_asked_then_the_fallback(streamed: bool) -> None:
    b1, b2, b3 = (named(name, then=DOWN) for name in ("b1", "b2", "b3"))
    good = named("b4", OK)
    on = Dispatch([watched(b1), watched(b2)], [watched(b3), watched(good)], retries=2)
    assert await on.ask(streamed=streamed) == "b4"
    assert [len(each.calls) for each in (b1, b2, b3, good)] == [3, 3, 3, 1]
    assert [name for name, _ in on.outcomes] == ["b1"] * 3 + ["b2"] * 3 + ["b3"] * 3


@BOTH
async def test_only_backend_is_retried_and_its_attempts_are_counted_from_the_first(streamed: bool) -> None:
    b1, b2 = named("b1", DOWN, DOWN, DOWN), named("b2", OK)
    only = watched(b1)
    on = Dispatch([only], [watched(b2)], retries=2)
    assert await on.ask(streamed=streamed) == "b2"
    failed = [(event["backend"], event["model"], event["attempt"]) for event in on.events("attempt.failed")]
    assert failed == [("b1", "m", 1), ("b1", "m", 2), ("b1", "m", 3)]
    assert (only.places.busy, on.record.failed_attempts) == (0, 3)


@BOTH
async def test_client_that_leaves_the_only_backend_gives_its_place_back(streamed: bool) -> None:
    never = asyncio.Event()
    only = watched(named("b1", [_wait(never), *OK], then=OK), max_concurrency=1)
    on = Dispatch([only])
    task = asyncio.create_task(on.ask(streamed=streamed))
    while not only.places.busy:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), only.places.busy) == (True, 0)
    assert await on.ask(streamed=streamed) == "b1"


@BOTH
async def test_without_fallbacks_only_the_model_s_own_backends_are_asked(streamed: bool) -> None:
    b1, b2 = named("b1", DOWN), named("b2", OK)
    on = Dispatch([watched(b1)], [watched(b2)])
    with pytest.raises(UpstreamError, match="cannot be reached"):
        await on.ask(streamed=streamed, fallbacks=False)
    assert b2.calls == []


async def test_backend_that_stands_in_several_models_is_asked_once_B010() -> None:
    one, two = named("b1", then=DOWN), named("b2", then=DOWN)
    b1, b2 = watched(one), watched(two)
    on = Dispatch([b1], [b2, b1], [b1], retries=2)
    with pytest.raises(UpstreamError):
        await on.ask()
    assert (len(one.calls), len(two.calls)) == (3, 3)


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (WRONG, 0),
        (InvalidRequest("no logprobs here", param="logprobs"), 0),
        (UpstreamRefused("no such model", status=404), 1),
        (UpstreamDenied("credentials", status=401), 1),
        (UpstreamBroken("cut"), 1),
        (UpstreamTimeout("late"), 1),
        (UpstreamUnavailable("busy", status=503), 1),
        (UpstreamError("a plugin's defect", retryable=False), 0),
    ],
)
async def test_only_what_may_go_better_elsewhere_is_tried_elsewhere(error: GatewayError, asked: int) -> None:
    b1, b2 = named("b1", error), named("b2", OK)
    on = Dispatch([watched(b1), watched(b2)])
    if asked:
        assert await on.ask() == "b2"
    else:
        with pytest.raises(type(error)):
            await on.ask()
    assert (len(b1.calls), len(b2.calls)) == (1, asked)


async def test_each_failure_says_anew_how_long_to_wait_B016() -> None:
    clock = HandClock()
    on = Dispatch([watched(named("b1", limited(2), limited(0), limited(1), OK))], retries=3, clock=clock)
    started = clock.at
    await on.ask()
    waits = [event["seconds"] for event in on.events("attempt.waited")]
    assert 2 <= waits[0] <= 2.25
    assert 0 <= waits[1] <= 0.25
    assert 1 <= waits[2] <= 1.25
    assert clock.at - started == pytest.approx(sum(waits), abs=0.001)


HUNG_UP = UpstreamHungUp("closed")


@BOTH
async def test_kept_connection_that_was_closed_is_no_attempt_the_backend_failed_at(streamed: bool) -> None:
    b1, clock = named("b1", HUNG_UP, OK), HandClock()
    only = watched(b1)
    on = Dispatch([only], clock=clock)
    started = clock.at
    assert await on.ask(streamed=streamed) == "b1"
    assert (len(b1.calls), on.events("attempt.waited"), clock.at) == (2, [], started)
    assert on.outcomes == [("b1", "unavailable")]
    for _ in range(9):
        b1._scripts += [HUNG_UP, OK]
        assert await on.ask(streamed=streamed) == "b1"
    assert only.breaker.state(clock.monotonic()) == "closed"


@BOTH
async def test_closed_connection_is_made_up_for_once(streamed: bool) -> None:
    b1, b2 = named("b1", then=HUNG_UP), named("b2", then=OK)
    on = Dispatch([watched(b1), watched(b2)], retries=1)
    assert await on.ask(streamed=streamed) == "b2"
    assert len(b1.calls) == 3
    alone = Dispatch([watched(named("b1", then=HUNG_UP))])
    with pytest.raises(UpstreamHungUp):
        await alone.ask(streamed=streamed)
    assert len(alone.outcomes) == 2


@BOTH
async def test_connection_that_is_closed_long_after_it_was_asked_over_was_not_stale(streamed: bool) -> None:
    clock = HandClock()

    async def late() -> None:
        clock.at += 1.5
        raise HUNG_UP

    b1 = named("b1", then=[late])
    only = watched(b1)
    on = Dispatch([only], clock=clock)
    for _ in range(5):
        with pytest.raises(UpstreamHungUp):
            await on.ask(streamed=streamed)
    assert len(b1.calls) == 5
    assert only.breaker.state(clock.monotonic()) == "open"


async def test_nobody_sleeps_for_a_day_B016() -> None:
    clock = HandClock()
    on = Dispatch([watched(named("b1", limited(86400)))], retries=2, clock=clock)
    started = clock.at
    with pytest.raises(UpstreamUnavailable) as caught:
        await on.ask()
    assert (caught.value.retry_after_s, clock.at - started) == (86400, 0)
    standby = Dispatch([watched(named("b1", limited(86400)))], [watched(named("b2", OK))], retries=2)
    assert await standby.ask() == "b2"


async def test_backoff_doubles_with_full_jitter_and_stays_within_the_deadline() -> None:
    clock = HandClock()
    on = Dispatch([watched(named("b1", then=DOWN))], retries=4, clock=clock)
    with pytest.raises(UpstreamError):
        await on.ask(timeout_s=100)
    waits = [event["seconds"] for event in on.events("attempt.waited")]
    assert len(waits) == 4
    assert all(wait <= 0.25 * 2**number for number, wait in enumerate(waits))
    late = Dispatch([watched(named("b1", then=limited(3)))], retries=4, clock=clock)
    with pytest.raises(UpstreamUnavailable):
        await late.ask(timeout_s=2)
    assert len(late.outcomes) == 1


async def test_before_a_long_wait_the_others_are_asked_and_then_it_is_waited_all_the_same() -> None:
    b1, b2 = named("b1", limited(3), OK), named("b2", then=DOWN)
    on = Dispatch([watched(b1), watched(b2)], retries=1)
    assert await on.ask() == "b1"
    assert [name for name, _ in on.outcomes] == ["b1", "b2", "b2"]


async def test_another_key_is_used_at_once_and_the_limited_one_rests() -> None:
    keys = [named("b1", limited(60)), named("b1", then=OK), named("b1", UpstreamDenied("no", status=401), then=OK)]
    clock = HandClock()
    backend = watched(*keys)
    on = Dispatch([backend], clock=clock)
    for _ in range(5):
        await on.ask()
    assert [len(key.calls) for key in keys] == [1, 5, 1]
    assert on.events("attempt.waited") == []
    clock.at += 61
    for _ in range(3):
        keys[0]._then = OK
        await on.ask()
    assert [len(key.calls) for key in keys] == [2, 6, 2]


async def test_backend_that_is_limited_is_asked_last_for_that_time() -> None:
    b1, b2 = named("b1", limited(30), then=OK), named("b2", then=OK)
    clock = HandClock()
    on = Dispatch([watched(b1), watched(b2)], clock=clock)
    assert [await on.ask(), await on.ask()] == ["b2", "b2"]
    assert len(b1.calls) == 1
    clock.at += 31
    assert await on.ask() == "b1"


@BOTH
async def test_breaker_keeps_a_failing_backend_out_until_a_probe_succeeds(streamed: bool) -> None:
    b1, b2 = named("b1", then=DOWN), named("b2", then=OK)
    clock = HandClock()
    on = Dispatch([watched(b1), watched(b2)], clock=clock)
    for _ in range(8):
        assert await on.ask(streamed=streamed) == "b2"
    assert len(b1.calls) == 5
    assert {"backend": "b1", "model": "m", "reason": "breaker"} not in on.events("attempt.skipped")
    b1._then = OK
    clock.at += 10
    assert await on.ask(streamed=streamed) == "b1"
    assert await on.ask(streamed=streamed) == "b1"


@BOTH
async def test_open_breaker_of_the_only_backend_is_told_at_once(streamed: bool) -> None:
    b1 = named("b1", then=DOWN)
    on = Dispatch([watched(b1)])
    for _ in range(5):
        with pytest.raises(UpstreamError):
            await on.ask(streamed=streamed)
    with pytest.raises(UpstreamUnavailable, match="again and again") as caught:
        await on.ask(streamed=streamed)
    assert (caught.value.status, caught.value.retry_after_s, len(b1.calls)) == (503, 2, 5)
    assert on.events("attempt.skipped") == [{"backend": "b1", "model": "m", "reason": "breaker"}]


@pytest.mark.parametrize("error", [WRONG, LIMITED, ContextTooLong("too long"), UpstreamDenied("no", status=401)])
async def test_what_is_not_the_backend_s_fault_never_opens_its_breaker(error: GatewayError) -> None:
    backend = named("b1", then=error)
    on = Dispatch([watched(backend)])
    for _ in range(20):
        with pytest.raises(type(error)):
            await on.ask()
    assert len(backend.calls) == 20


async def test_deadline_of_a_client_and_a_client_that_leaves_are_not_the_backend_s_fault() -> None:
    clock = HandClock()

    async def slow() -> None:
        clock.at += 1
        raise UpstreamTimeout("no answer within 1 s")

    backend = named("b1", then=[slow])
    on = Dispatch([watched(backend)], clock=clock)
    for _ in range(10):
        with pytest.raises(UpstreamTimeout):
            await on.ask(timeout_s=1)
    stuck = asyncio.Event()
    backend._then = [_wait(stuck)]
    for _ in range(10):
        task = asyncio.create_task(on.ask())
        while len(backend.calls) < 11:
            await asyncio.sleep(0)
        backend.calls.pop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    backend._then = OK
    assert await on.ask() == "b1"


def _wait(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        await event.wait()

    return wait


async def test_spread_follows_the_weights() -> None:
    backends = [named(name, then=OK) for name in ("b1", "b2", "b3")]
    members = [Member(watched(each), weight) for each, weight in zip(backends, (3, 1, 0), strict=True)]
    on = Dispatch(members, balance="weighted")
    seen = Counter([await on.ask() for _ in range(2000)])
    assert 1350 < seen["b1"] < 1650
    assert seen["b3"] == 0
    backends[0]._then = backends[1]._then = DOWN
    assert await on.ask() == "b3", "the last resort"


async def test_least_busy_backend_is_asked_first() -> None:
    held = asyncio.Event()
    backends = [named(name, then=[_wait(held), *OK]) for name in ("b1", "b2", "b3")]
    members = [Member(watched(each), weight) for each, weight in zip(backends, (2, 1, 1), strict=True)]
    on = Dispatch(members, balance="least_busy")
    tasks = [asyncio.create_task(on.ask()) for _ in range(8)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert [len(each.calls) for each in backends] == [4, 2, 2]
    held.set()
    await asyncio.gather(*tasks)


@BOTH
async def test_fastest_backend_is_asked_and_a_slow_one_is_tried_again_after_a_minute(streamed: bool) -> None:
    clock = HandClock()

    def taking(seconds: float) -> Script:
        async def wait() -> None:
            clock.at += seconds

        return [wait, *OK]

    slow, quick = named("slow", then=taking(2)), named("quick", then=taking(0.5))
    on = Dispatch([watched(slow), watched(quick)], balance="fastest", clock=clock)
    first = {await on.ask(streamed=streamed) for _ in range(2)}
    assert first == {"slow", "quick"}, "both are found out about"
    assert {await on.ask(streamed=streamed) for _ in range(20)} == {"quick"}
    slow._then = taking(0.1)
    clock.at += 61
    seen = [await on.ask(streamed=streamed) for _ in range(20)]
    assert Counter(seen)["slow"] >= 18


async def test_full_backend_is_passed_over_and_when_all_are_full_a_place_is_waited_for() -> None:
    held = asyncio.Event()
    b1, b2 = (named(name, then=[_wait(held), *OK]) for name in ("b1", "b2"))
    on = Dispatch([watched(b1, max_concurrency=2), watched(b2, max_concurrency=1)])
    tasks = [asyncio.create_task(on.ask()) for _ in range(6)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert (len(b1.calls), len(b2.calls)) == (2, 1)
    held.set()
    async with asyncio.timeout(5):
        assert len(await asyncio.gather(*tasks)) == 6
    waits = on.events("attempt.waited")
    assert [event["reason"] for event in waits] == ["queue"] * 3
    assert [each.places.busy for each in (m.backend for m in on.pool._tiers[0].members)] == [0, 0]


async def test_queue_that_is_full_sends_to_the_fallback_or_says_so() -> None:
    held = asyncio.Event()
    busy = watched(named("b1", then=[_wait(held), *OK]), max_concurrency=1)
    on = Dispatch([busy])
    tasks = [asyncio.create_task(on.ask()) for _ in range(17)]
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(QueueFull) as caught:
        await on.ask()
    assert caught.value.retry_after_s == 1
    assert await Dispatch([busy], [watched(named("b2", OK))]).ask() == "b2"
    for task in tasks[5:]:
        task.cancel()
    held.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (busy.places.busy, busy.places.waiting) == (0, 0)


async def test_place_that_does_not_come_in_time_is_told_as_that_even_if_the_timer_went_off_early() -> None:
    held = asyncio.Event()
    busy = watched(named("b1", then=[_wait(held), *OK]), max_concurrency=1)
    spare = named("b2", then=OK)
    on = Dispatch([busy], [watched(spare)])
    task = asyncio.create_task(on.ask())
    await asyncio.sleep(0)
    with pytest.raises(UpstreamTimeout, match="busy until the time was up"):
        await on.ask(timeout_s=0.01)  # of the timer; by the clock no time has passed
    assert spare.calls == []
    held.set()
    assert await task == "b1"
    assert (busy.places.busy, busy.places.waiting) == (0, 0)


async def test_wait_for_a_retry_that_ends_early_is_one_wait() -> None:
    class Hasty(HandClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds * 0.9)

    on = Dispatch([watched(named("b1", limited(1.0), OK))], retries=1, clock=Hasty())
    assert await on.ask() == "b1"
    assert [event["reason"] for event in on.events("attempt.waited")] == ["retry"]


@pytest.mark.parametrize(
    ("capability", "asks", "param"),
    [
        ("vision", {"image": True}, "messages"),
        ("json_schema", {"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ],
)
async def test_call_goes_where_it_can_be_served(capability: str, asks: dict[str, Any], param: str) -> None:
    unable, able = named("b1", then=OK), named("b2", then=OK)
    plain = watched(unable, capabilities={capability: False})
    on = Dispatch([plain, watched(able)])
    assert (await on.ask(**asks), await on.ask(response_format={"type": "json_object"})) == ("b2", "b1")
    assert on.events("attempt.skipped") == [{"backend": "b1", "model": "m", "reason": capability}]
    with pytest.raises(InvalidRequest) as caught:
        await Dispatch([plain]).ask(**asks)
    assert caught.value.param == param


async def test_a_backend_that_takes_no_tools_is_asked_last_for_them() -> None:
    text, able = named("b1", then=OK), named("b2", UpstreamUnavailable("busy", status=503), then=OK)
    on = Dispatch([watched(text, capabilities={"tools": False}), watched(able)], retries=0)
    tools = [{"type": "function"}]
    assert [await on.ask(), await on.ask(tools=tools), await on.ask(tools=tools)] == ["b1", "b1", "b2"]


@BOTH
async def test_prompt_that_is_too_long_goes_to_a_larger_context_only_B012(streamed: bool) -> None:
    names = ("b1", "small", "same", "large")
    b1, small, same, large = (named(name, then=ContextTooLong("too long")) for name in names)
    large._then = OK
    members = [
        watched(b1, context_tokens=8000),
        watched(small, context_tokens=4000),
        watched(same, context_tokens=8000),
    ]
    on = Dispatch(members, [watched(large, context_tokens=32000)], retries=3)
    assert await on.ask(streamed=streamed) == "large"
    assert on.outcomes == [("b1", "too_long")]
    with pytest.raises(ContextTooLong):
        await on.ask(streamed=streamed, fallbacks=False)


async def test_backend_whose_context_is_estimated_too_small_is_asked_last() -> None:
    small, large = named("small", then=OK), named("large", DOWN, then=OK)
    on = Dispatch([watched(small, context_tokens=100), watched(large, context_tokens=1000)])
    assert on.pool.sized
    assert await on.ask(tokens=500) == "small", "an estimate refuses nothing"
    assert (await on.ask(tokens=500), await on.ask(tokens=50)) == ("large", "small")


async def test_preferred_backend_comes_first_unless_it_rests() -> None:
    b1, b2 = named("b1", then=OK), named("b2", OK, limited(60), then=OK)
    on = Dispatch([watched(b1), watched(b2)])
    assert await on.ask(prefer="b2") == "b2"
    assert [await on.ask(prefer="b2"), await on.ask(prefer="b2")] == ["b1", "b1"]


async def streamed_batches(on: Dispatch, seen: Callable[[], bool] | None = None) -> list[PoolBatch]:
    return [batch async for batch in on.pool.stream(a_call(), on.record, seen=seen)]


async def test_stream_that_broke_before_content_leaves_no_trace_in_the_next_one_B011() -> None:
    broken = named("b1", [d({"role": "assistant"}), u(200, 0), UpstreamBroken("cut")])
    on = Dispatch([watched(broken), watched(named("b2", OK))])
    batches = await streamed_batches(on)
    roles = [c.delta.role for b in batches for k in b.chunks for c in k.choices if c.delta and c.delta.role]
    assert ({batch.backend for batch in batches}, roles) == ({"b2"}, ["assistant"])
    assert on.events("attempt.failed")[0]["prompt_tokens"] == 200


async def test_stream_that_broke_after_content_is_not_begun_anew_B011() -> None:
    broken = named("b1", [d({"content": "The capital"}), UpstreamBroken("cut")])
    other = named("b2", OK)
    on = Dispatch([watched(broken), watched(other)], retries=3)
    with pytest.raises(UpstreamBroken):
        await streamed_batches(on)
    assert (len(broken.calls), other.calls) == (1, [])


async def test_bare_timeout_is_a_failure_like_any_other() -> None:
    """Behind content, it was taken for a first token that did not come, and begun anew."""
    late, other = named("b1", [d({"content": "The capital"}), TimeoutError()]), named("b2", OK)
    on = Dispatch([watched(late), watched(other)], retries=3)
    with pytest.raises(UpstreamTimeout, match="in time"):
        await streamed_batches(on)
    assert (len(late.calls), other.calls, on.outcomes) == (1, [], [("b1", "timeout")])
    early = named("b1", then=[d({"role": "assistant"}), TimeoutError()])
    on = Dispatch([watched(early), watched(other)], retries=1)
    assert {batch.backend for batch in await streamed_batches(on)} == {"b2"}
    assert len(early.calls) == 2


async def test_stream_of_which_the_client_saw_nothing_is_begun_anew_under_another_number() -> None:
    broken = named("b1", [tc(0, id="a", name="now", arguments="{"), UpstreamBroken("cut")])
    on = Dispatch([watched(broken), watched(named("b2", OK))])
    batches = await streamed_batches(on, seen=lambda: False)
    assert (batches[0].backend, batches[0].attempt) == ("b1", 1)
    assert {(batch.backend, batch.attempt) for batch in batches[1:]} == {("b2", 2)}


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "role alone"])
async def test_first_content_brings_the_tap_of_its_stream(together: bool) -> None:
    tap = Tap(RunScanner(), lambda: 0.0, idle_s=1, most_s=1, most_bytes=1)

    class TappedBackend(ScriptedBackend):
        """Says that its stream has a tap, but for its end."""

        async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
            role, text, *_ = OK
            self.calls.append(call)
            for frames in ([role, text],) if together else ([role], [text]):
                yield _tapped(frames, tap)
            yield _tapped(OK[2:], None)

    batches = await streamed_batches(Dispatch([watched(TappedBackend(name="b1"))]))
    assert [(len(batch.chunks), batch.tap) for batch in batches] == [(2, tap), (2, None)]


def _tapped(frames: Sequence[Frame], tap: Tap | None) -> Tapped:
    batch = Tapped([decode_chunk(msgspec.json.encode(frame.payload)) for frame in frames])
    batch.tap = tap
    return batch


async def test_roles_and_comments_do_not_count_as_a_first_token() -> None:
    stuck = asyncio.Event()
    idle = named("b1", then=[d({"role": "assistant"}), _wait(stuck)])
    on = Dispatch([watched(idle, first_token_timeout_s=0.05), watched(named("b2", then=OK))])
    async with asyncio.timeout(5):
        assert await on.ask(streamed=True) == "b2"
    assert on.outcomes == [("b1", "timeout")]
    assert idle.closed_early == 1


async def test_first_token_timeout_ends_with_the_first_token() -> None:
    async def pause() -> None:
        await asyncio.sleep(0.3)

    slow = named("b1", [d({"content": "a"}), pause, d({"content": "b"}), f("stop")])
    on = Dispatch([watched(slow, first_token_timeout_s=0.1)])
    assert len(await streamed_batches(on)) == 3
