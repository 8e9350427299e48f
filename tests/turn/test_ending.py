"""Turns that a limit ends: the client gets the best answer so far, a plain statement, and `length`."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.errors import UpstreamTimeout
from gateway.security.prices import Price
from gateway.store.store import JournalEntry
from tests.fakes import HandClock, KeptJournal, RecordingProvider, ScriptedBackend, spec
from tests.frames import d, f, tc
from tests.turn.stage import stage
from tests.turn.test_loop import calling, sent, text

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])


def looking(answer: Any = "r", **more: Any) -> RecordingProvider:
    """One tool that takes anything."""
    return RecordingProvider([spec("look", parameters={"type": "object"}, **more)], {"look": answer})


async def _gives(value: Any) -> Any:
    return value


async def forever(stopped: asyncio.Event, *_: Any) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        stopped.set()


@BOTH
async def test_tokens_end_the_tools_while_there_is_room_for_an_answer(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("look", "{}"), tokens=(350, 10)), text("all I know", tokens=(320, 10)))
    async with stage(backend, looking(), tools={"max_turn_tokens": 1000}) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, seen.finish) == ("all I know", "stop")
        assert backend.field(1, "tool_choice") == "none"
        told = json.loads(sent(backend.calls[1])[-1]["content"])
        assert told["note"] == (
            "No tool can be called any more: the limit of 1000 tokens is reached. Answer with what there is."
        )


@BOTH
async def test_tokens_that_leave_no_room_end_the_turn_with_what_was_said(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("look", "{}"), said="Looking", tokens=(900, 10)))
    async with stage(backend, looking(), route={"max_turn_tokens": 1000}) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, seen.finish) == ("Looking\n\n(Stopped: the limit of 1000 tokens is reached.)", "length")
        assert (len(backend.calls), seen.usage["total_tokens"]) == (1, 910)
        assert on.events("state.changed")[-1]["reason"] == "length: the limit of 1000 tokens is reached"


# A thousandth of the currency for a token.
DEAR = Price(1_000_000, 1_000_000, 1_000_000)


@BOTH
async def test_cost_ends_the_tools_while_there_is_room_for_an_answer(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("look", "{}"), tokens=(350, 10)), text("all I know", tokens=(320, 10)))
    async with stage(backend, looking(), tools={"max_turn_cost": 1}, price=DEAR) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, seen.finish) == ("all I know", "stop")
        told = json.loads(sent(backend.calls[1])[-1]["content"])
        assert told["note"].startswith(
            "No tool can be called any more: the limit of what one turn may cost is reached."
        )


@BOTH
async def test_cost_that_leaves_no_room_ends_the_turn_with_what_was_said(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("look", "{}"), said="Looking", tokens=(900, 10)))
    async with stage(backend, looking(), route={"max_turn_cost": 1}, tools={"max_turn_cost": 9}, price=DEAR) as on:
        seen = await on.answer(streamed=streamed)
        said = "Looking\n\n(Stopped: the limit of what one turn may cost is reached.)"
        assert (seen.text, seen.finish, len(backend.calls)) == (said, "length", 1)


async def test_cost_that_nobody_knows_ends_nothing() -> None:
    backend = ScriptedBackend(calling(("look", "{}"), tokens=(900, 10)), text("done", tokens=(900, 10)))
    async with stage(backend, looking(), route={"max_turn_cost": 1}) as on:
        seen = await on.answer(streamed=False)
        assert (seen.text, seen.finish) == ("done", "stop")


@BOTH
async def test_answer_is_never_empty_where_a_limit_ended_the_tools(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("look", "{}")), text(""))
    async with stage(backend, looking(), route={"max_rounds": 1}) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, seen.finish) == ("(Stopped: the limit of 1 tool rounds is reached.)", "length")


@BOTH
async def test_what_a_last_round_refuses_or_asks_of_the_client_is_an_answer(streamed: bool) -> None:
    door = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}
    backend = ScriptedBackend(calling(("look", "{}")), [d({"refusal": "No."}), f("stop")])
    async with stage(backend, looking(), route={"max_rounds": 1}) as on:
        assert (await on.answer(streamed=streamed)).finish == "stop"
    backend = ScriptedBackend(calling(("look", "{}")), calling(("open_door", "{}")))
    async with stage(backend, looking(), route={"max_rounds": 1}) as on:
        seen = await on.answer(streamed=streamed, tools=[door])
        assert (seen.text, seen.calls, seen.finish) == ("", [("open_door", "{}")], "tool_calls")


@BOTH
async def test_last_of_the_time_is_for_the_answer(streamed: bool) -> None:
    clock = HandClock()

    async def slowly(arguments: Any, context: Any) -> str:
        await clock.sleep(9)
        return "r"

    backend = ScriptedBackend(calling(("look", "{}")), text("in time"))
    async with stage(backend, looking(slowly, timeout_s=60), clock=clock) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, seen.finish, backend.field(1, "tool_choice")) == ("in time", "stop", "none")


@BOTH
async def test_deadline_within_a_tool_ends_the_turn_with_what_was_said(streamed: bool) -> None:
    stopped = asyncio.Event()
    backend = ScriptedBackend(calling(("look", "{}"), said="Looking. "))
    async with stage(backend, looking(functools.partial(forever, stopped)), turn_timeout_s=0.2) as on:
        async with asyncio.timeout(5):
            seen = await on.answer(streamed=streamed)
            await stopped.wait()
        assert (seen.text, seen.finish) == ("Looking. (Stopped: the time limit of 0.2 s is reached.)", "length")
        assert on.events("hidden.kept") == [], "a call without a result is nobody's history"


@BOTH
async def test_deadline_within_a_writing_tool_says_that_its_effect_is_not_known(streamed: bool) -> None:
    stopped = asyncio.Event()
    backend = ScriptedBackend(calling(("look", "{}")))
    provider = looking(functools.partial(forever, stopped), writes=True)
    async with stage(backend, provider, turn_timeout_s=0.2) as on:
        async with asyncio.timeout(5):
            seen = await on.answer(streamed=streamed)
        assert seen.text == ("(Stopped: the time limit of 0.2 s is reached; whether `look` took effect is not known.)")
        assert not stopped.is_set()


@BOTH
async def test_deadline_before_a_writing_call_was_written_down_leaves_no_doubt_about_it(streamed: bool) -> None:
    class Stuck(KeptJournal):
        async def append(
            self, entries: Sequence[JournalEntry], *, held_by: str | None = None, hasty: bool = False
        ) -> None:
            await asyncio.Event().wait()

    backend = ScriptedBackend(calling(("look", "{}")))
    async with stage(backend, looking(writes=True), journal=Stuck(), turn_timeout_s=0.2) as on:
        async with asyncio.timeout(5):
            seen = await on.answer(streamed=streamed)
        assert (seen.text, on.ran()) == ("(Stopped: the time limit of 0.2 s is reached.)", [])


@BOTH
async def test_deadline_in_a_later_round_keeps_what_came_of_the_earlier_ones(streamed: bool) -> None:
    hanging = asyncio.Event()
    backend = ScriptedBackend(
        calling(("look", "{}"), said="Looking. "),
        [d({"content": "I see "}), d({"content": "tw"}), functools.partial(forever, hanging)],
        text("two"),
    )
    async with stage(backend, looking("two trees"), turn_timeout_s=0.3) as on:
        async with asyncio.timeout(5):
            seen = await on.answer(streamed=streamed)
        half = "I see tw\n\n" if streamed else ""
        assert seen.text == f"Looking. {half}(Stopped: the time limit of 0.3 s is reached.)"
        assert seen.finish == "length"
        await on.continuity.flush()
        asked = {"role": "user", "content": "hi"}
        answer = {"role": "assistant", "content": seen.text}
        turn = await on.prepare(messages=[asked, answer, {"role": "user", "content": "go on"}])
        assert [message.role for message in turn.messages[2:]] == ["assistant", "tool", "assistant", "user"]
        assert turn.messages[4].text == seen.text.removeprefix("Looking. ")
        assert not turn.messages[4].tool_calls


@BOTH
async def test_deadline_before_anything_was_answered_is_a_timeout(streamed: bool) -> None:
    hanging = asyncio.Event()
    backend = ScriptedBackend([functools.partial(forever, hanging)])
    async with stage(backend, looking(), turn_timeout_s=0.1) as on:
        async with asyncio.timeout(5):
            with pytest.raises(UpstreamTimeout):
                await on.run(streamed=streamed)
        assert on.sink.chunks == []


async def test_half_a_client_call_is_no_call_when_the_time_is_over() -> None:
    hanging = asyncio.Event()
    half: list[Any] = [tc(0, id="c9", name="open_door", arguments='{"n'), functools.partial(forever, hanging)]
    backend = ScriptedBackend(calling(("look", "{}")), half)
    door = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}
    async with stage(backend, looking(), turn_timeout_s=0.3) as on:
        async with asyncio.timeout(5):
            result = await on.run(streamed=True, tools=[door])
        assert (result.finish_reason, result.message.tool_calls) == ("length", ())
        assert on.sink.finishes == ["length"]


@BOTH
async def test_client_s_calls_beside_one_that_did_not_end_are_in_both_forms_of_the_answer(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("look", "{}"), ("open_door", "{}")))
    door = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}
    async with stage(backend, looking(functools.partial(forever, asyncio.Event())), turn_timeout_s=0.2) as on:
        async with asyncio.timeout(5):
            seen = await on.answer(streamed=streamed, tools=[door])
        # A stream has shown them by then.
        assert (seen.calls, seen.finish) == ([("open_door", "{}")], "length")


# --- what the model is told about a round --------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("found", [None, "", [], {}], ids=repr)
async def test_empty_result_is_a_reason_to_reflect_and_the_model_is_told(streamed: bool, found: Any) -> None:
    backend = ScriptedBackend(calling(("look", "{}")), text("nothing there"))
    async with stage(backend, looking(lambda *_: _gives(found))) as on:
        assert (await on.answer(streamed=streamed)).finish == "stop"
        assert "found nothing" in json.loads(sent(backend.calls[1])[-1]["content"])["note"]
        steps = [(event["to"], event["reason"]) for event in on.events("state.changed")]
        assert ("reflecting", "`look` found nothing") in steps


@BOTH
async def test_failed_result_is_a_reason_to_reflect_and_the_model_reads_it(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("look", "{}")), text("no luck"))
    async with stage(backend, looking(ValueError("it is dark"))) as on:
        await on.answer(streamed=streamed)
        assert "it is dark" in json.loads(sent(backend.calls[1])[-1]["content"])["error"]
        [reason] = [event["reason"] for event in on.events("state.changed") if event["to"] == "reflecting"]
        assert reason == "`look` failed: it is dark"


@BOTH
async def test_nothing_is_a_good_result_of_a_writing_tool(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("look", "{}")), text("done"))
    async with stage(backend, looking(None, writes=True)) as on:
        await on.answer(streamed=streamed)
        assert json.loads(sent(backend.calls[1])[-1]["content"]) == {"ok": True, "result": None}
        assert "reflecting" not in [event["to"] for event in on.events("state.changed")]


async def test_notes_stay_in_the_conversation_as_they_were_sent() -> None:
    backend = ScriptedBackend(calling(("look", "{}")), text("nothing there"))
    async with stage(backend, looking(lambda *_: _gives([]))) as on:
        await on.run(streamed=False)
        first = sent(backend.calls[1])
        await on.continuity.flush()
        said = {"role": "assistant", "content": "nothing there"}
        turn = await on.prepare(messages=[{"role": "user", "content": "hi"}, said, {"role": "user", "content": "ok"}])
        again = [json.loads(message.wire or b"null") for message in turn.messages[2:4]]
        assert again == first[1:3]


def _thread(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


@pytest.mark.parametrize("begins_here", [True, False])
async def test_a_thread_is_known_to_be_bare_as_long_as_all_its_answers_were_given_here(begins_here: bool) -> None:
    said = "one", "two", "three"
    async with stage(ScriptedBackend(*map(text, said)), looking()) as on:
        sent: list[str] = [] if begins_here else ["before", "zero"]
        for number, answer in enumerate(said):
            await on.run(streamed=False, messages=_thread(*sent, f"question {number}"))
            assert on.turn is not None
            assert on.turn.bare is begins_here
            sent += [f"question {number}", answer]
