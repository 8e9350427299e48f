from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.blocks import Message
from gateway.chat.chunk import Chunk, Delta, decode_chunk
from gateway.chat.scanner import RunScanner
from gateway.chat.usage import Usage
from gateway.ids import new_call_id
from gateway.turn.stream import StreamedRound, StreamState
from tests.backends.openai_schemas import check_chunk
from tests.fakes import RecordingSink
from tests.frames import Frame, chunk, d, f, tc, u


def chunks_of(*frames: Frame) -> list[Chunk]:
    return [decode_chunk(json.dumps(frame.payload).encode()) for frame in frames]


async def shown(
    *rounds: Sequence[Frame], client: frozenset[str] = frozenset({"mine"}), guarded: bool = True, together: int = 1
) -> tuple[RecordingSink, list[StreamedRound]]:
    """What the client saw of these rounds, and the rounds."""
    sink, state, views = RecordingSink(), StreamState(), []
    for frames in rounds:
        view = StreamedRound(state, client, guarded=guarded, new_id=new_call_id)
        views.append(view)
        chunks = chunks_of(*frames)
        for start in range(0, len(chunks), together):
            if visible := view.feed(chunks[start : start + together]):
                await sink.relay(visible)
    for body in sink.chunks:
        check_chunk(json.dumps(body).encode())
    return sink, views


async def test_inner_rounds_are_one_stream_with_one_role_and_no_end_B076() -> None:
    first = [
        d({"role": "assistant", "content": "Checking… "}),
        tc(0, id="a", name="ours", arguments="{}"),
        f("tool_calls"),
        u(10, 5),
    ]
    second = [d({"role": "assistant", "content": "It is 9°."}), f("stop"), u(30, 6)]
    sink, views = await shown(first, second)
    assert sink.text == "Checking… It is 9°."
    assert (sink.roles, sink.finishes, sink.calls) == (["assistant"], [], [])
    assert [view.usage for view in views] == [Usage(10, 5), Usage(30, 6)]
    assert [view.finish_reason for view in views] == ["tool_calls", "stop"]
    assert views[0].message().tool_calls[0].name == "ours"


async def test_client_calls_count_from_0_whatever_index_they_had() -> None:
    frames = [
        tc(0, id="a", name="ours", arguments=""),
        tc(1, id="b", name="mine", arguments='{"x"'),
        tc(0, arguments="{}"),
        tc(2, id="c", name="ours", arguments="{}"),
        tc(3, id="d", name="mine", arguments="{}"),
        tc(1, arguments=":1}"),
        f("tool_calls"),
    ]
    sink, (view,) = await shown(frames)
    assert sink.calls == [("mine", '{"x":1}'), ("mine", "{}")]
    assert "ours" not in json.dumps(sink.chunks)
    assert [call.name for call in view.message().tool_calls] == ["ours", "mine", "ours", "mine"]


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (["null"], "{}"),
        (["nu", "ll"], "{}"),
        (["", " "], "{}"),
        (["n", "ope"], "nope"),
        ([" ", '{"x":1}'], ' {"x":1}'),
        (["nul"], "nul"),
    ],
)
async def test_arguments_that_come_to_nothing_are_said_as_a_whole_answer_says_them(cut: list[str], said: str) -> None:
    begun, *more = cut
    rest = [tc(0, arguments=each) for each in more]
    sink, (view,) = await shown([tc(0, id="a", name="mine", arguments=begun), *rest, f("tool_calls")])
    assert sink.calls == [("mine", said)]
    assert view.message().tool_calls[0].arguments == said


async def test_role_waits_for_something_to_show_where_an_error_can_still_be_a_status() -> None:
    sink, _ = await shown(
        [d({"role": "assistant", "content": ""}), tc(0, id="a", name="ours", arguments="{}"), f("tool_calls")]
    )
    assert sink.chunks == []
    sink, _ = await shown([d({"role": "assistant", "content": ""}), d({"content": "x"})])
    assert [choice["delta"] for choice in sink.choices] == [{"role": "assistant", "content": "x"}]


async def test_text_passes_byte_for_byte() -> None:
    view = StreamedRound(StreamState(), frozenset(), guarded=False, new_id=new_call_id)
    chunks = chunks_of(
        d({"role": "assistant", "content": ""}), d({"content": "a", "x": 1}), d({"content": "b"}), f("stop")
    )
    visible = view.feed(chunks)
    assert all(after is before for after, before in zip(visible, chunks, strict=True))


async def test_role_is_sent_where_the_upstream_sends_none() -> None:
    for guarded in (True, False):
        sink, _ = await shown([d({"content": "x"}), d({"content": "y"})], guarded=guarded)
        assert (sink.roles, sink.text) == (["assistant"], "xy")


async def test_usage_is_never_shown_though_it_rides_on_a_chunk_with_text_or_finish_B070() -> None:
    counted = {"prompt_tokens": 5, "completion_tokens": 1}
    for guarded in (True, False):
        frames = [
            d({"role": "assistant", "content": "4"}),
            chunk(choices=[{"index": 0, "delta": {"content": "2"}, "finish_reason": None}], usage=counted),
            chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=counted),
        ]
        sink, (view,) = await shown(frames, guarded=guarded)
        assert sink.text == "42"
        assert not any("usage" in body for body in sink.chunks)
        assert view.usage == Usage(5, 1)
        assert sink.finishes == ([] if guarded else ["stop"])


async def test_logprobs_stay_on_a_chunk_that_had_to_be_changed() -> None:
    logprobs: dict[str, Any] = {"content": [], "refusal": None}
    frame = chunk(choices=[{"index": 0, "delta": {"content": "x"}, "logprobs": logprobs, "finish_reason": None}])
    sink, _ = await shown([frame])
    assert sink.choices[0]["logprobs"] == logprobs


TOKEN = {"token": "\\xf0", "logprob": -0.1, "bytes": [240], "top_logprobs": []}


def odd(delta: dict[str, Any], reason: str | None = None, **beside: Any) -> Frame:
    """A chunk whose choice says more than its delta."""
    return chunk(choices=[{"index": 0, "delta": delta, "finish_reason": reason, **beside}], provider="p")


@pytest.mark.parametrize("guarded", [True, False], ids=["tools", "no tools"])
@pytest.mark.parametrize("counted", [True, False], ids=["usage", "no usage"])
async def test_nothing_that_is_said_beside_an_empty_text_is_lost(guarded: bool, counted: bool) -> None:
    """A character's first bytes are a token without a text, and the last token's probability comes with the end."""
    likely = {"content": [TOKEN], "refusal": None}
    frames = [
        odd({"role": "assistant", "content": ""}),
        odd({"content": ""}, logprobs=likely),
        odd({"content": "x"}, logprobs=likely, token_ids=[1]),
        odd({"content": ""}, logprobs=None, token_ids=[2]),
        odd({"content": "", "vendor": 3}),
        odd({"content": ""}, "stop", logprobs=likely, stop_reason="eos"),
    ]
    if counted:
        for frame in frames:
            assert isinstance(frame.payload, dict)
            frame.payload["usage"] = {"prompt_tokens": 5, "completion_tokens": 1}
    sink, _ = await shown(frames, guarded=guarded)
    assert (sink.text, sink.roles) == ("x", ["assistant"])
    assert [each["logprobs"]["content"] for each in sink.choices if each.get("logprobs")] == [[TOKEN]] * 3
    assert [each["token_ids"] for each in sink.choices if "token_ids" in each] == [[1], [2]]
    assert [each["delta"]["vendor"] for each in sink.choices if "vendor" in each["delta"]] == [3]
    assert [each["stop_reason"] for each in sink.choices if "stop_reason" in each] == ["eos"]
    assert sink.finishes == ([] if guarded else ["stop"])
    assert all(body["provider"] == "p" and "usage" not in body for body in sink.chunks)


async def test_nothing_beside_a_registry_call_is_shown() -> None:
    likely = {"content": [TOKEN], "refusal": None}
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "ours", "arguments": "{}"}}
    sink, _ = await shown(
        [odd({"tool_calls": [call]}, logprobs=likely), odd({}, "tool_calls", logprobs=likely, stop_reason="eos")]
    )
    assert sink.chunks == []


async def test_run_that_comes_first_is_read_as_its_chunks_are_one_by_one() -> None:
    view = StreamedRound(StreamState(), frozenset(), guarded=True, new_id=new_call_id)
    came = chunks_of(*[d({"content": text}) for text in ("", "a", "", "b")])
    reading = RunScanner()
    assert reading.learn(came[0])
    found = reading.scan([each.data for each in came], 0)
    assert found is not None
    seen = view.feed([found[0]])
    alone = StreamedRound(StreamState(), frozenset(), guarded=True, new_id=new_call_id)
    assert [each.data for each in seen] == [one.data for each in came for one in alone.feed([each])]
    assert [(each.choices[0].delta or Delta()).content for each in seen] == ["a", "", "b"]


async def test_unguarded_round_ends_once_and_with_the_right_reason() -> None:
    sink, _ = await shown([d({"role": "assistant", "content": "x"}), f("stop"), f("stop")], guarded=False)
    assert sink.finishes == ["stop"]
    called = [tc(0, id="a", name="mine", arguments="{}"), f("stop")]
    sink, _ = await shown(called, guarded=False)
    assert (sink.finishes, sink.calls) == (["tool_calls"], [("mine", "{}")])
    sink, _ = await shown([called[0], f("length")], guarded=False)
    assert sink.finishes == ["length"]


async def test_every_choice_of_several_has_its_role_text_and_end() -> None:
    frames = [
        d({"content": "a"}),
        d({"content": "b"}, index=1),
        d({"content": "B"}, index=1),
        f("stop"),
        f("length", index=1),
    ]
    sink, (view,) = await shown(frames, guarded=False)
    assert [(c["index"], c["delta"].get("content"), c["delta"].get("role")) for c in sink.choices[:3]] == [
        (0, "a", "assistant"),
        (1, "b", "assistant"),
        (1, "B", None),
    ]
    assert [(c["index"], c["finish_reason"]) for c in sink.choices[3:]] == [(0, "stop"), (1, "length")]
    assert view.message().text == "a"


async def test_refusal_and_reasoning_are_kept_in_the_message() -> None:
    frames = [
        d({"role": "assistant", "content": ""}),
        d({"reasoning_content": "h"}),
        d({"content": "", "refusal": "no"}),
        f("stop"),
    ]
    _, (view,) = await shown(frames, guarded=False)
    assert [type(block).__name__ for block in view.message().blocks] == ["Reasoning", "Refusal"]


pieces: st.SearchStrategy[Frame] = st.one_of(
    st.text("ab \n", max_size=4).map(lambda text: d({"content": text})),
    st.just(d({"role": "assistant", "content": ""})),
    st.just(d({"content": None})),
    st.just(d({"reasoning_content": "r"})),
)


def _calls(names: list[str]) -> list[Frame]:
    heads = [tc(i, id=f"id{i}", name=name, arguments="") for i, name in enumerate(names)]
    return [*heads, *(tc(i, arguments=part) for part in ('{"n":', "1}") for i in reversed(range(len(names))))]


rounds_strategy = st.lists(
    st.tuples(st.lists(pieces, max_size=5), st.lists(st.sampled_from(["mine", "ours"]), max_size=3)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25)
@given(rounds_strategy, st.booleans(), st.integers(1, 4))
async def test_client_sees_the_text_and_its_own_calls_of_any_rounds_and_nothing_else(
    said: list[tuple[list[Frame], list[str]]], guarded: bool, together: int
) -> None:
    if not guarded:
        said = [(texts, ["mine"] * len(names)) for texts, names in said[:1]]
    rounds = [[*texts, *_calls(names), f("tool_calls" if names else "stop"), u(1, 1)] for texts, names in said]
    sink, views = await shown(*rounds, guarded=guarded, together=together)
    text = "".join(_content(frame) for frames, _ in said for frame in frames)
    assert sink.text == text == "".join(view.message().text for view in views)
    expected = [("mine", '{"n":1}') for _, names in said for name in names if name == "mine"]
    assert sink.calls == expected
    assert len(sink.roles) == (1 if sink.chunks else 0)
    assert not sink.chunks or sink.choices[0]["delta"].get("role") == "assistant"
    assert sink.finishes == ([] if guarded else ["tool_calls" if said[0][1] else "stop"])
    messages: list[Message] = [view.message() for view in views]
    assert [[call.name for call in message.tool_calls] for message in messages] == [names for _, names in said]


def _content(frame: Frame) -> str:
    assert isinstance(frame.payload, dict)
    found: Any = frame.payload["choices"][0]["delta"].get("content")
    return found or ""
