from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gateway.backends.backend import ModelCall
from gateway.chat.blocks import Message, Text, ToolCall, ToolResult
from gateway.chat.codecs.chat_completions import encode_message
from gateway.store.store import JournalEntry
from gateway.tools.untrusted import OPERATOR_TEXT
from gateway.turn.state import State
from tests.fakes import KeptJournal, RecordingProvider, ScriptedBackend, spec
from tests.frames import Frame, d, f, tc, u
from tests.strict_history import history_fault
from tests.turn.stage import stage

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def text(said: str, *, tokens: tuple[int, int] = (1, 1), finish: str = "stop") -> list[Frame]:
    return [d({"role": "assistant", "content": said}), f(finish), u(*tokens)]


def calling(
    *calls: tuple[str, str], said: str = "", finish: str = "tool_calls", tokens: tuple[int, int] = (1, 1)
) -> list[Frame]:
    """A round that asks for these calls; their ids are `c0`, `c1` and so on."""
    made = [tc(index, id=f"c{index}", name=name, arguments=arguments) for index, (name, arguments) in enumerate(calls)]
    return [d({"role": "assistant", "content": said}), *made, f(finish), u(*tokens)]


def tools(*names: str, **answers: Any) -> RecordingProvider:
    """Reading tools without parameters."""
    return RecordingProvider([spec(name) for name in names], answers)


def client_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def sent(call: ModelCall) -> list[dict[str, Any]]:
    """The messages of a call without the operator's; a history that a strict server refuses fails."""
    messages = [json.loads(encode_message(message)) for message in call.messages]
    assert history_fault({"messages": messages}) is None
    return [message for message in messages if message["content"] != OPERATOR_TEXT]


@BOTH
async def test_tool_is_run_and_its_result_sent_before_the_answer(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("now", "{}"), said="Checking… "), text("10:00"))
    async with stage(backend, tools("now", now="ten")) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, seen.calls, seen.finish) == ("Checking… 10:00", [], "stop")
        assert on.ran() == [("now", {})]
        history = sent(backend.calls[1])
        assert [message["role"] for message in history] == ["user", "assistant", "tool"]
        assert history[1]["content"] == "Checking… "
        assert json.loads(history[2]["content"]) == {"ok": True, "result": "ten"}
        states = [event["to"] for event in on.events("state.changed")]
        assert states == ["planning", "executing", "observing", "planning", "terminated"]


@BOTH
async def test_usage_of_all_rounds_is_summed_B076_B078(streamed: bool) -> None:
    backend = ScriptedBackend(
        calling(("now", "{}"), tokens=(100, 10)), calling(("now", "{}"), tokens=(200, 20)), text("x", tokens=(300, 30))
    )
    async with stage(backend, tools("now")) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.usage["prompt_tokens"], seen.usage["completion_tokens"], seen.usage["total_tokens"]) == (
            600,
            60,
            660,
        )
        assert [event["prompt_tokens"] for event in on.events("round.answered")] == [100, 200, 300]


@BOTH
async def test_usage_is_estimated_where_the_upstream_gives_none_B070(streamed: bool) -> None:
    async with stage(ScriptedBackend([d({"content": "a word or two"}), f("stop")])) as on:
        seen = await on.answer(streamed=streamed)
        assert seen.usage["total_tokens"] > 0
        assert on.turn is not None
        assert on.turn.usage.estimated


@BOTH
async def test_tool_rounds_are_limited_and_the_last_round_may_not_call(streamed: bool) -> None:
    backend = ScriptedBackend(*(calling(("f", json.dumps({"n": n}))) for n in range(2)), text("done"))
    provider = RecordingProvider([spec("f", parameters=NUMBER)], {"f": 1})
    async with stage(backend, provider, route={"max_rounds": 2}) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, seen.finish) == ("done", "stop")
        assert len(on.ran()) == 2
        assert [backend.field(number, "tool_choice") for number in range(3)] == [None, None, "none"]
        assert State.REFLECTING.value in [event["to"] for event in on.events("state.changed")]


@BOTH
async def test_model_that_calls_on_after_the_limit_is_stopped_with_a_reason(streamed: bool) -> None:
    backend = ScriptedBackend(then=calling(("f", '{"n":1}'), said="again "))
    provider = RecordingProvider([spec("f", parameters=NUMBER)], {"f": 1})
    async with stage(backend, provider, route={"max_rounds": 2}) as on:
        seen = await on.answer(streamed=streamed)
        assert seen.text == "again again again (Stopped: the limit of 2 tool rounds is reached.)"
        assert (seen.finish, seen.calls) == ("length", [])
        assert len(on.ran()) == 2


@BOTH
async def test_same_call_with_the_same_result_ends_the_tools(streamed: bool) -> None:
    backend = ScriptedBackend(*(calling(("now", "{}")) for _ in range(3)), text("done"))
    async with stage(backend, tools("now", now="ten")) as on:
        assert (await on.answer(streamed=streamed)).text == "done"
        assert len(on.ran()) == 3
        assert backend.field(3, "tool_choice") == "none"


@BOTH
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
async def test_forced_choice_holds_for_the_first_round_only_B025(streamed: bool, choice: Any) -> None:
    def answer(call: ModelCall) -> list[Frame]:
        forced = json.loads(bytes(call.fields["tool_choice"]))
        return text("10:00") if forced == "auto" else calling(("now", "{}"))

    async with stage(ScriptedBackend(then=answer), tools("now")) as on:
        seen = await on.answer(streamed=streamed, tool_choice=choice)
        assert (seen.text, len(on.ran())) == ("10:00", 1)


@BOTH
async def test_choice_none_runs_no_tool_B025(streamed: bool) -> None:
    backend = ScriptedBackend(text("no tools"))
    async with stage(backend, tools("now")) as on:
        assert (await on.answer(streamed=streamed, tool_choice="none")).text == "no tools"
        assert (on.ran(), len(backend.calls)) == ([], 1)
        assert backend.field(0, "tools") is backend.field(0, "tool_choice") is None


@BOTH
async def test_choice_that_names_a_client_tool_is_forwarded_B025(streamed: bool) -> None:
    named = {"type": "function", "function": {"name": "open_door"}}
    backend = ScriptedBackend(calling(("open_door", "{}")))
    async with stage(backend, tools("now")) as on:
        seen = await on.answer(streamed=streamed, tools=[client_tool("open_door")], tool_choice=named)
        assert backend.field(0, "tool_choice") == named
        assert seen.calls == [("open_door", "{}")]


@BOTH
async def test_nothing_about_tools_is_sent_where_there_are_none_B017(streamed: bool) -> None:
    nothing: list[dict[str, Any]] = [{}, {"tools": []}]
    for more in nothing:
        backend = ScriptedBackend(text("x"))
        async with stage(backend) as on:
            await on.answer(streamed=streamed, parallel_tool_calls=False, tool_choice="auto", **more)
            assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(backend.calls[0].fields)


@BOTH
async def test_parallel_tool_calls_false_is_forwarded_each_round_and_calls_run_in_turn_B017(streamed: bool) -> None:
    running = 0

    async def slowly(arguments: Any, context: Any) -> int:
        nonlocal running
        running += 1
        assert running == 1, "two calls at once"
        await on.clock.sleep(0.01)
        running -= 1
        return 1

    backend = ScriptedBackend(calling(("a", "{}"), ("b", "{}")), text("x"))
    async with stage(backend, tools("a", "b", a=slowly, b=slowly)) as on:
        await on.answer(streamed=streamed, parallel_tool_calls=False)
        assert [name for name, _ in on.ran()] == ["a", "b"]
        assert [backend.field(number, "parallel_tool_calls") for number in range(2)] == [False, False]


@BOTH
async def test_parallel_calls_run_at_once_and_their_results_keep_the_order(streamed: bool) -> None:
    second_started = asyncio.Event()

    async def first(arguments: Any, context: Any) -> str:
        async with asyncio.timeout(5):
            await second_started.wait()
        return "first"

    async def second(arguments: Any, context: Any) -> str:
        second_started.set()
        return "second"

    backend = ScriptedBackend(calling(("a", "{}"), ("b", "{}")), text("x"))
    async with stage(backend, tools("a", "b", a=first, b=second)) as on:
        await on.answer(streamed=streamed)
        results = [json.loads(message["content"])["result"] for message in sent(backend.calls[1])[2:]]
        assert results == ["first", "second"]


@BOTH
async def test_client_tools_alone_end_the_turn_B026(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("open_door", '{"n":1}'), said="Opening."))
    async with stage(backend, tools("now")) as on:
        seen = await on.answer(streamed=streamed, tools=[client_tool("open_door")])
        assert (seen.text, seen.calls, seen.finish) == ("Opening.", [("open_door", '{"n":1}')], "tool_calls")
        assert (len(backend.calls), on.ran()) == (1, [])


@BOTH
async def test_mixed_calls_run_ours_and_give_the_client_its_own(streamed: bool) -> None:
    backend = ScriptedBackend(calling(("now", "{}"), ("open_door", "{}"), ("now", "{}")))
    async with stage(backend, tools("now")) as on:
        seen = await on.answer(streamed=streamed, tools=[client_tool("open_door")])
        assert (seen.calls, seen.finish) == ([("open_door", "{}")], "tool_calls")
        assert (len(backend.calls), on.ran()) == (1, [("now", {}), ("now", {})])
        assert on.events("hidden.kept") == [{"messages": 3}]


@BOTH
@pytest.mark.parametrize("finish", ["stop", "", "function_call", "tool_use"])
async def test_calls_count_whatever_finish_reason_came_with_them_B024(streamed: bool, finish: str) -> None:
    backend = ScriptedBackend(calling(("now", "{}"), finish=finish), text("It is 9°."))
    async with stage(backend, tools("now")) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, seen.finish, len(on.ran())) == ("It is 9°.", "stop", 1)
    async with stage(ScriptedBackend(calling(("open_door", "{}"), finish=finish)), tools("now")) as on:
        seen = await on.answer(streamed=streamed, tools=[client_tool("open_door")])
        assert (seen.calls, seen.finish) == ([("open_door", "{}")], "tool_calls")


@BOTH
async def test_unknown_tool_gets_a_result_and_the_turn_goes_on_B034(streamed: bool) -> None:
    backend = ScriptedBackend(
        calling(("fleet_list_hosts", "{}")), calling(("fleet_get_hosts", "{}")), text("two hosts")
    )
    async with stage(backend, tools("fleet_get_hosts", fleet_get_hosts=2)) as on:
        assert (await on.answer(streamed=streamed)).text == "two hosts"
        result = sent(backend.calls[1])[2]
        assert result["tool_call_id"] == "c0"
        assert "fleet_get_hosts" in json.loads(result["content"])["error"]
        assert on.ran() == [("fleet_get_hosts", {})]


@BOTH
async def test_unknown_tool_for_ever_ends_by_the_failure_limit_B034(streamed: bool) -> None:
    def answer(call: ModelCall) -> list[Frame]:
        if "tool_choice" in call.fields:
            return text("I cannot.")
        return calling(("made_up", json.dumps({"n": len(call.messages)})))

    backend = ScriptedBackend(then=answer)
    async with stage(backend, tools("now"), route={"max_rounds": 50}) as on:
        assert (await on.answer(streamed=streamed)).text == "I cannot."
        assert len(backend.calls) == 4


@BOTH
@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_calls_that_were_cut_are_never_run_B022(streamed: bool, finish: str) -> None:
    for arguments in ('{"n":1', '{"n":1}'):
        backend = ScriptedBackend(calling(("f", arguments), finish=finish))
        async with stage(backend, RecordingProvider([spec("f", parameters=NUMBER, writes=True)])) as on:
            seen = await on.answer(streamed=streamed)
            assert (seen.finish, seen.calls) == (finish, [])
            assert (on.ran(), on.journal.kept, len(backend.calls)) == ([], [], 1)


@BOTH
@pytest.mark.parametrize("arguments", ["", "   ", "null"])
async def test_blank_arguments_run_a_tool_that_needs_none_B023(streamed: bool, arguments: str) -> None:
    backend = ScriptedBackend(calling(("ping", arguments)), text("pong"))
    async with stage(backend, tools("ping")) as on:
        assert (await on.answer(streamed=streamed)).text == "pong"
        assert on.ran() == [("ping", {})]
        assert sent(backend.calls[1])[1]["tool_calls"][0]["function"]["arguments"] == "{}"


@BOTH
async def test_without_tool_rounds_no_registry_tool_is_offered_and_none_leaks(streamed: bool) -> None:
    backend = ScriptedBackend(text("x"))
    async with stage(backend, tools("now"), route={"max_rounds": 0}) as on:
        await on.answer(streamed=streamed)
        assert "tools" not in backend.calls[0].fields
        assert on.events("tools.offered") == []


async def test_name_that_client_and_registry_share_stays_the_client_s() -> None:
    backend = ScriptedBackend(calling(("gateway__now", "{}")), calling(("now", "{}")))
    async with stage(backend, tools("now")) as on:
        seen = await on.answer(streamed=False, tools=[client_tool("now")])
        offered = [tool["function"]["name"] for tool in backend.field(0, "tools")]
        assert offered == ["now", "gateway__now"]
        assert seen.calls == [("now", "{}")]
        assert on.ran() == [("now", {})]


def result_of(message: Message) -> str:
    (block,) = message.blocks
    assert isinstance(block, ToolResult)
    return block.text


async def test_history_grows_by_what_was_said_and_done() -> None:
    backend = ScriptedBackend(calling(("now", "{}"), said="a"), calling(("now", "{}"), said="b"), text("c"))
    async with stage(backend, tools("now", now=1)) as on:
        await on.run(streamed=True)
        result = Message("tool", (ToolResult("c0", '{"ok":true,"result":1}'),))
        asked = tuple(Message("assistant", (Text(said), ToolCall("c0", "now", "{}"))) for said in "ab")
        operator, first, *rest = backend.calls[2].messages
        assert operator.text == OPERATOR_TEXT
        assert tuple(rest[:3]) == (asked[0], result, asked[1])
        # The second call brought what the first one had: the model is told so.
        assert "has brought the same result" in json.loads(result_of(rest[3]))["note"]
        assert first.wire is not None


@BOTH
async def test_answer_is_journalled_before_its_writing_call_starts(streamed: bool) -> None:
    order: list[str] = []

    class Journal(KeptJournal):
        async def append(
            self, entries: Sequence[JournalEntry], *, held_by: str | None = None, hasty: bool = False
        ) -> None:
            await super().append(entries, held_by=held_by, hasty=hasty)
            order.append("journal")

    async def write(arguments: Any, context: Any) -> str:
        order.append("write")
        return str(context.idempotency_key)

    provider = RecordingProvider([spec("look"), spec("write", writes=True)], {"write": write})
    backend = ScriptedBackend(calling(("look", "{}")), calling(("look", "{}"), ("write", "{}")), text("done"))
    async with stage(backend, provider, journal=Journal()) as on:
        await on.answer(streamed=streamed)
        assert order == ["journal", "write"]
        assert {entry.turn_id for entry in on.journal.kept} == {on.record.trace_id}
        # What was read before it comes with it, so that another attempt reads the same.
        assert [(entry.round, entry.kind) for entry in on.journal.kept] == [(1, "answer"), (1, "tool"), (2, "answer")]
        message = msgspec.convert(on.journal.kept[2].content["message"], Message)
        assert [call.name for call in message.tool_calls] == ["look", "write"]
        assert on.kinds().index("journal.written") < max(
            i for i, kind in enumerate(on.kinds()) if kind == "tool.started"
        )
        result = json.loads(sent(backend.calls[2])[-1]["content"])
        assert result["result"] == f"{on.record.trace_id}.2.1"


async def test_turn_that_only_reads_commits_nothing() -> None:
    async with stage(ScriptedBackend(calling(("now", "{}")), text("x")), tools("now")) as on:
        await on.run(streamed=False)
        assert on.journal.kept == []
