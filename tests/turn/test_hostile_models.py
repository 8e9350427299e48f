"""Whatever a model writes, and whatever its tools do: what goes upstream is well paired, the turn ends within its limits, and
its client gets the same in both forms.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.backend import ModelCall
from gateway.chat.codecs.chat_completions import encode_message
from gateway.errors import GatewayError
from tests.fakes import RecordingProvider, ScriptedBackend, spec
from tests.frames import Frame, d, f, u
from tests.strict_history import history_fault
from tests.turn.stage import Seen, stage
from tests.turn.test_loop import NUMBER

CLIENT_TOOL = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}
MAX_ROUNDS = 3

names = st.sampled_from(["ours", "ours", "ours", "wrote", "wrote", "mine", "unknown", "functions.ours", "", None])
ids = st.sampled_from(["a", "a", "b", "", None])
arguments = st.one_of(
    st.sampled_from(['{"n":1}', '{"n":"2"}', "{}", "", "null", '{"n":', '{"n":1}}', "[]", "```json\n{'n': 1,}\n```"]),
    st.text(max_size=6),
    st.dictionaries(st.just("n"), st.integers(0, 2), max_size=1),
    st.none(),
)
words = st.one_of(st.text(max_size=4), st.just('{"name":"ours","arguments":{"n":1}}'), st.none())


@st.composite
def deltas(draw: st.DrawFn) -> dict[str, Any]:
    """One delta, perhaps of nothing that makes sense."""
    kind = draw(st.sampled_from(["text", "call", "call", "call", "thought", "refusal", "older", "role"]))
    if kind == "text":
        return {"content": draw(words)}
    if kind == "thought":
        return {draw(st.sampled_from(["reasoning", "reasoning_content"])): draw(st.text(max_size=3))}
    if kind == "refusal":
        return {"refusal": draw(st.sampled_from(["", "No."]))}
    if kind == "role":
        return {"role": "assistant", "content": ""}
    function = {"name": draw(names), "arguments": draw(arguments)}
    if kind == "older":
        return {"function_call": function}
    call: dict[str, Any] = {"index": draw(st.sampled_from([0, 1, 1, 7, None])), "id": draw(ids), "type": "function"}
    return {"tool_calls": [{**call, "function": function}]}


@st.composite
def rounds(draw: st.DrawFn) -> list[Frame]:
    """One answer of a model."""
    frames = [d(delta) for delta in draw(st.lists(deltas(), max_size=5))]
    frames.append(f(draw(st.sampled_from(["stop", "tool_calls", "tool_calls", "made_up", "length", "content_filter"]))))
    if draw(st.booleans()):
        frames.append(u(draw(st.integers(0, 300)), draw(st.integers(0, 300))))
    return frames


@dataclass(frozen=True)
class Case:
    """One turn: what the model goes on to write, what the tools do, and how the gateway is set up."""

    script: Sequence[Sequence[Frame]]
    outcomes: Sequence[Any]
    together: int
    split: bool
    required: bool
    max_tokens: int | None
    client_tool: bool
    parallel: bool


cases = st.builds(
    Case,
    script=st.lists(rounds(), min_size=1, max_size=5),
    outcomes=st.lists(st.sampled_from([1, None, "", {}, ValueError("no"), "x" * 50]), min_size=1, max_size=4),
    together=st.integers(1, 4),
    split=st.booleans(),
    required=st.booleans(),
    max_tokens=st.one_of(st.none(), st.integers(1, 2000)),
    client_tool=st.booleans(),
    parallel=st.booleans(),
)


def again_and_again(script: Sequence[Sequence[Frame]]) -> Callable[[ModelCall], Sequence[Frame]]:
    """A model that never comes to an end by itself."""
    endless = itertools.cycle(script)
    return lambda call: next(endless)


async def played(case: Case, *, streamed: bool) -> tuple[Seen | str, list[Any], int]:
    outcomes = itertools.cycle(case.outcomes)

    async def run(arguments: Any, context: Any) -> Any:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    provider = RecordingProvider(
        [spec("ours", parameters=NUMBER), spec("wrote", parameters=NUMBER, writes=True)], {"ours": run, "wrote": run}
    )
    backend = ScriptedBackend(then=again_and_again(case.script), together=case.together)
    other = ScriptedBackend(then=again_and_again(case.script), together=case.together, name="b2")
    route: dict[str, Any] = {"max_rounds": MAX_ROUNDS, "max_turn_tokens": case.max_tokens}
    if case.required:
        route["tool_choice"] = "required"
    model = {"answer_model": "a", "escalate": "a"} if case.split else {}
    more: dict[str, Any] = {"tools": [CLIENT_TOOL]} if case.client_tool else {}
    async with stage(backend, provider, route=route, model=model, others={"a": other}) as on:
        try:
            seen: Seen | str = await on.answer(streamed=streamed, parallel_tool_calls=case.parallel, **more)
        except GatewayError as error:
            seen = type(error).__name__
        calls = [*backend.calls, *other.calls]
        for call in calls:
            body = {name: json.loads(bytes(raw)) for name, raw in call.fields.items()}
            messages = [json.loads(encode_message(message)) for message in call.messages]
            assert history_fault({**body, "messages": messages}) is None
        assert on.turn is not None
        assert on.turn.machine.over
        # Tool rounds, one that was only words, and one that may only answer.
        assert len(calls) <= MAX_ROUNDS + 3
        return seen, on.ran(), len(calls)


@settings(max_examples=60, deadline=None)
@given(cases)
async def test_any_model_is_kept_in_its_bounds_and_told_the_same_in_both_forms(case: Case) -> None:
    """R-hostile-models."""
    whole = await played(case, streamed=False)
    assert await played(case, streamed=True) == whole
    seen = whole[0]
    if isinstance(seen, Seen):
        assert all(name not in ("ours", "wrote") for name, _ in seen.calls)
        assert seen.finish in ("stop", "tool_calls", "length", "content_filter")
        assert (seen.finish == "tool_calls") <= bool(seen.calls)
