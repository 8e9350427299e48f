"""How turns end when something goes wrong, or somebody has had enough."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from gateway.backends.backend import ModelCall
from gateway.errors import (
    GatewayError,
    StoreUnavailable,
    ToolFailed,
    UpstreamBroken,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.tools.spec import ToolFatal
from tests.fakes import HandClock, KeptJournal, RecordingProvider, ScriptedBackend, spec
from tests.frames import d, f, tc, u
from tests.turn.stage import Stage, stage

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
OK = [d({"content": "ok"}), f("stop"), u(1, 1)]
NOW = [tc(0, id="a", name="now", arguments="{}"), f("tool_calls"), u(1, 1)]


def last_state(on: Stage) -> dict[str, Any]:
    return on.events("state.changed")[-1]


@BOTH
async def test_fatal_tool_ends_the_turn(streamed: bool) -> None:
    backend = ScriptedBackend(NOW)
    async with stage(backend, RecordingProvider([spec("now")], {"now": ToolFatal("out of order")})) as on:
        with pytest.raises(ToolFailed, match="out of order"):
            await on.run(streamed=streamed)
        assert last_state(on) == {"from": "executing", "to": "terminated", "reason": "failed"}
        assert len(backend.calls) == 1


@BOTH
async def test_failing_journal_stops_the_turn_before_the_tool(streamed: bool) -> None:
    journal = KeptJournal(StoreUnavailable("The journal cannot be written."))
    provider = RecordingProvider([spec("now", writes=True)])
    async with stage(ScriptedBackend(NOW), provider, journal=journal) as on:
        with pytest.raises(StoreUnavailable):
            await on.run(streamed=streamed)
        assert on.ran() == []
        assert last_state(on)["to"] == "terminated"


@BOTH
async def test_upstream_failure_passes_through_with_what_was_sent_before_it(streamed: bool) -> None:
    backend = ScriptedBackend([d({"content": "Hel"}), d({"content": "lo"}), UpstreamBroken("overloaded")])
    async with stage(backend, retries=3 if streamed else 0) as on:
        with pytest.raises(UpstreamBroken, match="overloaded"):
            await on.run(streamed=streamed)
        if streamed:
            assert (on.sink.text, on.sink.finishes, on.sink.ended) == ("Hello", [], False)
            assert len(backend.calls) == 1


@BOTH
async def test_failure_in_a_later_round_is_a_failure_of_the_turn_B068(streamed: bool) -> None:
    backend = ScriptedBackend([d({"content": "Checking"}), *NOW], UpstreamRefused("no", status=400))
    async with stage(backend, RecordingProvider([spec("now")])) as on:
        with pytest.raises(UpstreamRefused):
            await on.run(streamed=streamed)
        assert not on.sink.ended
        assert last_state(on)["reason"] == "failed"


@BOTH
async def test_deadline_ends_a_turn_whose_upstream_hangs(streamed: bool) -> None:
    hanging = asyncio.Event()
    backend = ScriptedBackend([d({"content": "x"}), lambda: _forever(hanging)])
    async with stage(backend, turn_timeout_s=0.05) as on:
        async with asyncio.timeout(5):
            with pytest.raises(UpstreamTimeout, match="time limit"):
                await on.run(streamed=streamed)
        assert last_state(on)["to"] == "terminated"
        if streamed:
            assert backend.closed_early == 1


@BOTH
async def test_deadline_ends_a_turn_whose_tool_hangs(streamed: bool) -> None:
    cancelled = asyncio.Event()
    provider = RecordingProvider([spec("now")], {"now": lambda *_: _forever(cancelled)})
    async with stage(ScriptedBackend(NOW), provider, turn_timeout_s=0.05) as on:
        async with asyncio.timeout(5):
            assert (await on.answer(streamed=streamed)).finish == "length"
            await cancelled.wait()


@BOTH
async def test_cancelling_a_turn_cancels_the_upstream_call_and_reading_tools(streamed: bool) -> None:
    for in_tool in (False, True):
        stopped = asyncio.Event()
        hang = functools.partial(_forever, stopped)
        provider = RecordingProvider([spec("now")], {"now": hang})
        async with stage(ScriptedBackend(NOW if in_tool else [hang]), provider) as on:
            task = asyncio.create_task(on.run(streamed=streamed))
            async with asyncio.timeout(5):
                while not (on.events("tool.started") if in_tool else on.backend.calls):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await stopped.wait()
            assert last_state(on)["to"] == "terminated"


async def test_writing_tool_that_has_started_outlives_its_turn() -> None:
    release, finished = asyncio.Event(), asyncio.Event()

    async def write(arguments: Any, context: Any) -> str:
        await release.wait()
        finished.set()
        return "written"

    provider = RecordingProvider([spec("now", writes=True)], {"now": write})
    async with stage(ScriptedBackend(NOW), provider) as on:
        task = asyncio.create_task(on.run(streamed=False))
        async with asyncio.timeout(5):
            while not on.provider.calls:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            release.set()
            await finished.wait()


async def _forever(stopped: asyncio.Event, *_: Any) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        stopped.set()


# --- the pool under the loop ---------------------------------------------------------------------------------------


@BOTH
async def test_second_attempt_answers_where_the_first_failed_before_content_B011(streamed: bool) -> None:
    backend = ScriptedBackend([d({"role": "assistant", "content": ""}), UpstreamBroken("cut")], OK)
    async with stage(backend, retries=1, clock=HandClock()) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, len(backend.calls)) == ("ok", 2)
        assert [event["backend"] for event in on.events("attempt.failed")] == ["b1"]


@BOTH
async def test_next_backend_answers_when_attempts_of_the_first_are_used_up(streamed: bool) -> None:
    first = ScriptedBackend(then=UpstreamUnavailable("down", status=503))
    second = ScriptedBackend(NOW, OK, name="b2")
    async with stage(first, RecordingProvider([spec("now")]), backends=[second], retries=1, clock=HandClock()) as on:
        assert (await on.answer(streamed=streamed)).text == "ok"
        assert (len(first.calls), len(second.calls)) == (2, 2), "the later round asks the backend that answered"
        assert on.turn is not None
        assert on.turn.backend == "b2"


async def test_what_cannot_be_helped_is_not_tried_again() -> None:
    backend = ScriptedBackend(UpstreamRefused("invalid temperature", status=400))
    async with stage(backend, backends=[ScriptedBackend(name="b2")], retries=3) as on:
        with pytest.raises(UpstreamRefused):
            await on.run(streamed=False)
        assert len(backend.calls) == 1


@BOTH
async def test_each_wait_follows_the_failure_before_it_B016(streamed: bool) -> None:
    clock = HandClock()
    at: list[float] = []

    def failing(retry_after_s: float) -> Any:
        def script(call: ModelCall) -> list[Any]:
            at.append(clock.monotonic())
            return [UpstreamUnavailable("slow down", status=429, retry_after_s=retry_after_s)]

        return script

    def answering(call: ModelCall) -> list[Any]:
        at.append(clock.monotonic())
        return list(OK)

    async with stage(ScriptedBackend(failing(2), failing(0), answering), retries=2, clock=clock) as on:
        await on.answer(streamed=streamed)
    assert 2 <= at[1] - at[0] < 2.5
    assert 0 <= at[2] - at[1] < 0.5


async def test_very_long_wait_is_not_waited_but_told_B016() -> None:
    clock = HandClock()
    began = clock.monotonic()
    backend = ScriptedBackend(UpstreamUnavailable("slow down", status=429, retry_after_s=86400))
    async with stage(backend, retries=2, clock=clock) as on:
        with pytest.raises(GatewayError) as caught:
            await on.run(streamed=False)
    assert caught.value.retry_after_s == 86400
    assert (clock.monotonic(), len(backend.calls)) == (began, 1)


async def test_very_long_wait_is_skipped_for_the_next_backend_B016() -> None:
    clock = HandClock()
    began = clock.monotonic()
    first = ScriptedBackend(UpstreamUnavailable("slow down", status=429, retry_after_s=86400))
    second = ScriptedBackend(OK, name="b2")
    async with stage(first, backends=[second], retries=2, clock=clock) as on:
        assert (await on.answer(streamed=False)).text == "ok"
    assert (clock.monotonic(), len(first.calls)) == (began, 1)
