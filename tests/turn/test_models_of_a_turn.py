"""Which model does tool work, which one answers, and which one goes on when arguments fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.chat.blocks import Message, Reasoning, Text, ToolCall
from gateway.errors import UpstreamUnavailable
from gateway.turn.hidden import hidden_rounds
from gateway.turn.progress import thoughts_of
from tests.fakes import RecordingProvider, ScriptedBackend, spec
from tests.frames import Frame, d
from tests.turn.stage import Stage, stage
from tests.turn.test_loop import NUMBER, calling, sent, text

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
CLIENT_TOOL = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}


def now() -> RecordingProvider:
    return RecordingProvider([spec("now")], {"now": "ten"})


def asked(on: Stage) -> list[str]:
    return [event["model"] for event in on.events("round.started")]


@BOTH
async def test_tool_model_does_the_tool_work_and_the_model_answers(streamed: bool) -> None:
    cheap = ScriptedBackend(calling(("now", "{}"), said="Checking. "), text("cheap words", tokens=(5, 5)), name="cheap")
    backend = ScriptedBackend(text("Ten o'clock."))
    async with stage(backend, now(), model={"tool_model": "t"}, others={"t": cheap}) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, seen.finish) == ("Checking. Ten o'clock.", "stop")
        assert asked(on) == ["t", "t", "m"]
        assert seen.usage["total_tokens"] == 2 + 10 + 2, "words that were thrown away were paid for"
        assert [message["role"] for message in sent(backend.calls[0])] == ["user", "assistant", "tool"]
        # The answering model sees the tools its history calls, and may not call them.
        assert (backend.field(0, "tool_choice"), bool(backend.field(0, "tools"))) == ("none", True)
        assert on.turn is not None
        assert (on.turn.backend, on.turn.answering) == ("b1", "m")


@BOTH
async def test_answer_model_writes_the_answer(streamed: bool) -> None:
    eloquent = ScriptedBackend(text("It is ten."), name="b9")
    backend = ScriptedBackend(calling(("now", "{}")), text("ten"))
    async with stage(backend, now(), model={"answer_model": "a"}, others={"a": eloquent}) as on:
        seen = await on.answer(streamed=streamed)
        assert seen.text == "It is ten."
        assert asked(on) == ["m", "m", "a"]
        states = [event["to"] for event in on.events("state.changed")]
        assert states[-3:] == ["reflecting", "planning", "terminated"]


@BOTH
async def test_answer_model_alone_is_asked_where_there_are_no_tools(streamed: bool) -> None:
    eloquent = ScriptedBackend(text("hello"), name="b9")
    async with stage(ScriptedBackend(), model={"answer_model": "a"}, others={"a": eloquent}) as on:
        assert (await on.answer(streamed=streamed)).text == "hello"
        assert asked(on) == ["a"]


@BOTH
async def test_last_round_behind_a_limit_is_the_answer_model_s(streamed: bool) -> None:
    eloquent = ScriptedBackend(text("It is ten."), name="b9")
    backend = ScriptedBackend(calling(("now", "{}")))
    models = {"answer_model": "a"}
    async with stage(backend, now(), route={"max_rounds": 1}, model=models, others={"a": eloquent}) as on:
        assert (await on.answer(streamed=streamed)).text == "It is ten."
        assert asked(on) == ["m", "a"]


@BOTH
async def test_client_s_calls_end_the_turn_whoever_made_them(streamed: bool) -> None:
    cheap = ScriptedBackend(calling(("open_door", "{}"), said="Opening."), name="cheap")
    async with stage(ScriptedBackend(), now(), model={"tool_model": "t"}, others={"t": cheap}) as on:
        seen = await on.answer(streamed=streamed, tools=[CLIENT_TOOL])
        assert (seen.text, seen.calls, seen.finish) == ("Opening.", [("open_door", "{}")], "tool_calls")


@BOTH
async def test_words_that_were_withheld_are_forgotten_with_their_attempt(streamed: bool) -> None:
    down = UpstreamUnavailable("down", status=503)
    lost: list[Any] = [d({"role": "assistant", "content": "lost "}), down]
    cheap = ScriptedBackend(lost, calling(("now", "{}"), said="Checking. "), text("unsaid"), name="cheap")
    backend = ScriptedBackend(text("said"))
    async with stage(backend, now(), model={"tool_model": "t"}, others={"t": cheap}, retries=1) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, len(cheap.calls)) == ("Checking. said", 3)


@BOTH
async def test_turn_stays_on_the_backend_that_answered_in_each_of_its_models(streamed: bool) -> None:
    first = ScriptedBackend(UpstreamUnavailable("down", status=503), name="b1")
    second = ScriptedBackend(calling(("now", "{}")), calling(("now", "{}")), text("x"), name="b2")
    async with stage(first, now(), backends=[second]) as on:
        assert (await on.answer(streamed=streamed)).text == "x"
        assert (len(first.calls), len(second.calls)) == (1, 3)


@BOTH
async def test_second_failure_of_the_same_arguments_moves_the_turn_to_the_model_named_for_it(streamed: bool) -> None:
    wrong = calling(("f", '{"n":"many"}'))
    strong = ScriptedBackend(calling(("f", '{"n":2}')), text("two"), name="strong")
    provider = RecordingProvider([spec("f", parameters=NUMBER)], {"f": 1})
    async with stage(ScriptedBackend(wrong, wrong), provider, model={"escalate": "s"}, others={"s": strong}) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, on.ran()) == ("two", [("f", {"n": 2})])
        assert asked(on) == ["m", "m", "s", "s"]
        assert on.events("turn.escalated") == [{"from": "m", "to": "s"}]


@BOTH
async def test_failures_of_two_tools_move_nothing(streamed: bool) -> None:
    rounds: list[list[Frame]] = [calling(("f", "{}")), calling(("g", "{}")), text("sorry")]
    provider = RecordingProvider([spec("f", parameters=NUMBER), spec("g", parameters=NUMBER)])
    async with stage(
        ScriptedBackend(*rounds), provider, model={"escalate": "s"}, others={"s": ScriptedBackend()}
    ) as on:
        assert (await on.answer(streamed=streamed)).text == "sorry"
        assert on.events("turn.escalated") == []


@BOTH
async def test_thoughts_of_all_rounds_are_shown(streamed: bool) -> None:
    thinking: list[Any] = [d({"reasoning_content": "Which hour? "}), *calling(("now", "{}"))]
    backend = ScriptedBackend(thinking, [d({"reasoning_content": "Ten."}), *text("10:00")])
    async with stage(backend, now()) as on:
        result = await on.run(streamed=streamed)
        assert thoughts_of(result.message) == "Which hour? Ten."
        if result.body is not None:
            assert json.loads(result.body)["choices"][0]["message"]["reasoning_content"] == "Which hour? Ten."


@pytest.mark.parametrize("shown", [True, False], ids=["shown", "taken out by a hook"])
def test_model_gets_back_the_thoughts_of_each_round_in_its_place(shown: bool) -> None:
    rounds = (Message("assistant", (Reasoning("Which? "), ToolCall("a", "now", "{}"))), Message("tool", ()))
    last = Message("assistant", (Reasoning("Ten."), Text("10:00")))
    visible = Message("assistant", (*((Reasoning("Which? Ten."),) if shown else ()), Text("10:00")))
    assert thoughts_of(hidden_rounds(rounds, last, visible, ())[-1]) == ("Ten." if shown else "")
