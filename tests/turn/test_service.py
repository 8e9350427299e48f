from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.chat.codecs.chat_completions import decode_request
from gateway.errors import InvalidRequest, NotAllowed
from gateway.observe.events import Recorder
from gateway.turn.context import Turn
from gateway.turn.loop import TurnResult
from gateway.turn.prepare import NO_WISHES
from gateway.turn.service import Turns
from tests.fakes import RecordingProvider, RecordingSink, ScriptedBackend, spec
from tests.frames import d, f, u
from tests.turn.stage import TRACE_ID, stage

REQUEST = decode_request(b'{"model":"auto","messages":[{"role":"user","content":"hi"}],"temperature":1}')
OK = [d({"content": "ok"}), f("stop"), u(3, 2)]


class Traces:
    def __init__(self) -> None:
        self.all: list[Recorder] = []

    def finished(self, trace: Recorder) -> None:
        self.all.append(trace)

    @property
    def last(self) -> tuple[str, dict[str, Any]]:
        event = self.all[-1].events[-1]
        return event.type, event.data


async def ask(turns: Turns, principal: Any, **more: Any) -> Any:
    return await turns.answer(TRACE_ID, principal, REQUEST, NO_WISHES, "/x", more.get("begun", lambda turn: None), b"")


async def test_finished_turn_is_told_once_with_what_it_cost() -> None:
    traces = Traces()
    async with stage(ScriptedBackend(OK)) as on:
        turns = on.service(traces)
        await ask(turns, on.principal, begun=lambda turn: RecordingSink())
        kind, summary = traces.last
        assert (kind, len(traces.all), turns.running) == ("turn.finished", 1, {})
        assert [event.seq for event in traces.all[0].events] == list(range(len(traces.all[0].events)))
        wanted = {
            "status": 200,
            "key": "key",
            "model": "m",
            "route": "r",
            "backend": "b1",
            "rounds": 1,
            "finish_reason": "stop",
        }
        assert wanted.items() <= summary.items()
        assert (summary["prompt_tokens"], summary["completion_tokens"]) == (3, 2)
        assert traces.all[0].events[0].type == "request.received"


async def test_answer_waits_for_nobodys_trace() -> None:
    traces = Traces()
    async with stage(ScriptedBackend(OK)) as on:
        turns = on.service(traces)
        told: list[int] = []

        async def deliver(result: Any) -> None:
            assert result.message.text == "ok"
            told.append(len(traces.all))
            await asyncio.sleep(0)

        arguments = (TRACE_ID, on.principal, REQUEST, NO_WISHES, "/x", lambda _: None, b"")
        await turns.answer(*arguments, deliver=deliver)
        assert (told, traces.last[0], turns.running) == ([0], "turn.finished", {})


async def test_answer_is_out_before_it_is_paid_and_before_what_it_leaves_is_remembered() -> None:
    async with stage(ScriptedBackend(OK), RecordingProvider((spec("now"),))) as on:
        turns = on.service()
        running: list[Turn] = []
        seen: list[tuple[bool, bool]] = []

        def look(result: TurnResult) -> None:
            later = (*REQUEST.messages, result.message)
            paid = running[0].permit is None and not running[0].spent
            seen.append((paid, on.continuity.is_bare(on.principal.owner, None, later)))

        async def deliver(result: TurnResult) -> None:
            look(result)

        arguments = (TRACE_ID, on.principal, REQUEST, NO_WISHES, "/x", running.append, b"")
        look(await turns.answer(*arguments, deliver=deliver))
        assert seen == [(False, False), (True, True)]


async def test_answer_that_cannot_be_delivered_is_a_failed_turn_and_paid() -> None:
    traces = Traces()
    async with stage(ScriptedBackend(OK)) as on:
        turns = on.service(traces)
        running: list[Turn] = []

        async def deliver(_: Any) -> None:
            raise RuntimeError("no way")

        arguments = (TRACE_ID, on.principal, REQUEST, NO_WISHES, "/x", running.append, b"")
        with pytest.raises(RuntimeError, match="no way"):
            await turns.answer(*arguments, deliver=deliver)
        assert (traces.last[0], traces.last[1]["status"], turns.running) == ("turn.failed", 500, {})
        assert (running[0].permit, running[0].spent) == (None, [])


async def test_failed_turn_is_told_once() -> None:
    traces = Traces()
    async with stage(ScriptedBackend(InvalidRequest("no"))) as on:
        with pytest.raises(InvalidRequest):
            await ask(on.service(traces), on.principal)
        assert (traces.last[0], traces.last[1]["status"], len(traces.all)) == ("turn.failed", 400, 1)


async def test_defect_is_told_without_its_words() -> None:
    traces = Traces()
    async with stage(ScriptedBackend(RuntimeError("secret"))) as on:
        with pytest.raises(RuntimeError):
            await ask(on.service(traces), on.principal)
        assert (traces.last[0], traces.last[1]["status"]) == ("turn.failed", 500)
        assert "secret" not in str(traces.last[1])


async def test_cancelled_turn_is_told_as_499_and_gives_its_version_back() -> None:
    traces = Traces()

    async def hang() -> None:
        await asyncio.Event().wait()

    async with stage(ScriptedBackend([hang])) as on:
        turns = on.service(traces)
        task = asyncio.create_task(ask(turns, on.principal))
        async with asyncio.timeout(5):
            while not on.backend.calls:
                await asyncio.sleep(0)
            assert list(turns.running) == [TRACE_ID]
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (traces.last[0], traces.last[1]["status"], turns.running) == ("turn.cancelled", 499, {})
        assert turns._versions._lease.users == 0


async def test_refused_request_is_told_with_its_owner() -> None:
    traces = Traces()
    async with stage(ScriptedBackend()) as on:
        turns = on.service(traces)
        turns.refuse(TRACE_ID, on.principal, "/x", NotAllowed("no"))
        turns.refuse(TRACE_ID, None, "/x", NotAllowed("no"))
        assert [trace.owner for trace in traces.all] == ["key", "-"]
        assert traces.last[0] == "request.refused"
