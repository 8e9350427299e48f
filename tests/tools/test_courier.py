from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.chat.blocks import ToolCall
from gateway.clock import SystemClock
from gateway.observe.events import Recorder
from gateway.tools.guards.paging import READ_RESULT
from gateway.tools.guards.remembered import Remembered
from gateway.tools.outcome import Outcome
from gateway.tools.providers.python import PythonProvider
from gateway.tools.spec import InvalidArguments, ToolContext, ToolFatal, ToolRetry
from gateway.tools.threads import Threads
from tests.tools.recording_provider import RecordingProvider, spec
from tests.tools.workshop import Workshop, context, open_workshop, plugin, write_plugin

NUMBER: Mapping[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def recording(answers: Mapping[str, Any], **flags: Any) -> RecordingProvider:
    return RecordingProvider([spec(name, **flags) for name in answers], answers)


def error(outcome: Outcome) -> str:
    read = json.loads(outcome.content)
    assert read["ok"] is outcome.ok is False
    assert outcome.error is not None
    return str(read["error"])


async def test_results_come_in_the_order_of_the_calls_and_the_calls_run_together() -> None:
    gates = {name: asyncio.Event() for name in "abc"}
    started = asyncio.Barrier(3)

    def answer(name: str) -> Any:
        async def run(arguments: Any, ctx: ToolContext) -> str:
            await started.wait()
            await gates[name].wait()
            # Finishing starts the one before: c, b, a.
            if name != "a":
                gates[chr(ord(name) - 1)].set()
            return name

        return run

    gates["c"].set()
    provider = recording({name: answer(name) for name in "abc"})
    async with open_workshop([provider]) as workshop, asyncio.timeout(5):
        outcomes = await workshop.calls([("a", "{}"), ("b", "{}"), ("c", "{}")])
    assert [json.loads(outcome.content)["result"] for outcome in outcomes] == ["a", "b", "c"]
    assert [outcome.call_id for outcome in outcomes] == ["call_0", "call_1", "call_2"]


async def test_calls_that_may_not_run_together_run_one_after_the_other() -> None:
    running: list[str] = []

    async def alone(arguments: Any, ctx: ToolContext) -> int:
        running.append("in")
        await asyncio.sleep(0)
        running.append("out")
        return 1

    async with open_workshop([recording({"a": alone})]) as workshop:
        await workshop.calls([("a", "{}")] * 3, parallel=False)
    assert running == ["in", "out"] * 3


async def test_b034_an_unknown_name_is_answered_with_the_nearest_offered_ones() -> None:
    provider = recording({"fleet_get_hosts": [], "weather": 1})
    async with open_workshop([provider]) as workshop:
        outcomes = await workshop.calls(
            [("fleet_list_hosts", "{}"), ("functions.fleet_get_hosts", "{}"), ("Fleet_Get_Hosts", "{}"), ("xyz", "{}")]
        )
        assert all("`fleet_get_hosts`" in error(outcome) for outcome in outcomes)
        assert "weather" not in error(outcomes[0])
        assert "`weather`" in error(outcomes[3])
        assert provider.calls == []
        assert [event["ok"] for event in workshop.events("tool.finished")] == [False] * 4
        assert workshop.events("tool.started") == []


async def test_a_registry_tool_that_was_not_offered_is_unknown() -> None:
    secret = spec("secret_tool", allowed_roles=frozenset({"admin"}))
    provider = RecordingProvider([spec("open_tool"), secret])
    async with open_workshop([provider]) as workshop:
        text = error(await workshop.call("secret_tool", "{}"))
        assert "There is no tool `secret_tool`" in text
        assert text.count("secret_tool") == 1
        assert provider.calls == []


@pytest.mark.parametrize("arguments", ["", "   ", "null", None, "{}"])
async def test_b023_a_tool_without_required_parameters_runs_on_nothing(arguments: str | None) -> None:
    provider = RecordingProvider([spec("ping"), spec("square", parameters=NUMBER)], {"ping": "pong"})
    async with open_workshop([provider]) as workshop:
        assert (await workshop.call("ping", arguments)).arguments == {}
        assert "`n` is missing" in error(await workshop.call("square", arguments))
        assert provider.calls == [("ping", {})]


async def test_b022_a_cut_list_is_not_run_and_a_repaired_one_is_traced_both_ways() -> None:
    commands = {"type": "object", "properties": {"commands": {"type": "array", "items": {"type": "string"}}}}
    provider = RecordingProvider([spec("run", parameters=commands)], {"run": "done"})
    async with open_workshop([provider]) as workshop:
        assert "cut off" in error(await workshop.call("run", '{"commands":["make clean","make all"'))
        assert provider.calls == []
        raw = "{'commands': ['make all',],}"
        await workshop.call("run", raw)
        assert provider.calls == [("run", {"commands": ["make all"]})]
        (started,) = workshop.events("tool.started")
        assert (started["raw"], started["arguments"]) == (raw, {"commands": ["make all"]})


async def test_what_a_tool_raises_is_a_result_with_the_message_alone() -> None:
    answers = {
        "plain": ValueError("no such order"),
        "silent": KeyError(),
        "again": ToolRetry("give the year too"),
        "group": ExceptionGroup("two things", [ValueError("a")]),
        "odd": object(),
        "cancelled": asyncio.CancelledError(),
    }
    async with open_workshop([recording(answers)]) as workshop:
        outcomes = {outcome.name: outcome for outcome in await workshop.calls([(name, "{}") for name in answers])}
    assert error(outcomes["plain"]) == "no such order"
    assert error(outcomes["silent"]) == "KeyError"
    assert "give the year too" in error(outcomes["again"])
    assert "try again" in error(outcomes["again"])
    assert "two things" in error(outcomes["group"])
    assert "not JSON" in error(outcomes["odd"])
    assert "cancelled" in error(outcomes["cancelled"])
    assert all(outcome.fatal is None and "Traceback" not in outcome.content for outcome in outcomes.values())


async def test_a_fatal_error_ends_the_turn_and_the_other_calls_finish() -> None:
    async with open_workshop([recording({"fatal": ToolFatal("the store is closed"), "fine": 1})]) as workshop:
        fatal, fine = await workshop.calls([("fatal", "{}"), ("fine", "{}")])
    assert fatal.fatal == error(fatal) == "the store is closed"
    assert fine.ok


async def test_a_tool_that_does_not_answer_ends_at_its_timeout_even_if_it_ignores_that() -> None:
    released = asyncio.Event()

    async def stubborn(arguments: Any, ctx: ToolContext) -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async with open_workshop([recording({"stubborn": stubborn}, timeout_s=0.05)]) as workshop:
        outcome = await asyncio.wait_for(workshop.call("stubborn", "{}"), 5)
        assert "did not answer within 0.05 s" in error(outcome)
        assert workshop.courier.left_behind == 1
        released.set()
        await workshop.courier.close()
        assert workshop.courier.left_behind == 0


async def test_cancelling_reaches_a_reading_tool_and_lets_a_writing_one_finish() -> None:
    seen: list[str] = []
    started = asyncio.Barrier(3)
    written = asyncio.Event()

    async def read(arguments: Any, ctx: ToolContext) -> None:
        await started.wait()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("read cancelled")
            raise

    async def write(arguments: Any, ctx: ToolContext) -> None:
        await started.wait()
        await written.wait()
        seen.append("written")

    provider = RecordingProvider([spec("read"), spec("write", writes=True)], {"read": read, "write": write})
    async with open_workshop([provider]) as workshop, asyncio.timeout(5):
        turn = asyncio.create_task(workshop.calls([("read", "{}"), ("write", "{}")]))
        await started.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert seen == ["read cancelled"]
        written.set()
        await workshop.courier.close()
        assert seen == ["read cancelled", "written"]


async def test_a_reading_tool_is_asked_again_after_a_broken_connection_and_not_otherwise() -> None:
    answers: dict[str, Any] = {
        "flaky": [ConnectionError("reset"), TimeoutError(), "here"],
        "gone": [ConnectionError("one"), ConnectionError("two"), ConnectionError("three"), "never"],
        "wrong": [ValueError("no"), "never"],
    }
    provider = recording(answers, retries=2)
    async with open_workshop([provider]) as workshop:
        flaky, gone, wrong = await workshop.calls([(name, "{}") for name in answers])
    assert json.loads(flaky.content)["result"] == "here"
    assert error(gone) == "three"
    assert error(wrong) == "no"
    assert [name for name, _ in provider.calls].count("gone") == 3


@pytest.mark.parametrize(
    ("raised", "uncertain"),
    [
        (ConnectionResetError("reset"), True),
        (TimeoutError(), True),
        (BrokenPipeError("gone"), True),
        (ConnectionRefusedError("closed"), False),
        (ValueError("no"), False),
    ],
)
async def test_a_writing_tool_whose_connection_broke_is_uncertain_and_is_not_asked_again_B041(
    raised: Exception, uncertain: bool
) -> None:
    provider = recording({"pay": [raised, "never"]}, writes=True)
    async with open_workshop([provider]) as workshop:
        outcome = await workshop.call("pay")
        assert ("whether it took effect is not known" in error(outcome)) is uncertain
        assert workshop.events("tool.finished")[0].get("uncertain", False) is uncertain
    assert len(provider.calls) == 1


async def test_what_a_tool_does_to_its_arguments_is_neither_traced_nor_in_the_next_attempt() -> None:
    seen: list[str] = []

    async def greedy(arguments: Any, ctx: ToolContext) -> int:
        seen.append(json.dumps(arguments))
        arguments["waiting"]["list"].append(arguments.pop("n"))
        if len(seen) == 1:
            raise ConnectionResetError("broken")
        return 1

    asked = {"n": 1, "waiting": {"list": []}}
    async with open_workshop(
        [recording({"greedy": greedy}, parameters={"type": "object"}, retries=1)], backoff_s=0
    ) as workshop:
        assert (await workshop.call("greedy", asked)).arguments == asked
        assert seen == [json.dumps(asked)] * 2
        assert workshop.events("tool.started")[0]["arguments"] == asked


async def test_retries_end_with_the_timeout() -> None:
    provider = recording({"gone": ConnectionError("gone")}, retries=10, timeout_s=2)
    # The first wait is shorter than the timeout, however the dice fall; both of them together never are.
    async with open_workshop([provider], backoff_s=1.5) as workshop:
        began = time.monotonic()
        assert error(await workshop.call("gone", "{}")) == "gone"
        assert time.monotonic() - began < 4
    assert len(provider.calls) == 2


async def test_events_tell_what_was_asked_and_what_came_back() -> None:
    provider = RecordingProvider([spec("square", parameters=NUMBER)], {"square": 49})
    async with open_workshop([provider]) as workshop:
        outcome = await workshop.call("square", '{"n": "7"}')
        (started,) = workshop.events("tool.started")
        (finished,) = workshop.events("tool.finished")
    assert started == {"name": "square", "call_id": "call_0", "arguments": {"n": 7}}
    assert finished == {
        "name": "square",
        "call_id": "call_0",
        "ok": True,
        "seconds": outcome.seconds,
        "error": None,
        "content": '{"ok":true,"result":49}',
    }
    assert outcome.content == finished["content"]
    assert [event.type for event in workshop.record.events] == ["tool.started", "tool.finished"]
    msgspec.json.encode([event.data for event in workshop.record.events])


async def test_b042_a_shortened_result_stays_whole_in_the_trace() -> None:
    items = [{"id": number} for number in range(2000)]
    async with open_workshop([recording({"list": {"items": items}})]) as workshop:
        outcome = await workshop.call("list", "{}")
        (finished,) = workshop.events("tool.finished")
    read = json.loads(outcome.content)
    assert len(outcome.content.encode()) <= 8192
    assert read["left_out"]["items"].endswith("of 2000 items")
    assert json.loads(finished["whole"])["result"]["items"] == items


HOOKED = """
@tool
async def double(n: int) -> int:
    "Double."
    return 2 * n

def register(registry): registry.add(double)

async def before_tool(call, context):
    if call.arguments["n"] == 13:
        raise ToolRetry("not thirteen")
    if call.arguments["n"] == 66:
        raise ToolFatal("no more")
    if call.arguments["n"] == 99:
        raise RuntimeError("broken guard")
    if call.arguments["n"] == 50:
        return {"n": "fifty"}
    if call.arguments["n"] == 51:
        return 51
    return {"n": call.arguments["n"] + 1} if call.arguments["n"] == 1 else None

async def after_tool(call, outcome, context):
    if call.arguments["n"] == 7:
        return {"changed": True}
    if call.arguments["n"] == 8:
        raise RuntimeError("secret found")
"""


async def test_hooks_change_and_refuse(tmp_path: Path) -> None:
    async with plugin(tmp_path, HOOKED) as workshop:

        async def told(n: int) -> tuple[Any, Outcome]:
            outcome = await workshop.call("double", {"n": n})
            return json.loads(outcome.content), outcome

        assert (await told(2))[0] == {"ok": True, "result": 4}
        changed, outcome = await told(1)
        assert (changed, outcome.arguments) == ({"ok": True, "result": 4}, {"n": 2})
        assert (await told(7))[0] == {"ok": True, "result": {"changed": True}}
        assert "not thirteen" in (await told(13))[0]["error"]
        assert (await told(66))[1].fatal == "no more"
        assert "a check before it failed" in (await told(99))[0]["error"]
        assert "`n`: expected integer" in (await told(50))[0]["error"]
        assert "a check before it failed" in (await told(51))[0]["error"]
        assert "withheld" in (await told(8))[0]["error"]
        ran = [event["arguments"]["n"] for event in workshop.events("tool.started")]
        assert ran == [2, 2, 7, 8]
        assert len(workshop.events("hook.refused")) == 5


BLOCKING = """
import time, threading

@tool(timeout_s=0.3)
def slow(seconds: float) -> str:
    "Wait."
    threading.Event().wait(seconds)
    return "slept"

@tool(timeout_s=20)
def hungry() -> int:
    "Compute."
    until = time.monotonic() + 0.5
    n = 0
    while time.monotonic() < until:
        n += 1
    return n

@tool
async def quick() -> str:
    "Answer."
    return "here"

@tool
def leave() -> None:
    "Exit."
    raise SystemExit(3)

@tool
async def leave_async() -> None:
    "Exit."
    raise SystemExit(3)

@tool
async def give_up() -> None:
    "Stop."
    raise GeneratorExit

class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no words")

@tool
async def speechless() -> None:
    "Fail."
    raise Speechless

@tool(writes=True, timeout_s=0.3)
def pay() -> None:
    "Pay."

def register(registry): registry.add(slow, hungry, quick, leave, leave_async, give_up, speechless, pay)
"""


async def longest_gap(workshop: Workshop, calls: list[tuple[str, Any]]) -> tuple[float, tuple[Outcome, ...]]:
    """Run calls and measure the longest time that the event loop could not do anything else."""
    work = asyncio.create_task(workshop.calls(calls))
    gap, before = 0.0, time.monotonic()
    while not work.done():
        await asyncio.sleep(0.005)
        now = time.monotonic()
        gap, before = max(gap, now - before), now
    return gap, await work


async def test_b040_blocking_tools_do_not_stall_the_loop(tmp_path: Path) -> None:
    async with plugin(tmp_path, BLOCKING) as workshop:
        gap, outcomes = await longest_gap(workshop, [("slow", {"seconds": 0.2}), ("hungry", "{}"), ("quick", "{}")])
        assert all(outcome.ok for outcome in outcomes), outcomes
        assert gap < 0.25


async def test_b040_stuck_tools_do_not_stop_others_or_name_resolution(tmp_path: Path) -> None:
    async with plugin(tmp_path, BLOCKING, breaker_failures=100) as workshop:
        stuck = [("slow", {"seconds": 5})] * 20
        outcomes = await asyncio.wait_for(workshop.calls(stuck), 10)
        assert all("did not answer" in error(outcome) for outcome in outcomes)
        fine = await asyncio.wait_for(workshop.calls([("slow", {"seconds": 0}), ("quick", "{}")]), 2)
        assert all(outcome.ok for outcome in fine)
        await asyncio.wait_for(asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80), 2)


async def test_a_tool_that_exits_ends_its_call_and_not_the_gateway(tmp_path: Path) -> None:
    async with plugin(tmp_path, BLOCKING) as workshop:
        for name in ("leave", "leave_async"):
            assert "SystemExit" in error(await workshop.call(name, "{}"))


async def test_an_exception_that_passes_handlers_or_cannot_be_told_ends_its_call(tmp_path: Path) -> None:
    async with plugin(tmp_path, BLOCKING) as workshop:
        assert error(await workshop.call("give_up", "{}")) == "`give_up` failed: GeneratorExit"
        assert error(await workshop.call("speechless", "{}")) == "Speechless"


async def test_a_writing_tool_that_found_no_thread_was_surely_not_called(tmp_path: Path) -> None:
    write_plugin(tmp_path, BLOCKING)
    threads = Threads(max_working=1)
    release = threading.Event()
    async with open_workshop([PythonProvider([tmp_path], threads=threads)], breaker_failures=1) as workshop:
        taken = asyncio.create_task(threads.run(release.wait, 20))
        await asyncio.sleep(0)
        outcome = await workshop.call("pay", "{}")
        assert "was not called" in error(outcome)
        assert "not known" not in error(outcome)
        release.set()
        await taken
        assert (await workshop.call("pay", "{}")).ok


async def test_b042_a_handle_is_good_in_its_conversation_and_for_its_owner() -> None:
    async with open_workshop([recording({"list": {"items": list(range(9000))}})]) as workshop:
        offered = {**workshop.registry.specs, READ_RESULT.name: READ_RESULT}

        async def call(name: str, arguments: Any, remembered: Remembered, owner: str = "owner") -> dict[str, Any]:
            asked = ToolCall("c", name, json.dumps(arguments))
            record = Recorder("0" * 32, owner, SystemClock())
            (outcome,) = await workshop.courier.execute(
                [asked], offered, context, record, parallel=True, registry=workshop.registry, remembered=remembered
            )
            told: dict[str, Any] = json.loads(outcome.content)
            return told

        here = Remembered()
        place = (await call("list", {}, here))["read_on"]
        assert (await call("read_result", place, here))["result"]["part"][0] == place["offset"]
        assert (await call("read_result", place, Remembered(here.handles)))["ok"] is True
        elsewhere, other = (
            await call("read_result", place, Remembered()),
            await call("read_result", place, here, "other"),
        )
        assert ("no result" in elsewhere["error"], "no result" in other["error"]) == (True, True)


async def test_what_a_hook_withholds_cannot_be_read_on_in() -> None:
    async def after_tool(call: Any, outcome: Any, context: ToolContext) -> Any:
        if call.name != "list":
            return None
        raise RuntimeError("secret found")

    provider = RecordingProvider(
        [spec("list")], {"list": {"items": list(range(9000))}}, hooks={"after_tool": [after_tool]}
    )
    async with open_workshop([provider]) as workshop:
        remembered = Remembered()
        asked = ToolCall("c", "list", "{}")
        (outcome,) = await workshop.courier.execute(
            [asked],
            workshop.registry.specs,
            context,
            workshop.record,
            parallel=True,
            registry=workshop.registry,
            remembered=remembered,
        )
        assert ("withheld" in error(outcome), remembered.handles) == (True, set())


async def test_a_writing_call_whose_result_has_no_json_form_was_made_all_the_same() -> None:
    async with open_workshop([recording({"pay": object()}, writes=True)]) as workshop:
        outcome = await workshop.call("pay")
        assert outcome.ok
        assert "It was done" in json.loads(outcome.content)["result"]


async def test_arguments_that_only_the_provider_can_judge_are_corrected_as_others_are() -> None:
    provider = recording({"find": InvalidArguments("no such city")})
    async with open_workshop([provider]) as workshop:
        remembered = Remembered()
        told = []
        for _ in range(2):
            (outcome,) = await workshop.courier.execute(
                [ToolCall("c", "find", "{}")],
                workshop.registry.specs,
                context,
                workshop.record,
                parallel=True,
                registry=workshop.registry,
                remembered=remembered,
            )
            told.append(outcome.escalate)
        assert told == [False, True]


async def test_what_a_hook_withholds_is_condensed_by_nobody() -> None:
    asked: list[str] = []

    async def condense(text: str) -> str:
        asked.append(text)
        return "short"

    async def after_tool(call: Any, outcome: Any, context: ToolContext) -> Any:
        if call.name == "secret":
            raise RuntimeError("secret found")

    long = {"text": "x" * 40_000}
    provider = RecordingProvider(
        [spec("secret"), spec("plain")], {"secret": long, "plain": long}, hooks={"after_tool": [after_tool]}
    )
    async with open_workshop([provider]) as workshop:
        secret, plain = await workshop.courier.execute(
            [ToolCall("a", "secret", "{}"), ToolCall("b", "plain", "{}")],
            workshop.registry.specs,
            context,
            workshop.record,
            parallel=True,
            registry=workshop.registry,
            condense=condense,
        )
        assert "withheld" in error(secret)
        assert json.loads(plain.content)["result"] == {"extract": "short"}
        assert len(asked) == 1
        assert "xxx" in workshop.events("tool.finished")[-1]["whole"]
