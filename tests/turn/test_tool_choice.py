"""The table of `docs/turns.md`, row for row: what `tool_choice` goes upstream in which round, and who calls what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.backend import ModelCall
from gateway.errors import UpstreamBroken
from gateway.turn.asking import REMINDER
from gateway.turn.choice import later_choice
from tests.fakes import RecordingProvider, ScriptedBackend, spec
from tests.frames import Frame, d, f, tc, u
from tests.turn.stage import stage

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
CLIENT_TOOL = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}
OUR_NAME = {"type": "function", "function": {"name": "now"}}
THEIR_NAME = {"type": "function", "function": {"name": "open_door"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [OUR_NAME]}}
ALLOWED_AUTO = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OUR_NAME]}}
NOW = [tc(0, id="c0", name="now", arguments="{}"), f("tool_calls"), u(1, 1)]
DOOR = [tc(0, id="c1", name="open_door", arguments="{}"), f("tool_calls"), u(1, 1)]
TEN = [d({"role": "assistant", "content": "10:00"}), f("stop"), u(1, 1)]


def obedient(call: ModelCall) -> list[Frame]:
    """Calls whatever it is forced to call, and else answers once a tool has been used."""
    choice = json.loads(bytes(call.fields["tool_choice"])) if "tool_choice" in call.fields else "auto"
    if choice in ("required", OUR_NAME, ALLOWED):
        return NOW
    if choice == THEIR_NAME:
        return DOOR
    used = any(message.role == "tool" for message in call.messages)
    return TEN if used or choice == "none" else NOW


# What the client and the route say; what goes upstream, round for round; which registry tools run, and the client's calls.
TABLE: dict[str, tuple[Any, str | None, list[Any], list[str], list[str]]] = {
    "nothing said": (None, None, [None, None], ["now"], []),
    "auto": ("auto", None, ["auto", "auto"], ["now"], []),
    "none": ("none", None, ["none"], [], []),
    "required": ("required", None, ["required", "auto"], ["now"], []),
    "ours by name": (OUR_NAME, None, [OUR_NAME, "auto"], ["now"], []),
    "theirs by name": (THEIR_NAME, None, [THEIR_NAME], [], ["open_door"]),
    "allowed tools": (ALLOWED, None, [ALLOWED, ALLOWED_AUTO], ["now"], []),
    "the route requires": (None, "required", ["required", "auto"], ["now"], []),
    "the route requires, auto": ("auto", "required", ["required", "auto"], ["now"], []),
    "the route requires, none": ("none", "required", ["none"], [], []),
    "the route requires, theirs by name": (THEIR_NAME, "required", [THEIR_NAME], [], ["open_door"]),
    "the route forbids": (None, "none", [None], [], ["open_door"]),
}


@BOTH
@pytest.mark.parametrize("row", TABLE)
async def test_choice_of_tools_holds_as_the_table_says_B025(streamed: bool, row: str) -> None:
    said, of_route, choices, ran, theirs = TABLE[row]
    backend = ScriptedBackend(then=DOOR if row == "the route forbids" else obedient)
    provider = RecordingProvider([spec("now")], {"now": "ten"})
    more = {} if said is None else {"tool_choice": said}
    async with stage(backend, provider, route={"tool_choice": of_route} if of_route else None) as on:
        seen = await on.answer(streamed=streamed, tools=[CLIENT_TOOL], **more)
        assert [backend.field(number, "tool_choice") for number in range(len(backend.calls))] == choices
        assert [name for name, _ in on.ran()] == ran
        assert [name for name, _ in seen.calls] == theirs
        assert seen.finish == ("tool_calls" if theirs else "stop")


@BOTH
async def test_several_answers_have_no_registry_tools_and_the_trace_says_so(streamed: bool) -> None:
    async with stage(ScriptedBackend(TEN), RecordingProvider([spec("now")])) as on:
        await on.run(streamed=streamed, n=2)
        assert "tools" not in on.backend.calls[0].fields
        assert on.events("tools.withheld") == [
            {"names": ["now"], "reason": "the request asks for more than one answer"}
        ]


@BOTH
async def test_words_without_a_tool_are_no_answer_where_the_route_requires_one(streamed: bool) -> None:
    words = [d({"role": "assistant", "content": "about ten"}), f("stop"), u(1, 1)]
    backend = ScriptedBackend(words, NOW, TEN)
    async with stage(backend, RecordingProvider([spec("now")]), route={"tool_choice": "required"}) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.text, len(on.ran()), seen.usage["total_tokens"]) == ("10:00", 1, 6)
        assert [backend.field(number, "tool_choice") for number in range(3)] == ["required", "required", "auto"]
        told = [any(REMINDER in message.text for message in call.messages) for call in backend.calls]
        assert told == [False, True, False]
        steps = [(event["from"], event["to"]) for event in on.events("state.changed")]
        assert ("planning", "reflecting") in steps


@BOTH
async def test_model_that_never_uses_the_required_tool_is_no_answer_at_all(streamed: bool) -> None:
    backend = ScriptedBackend(then=[d({"content": "about ten"}), f("stop")])
    async with stage(backend, RecordingProvider([spec("now")]), route={"tool_choice": "required"}) as on:
        with pytest.raises(UpstreamBroken, match="without calling a tool"):
            await on.run(streamed=streamed)
        assert (len(backend.calls), on.sink.chunks) == (2, [])


@BOTH
@pytest.mark.parametrize("end", ["length", "content_filter", "refusal"])
async def test_what_is_no_answer_needs_no_tool(streamed: bool, end: str) -> None:
    said = {"refusal": "No."} if end == "refusal" else {"content": "about"}
    backend = ScriptedBackend([d(said), f("stop" if end == "refusal" else end), u(1, 1)])
    async with stage(backend, RecordingProvider([spec("now")]), route={"tool_choice": "required"}) as on:
        seen = await on.answer(streamed=streamed)
        assert (seen.finish, len(backend.calls)) == ("stop" if end == "refusal" else end, 1)


async def test_results_of_the_client_s_tools_count_as_use_where_the_route_requires_one() -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", **THEIR_NAME}]}
    asked["tool_calls"][0]["function"] = {"name": "open_door", "arguments": "{}"}  # type: ignore[index]
    result = {"role": "tool", "tool_call_id": "a", "content": "open"}
    messages = [{"role": "user", "content": "hi"}, asked, result]
    async with stage(ScriptedBackend(), RecordingProvider([spec("now")]), route={"tool_choice": "required"}) as on:
        assert not (await on.prepare(messages=messages, tools=[CLIENT_TOOL])).requires_tool
        turn = await on.prepare(messages=[*messages, {"role": "user", "content": "and now?"}], tools=[CLIENT_TOOL])
        assert turn.requires_tool


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (None, None),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "auto"),
        (OUR_NAME, "auto"),
        ({"type": "custom", "custom": {"name": "x"}}, "auto"),
        (ALLOWED, ALLOWED_AUTO),
        (
            {"type": "allowed_tools", "mode": "required", "tools": []},
            {"type": "allowed_tools", "mode": "auto", "tools": []},
        ),
    ],
)
def test_forced_choice_is_freed_and_everything_else_stays(first: Any, later: Any) -> None:
    encoded = None if first is None else json.dumps(first, separators=(",", ":")).encode()
    found = later_choice(encoded)
    assert (None if found is None else json.loads(found)) == later
