from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest

from gateway.chat.answer import Answer
from gateway.chat.blocks import Reasoning, Refusal, Text, ToolCall
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.normalise import (
    NotAnAnswer,
    finish_reason,
    normalise_answer,
    read_answer,
)
from gateway.chat.normalise_stream import StreamNormaliser
from gateway.chat.usage import Usage
from tests.backends.openai_schemas import check_answer, check_chunk
from tests.chat.recordings import needs_recordings, upstream_answers, upstream_streams
from tests.frames import Frame, chunk, d, f, tc, u


def counting(prefix: str = "made") -> Any:
    numbers = itertools.count()
    return lambda: f"{prefix}_{next(numbers)}"


def normalised(message: dict[str, Any], finish: Any = "stop", **fields: Any) -> tuple[Answer, dict[str, Any]]:
    body = {"choices": [{"message": message, "finish_reason": finish}], **fields}
    answer = normalise_answer(json.dumps(body).encode(), counting())
    return answer, check_answer(answer.body)


def streamed(*frames: Frame) -> tuple[list[Chunk], list[dict[str, Any]]]:
    """The normalised chunks that carry choices, and the choices in them; every chunk meets the schema."""
    normaliser = StreamNormaliser(counting())
    chunks = [normaliser.feed(decode_chunk(json.dumps(frame.payload).encode())) for frame in frames]
    bodies = [check_chunk(each.data) for each in chunks]
    assert len({(body["id"], body["model"]) for body in bodies}) == 1
    assert not any("usage" in body for body in bodies)
    return chunks, [choice for body in bodies for choice in body["choices"]]


def text_of(choices: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def calls_of(choices: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """As an SDK accumulates them: id and name once, arguments appended by index."""
    found: list[list[str]] = []
    for piece in (piece for choice in choices for piece in choice["delta"].get("tool_calls", ())):
        if piece["index"] == len(found):
            assert piece["type"] == "function"
            found.append([piece["id"], piece["function"]["name"], ""])
        else:
            assert "id" not in piece
            assert "name" not in piece["function"]
        found[piece["index"]][2] += piece["function"]["arguments"]
    return [(a, b, c) for a, b, c in found]


def reasons(choices: list[dict[str, Any]]) -> list[str]:
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]


FINISHES = [
    ("stop", False, "stop"),
    ("stop", True, "tool_calls"),
    ("tool_calls", True, "tool_calls"),
    ("tool_calls", False, "stop"),
    ("function_call", True, "tool_calls"),
    ("tool_use", True, "tool_calls"),
    ("end_turn", False, "stop"),
    ("length", True, "length"),
    ("max_tokens", True, "length"),
    ("content_filter", True, "content_filter"),
    ("anything", False, "stop"),
    ("anything", True, "tool_calls"),
    ("", True, None),
    (None, True, None),
]


@pytest.mark.parametrize(("said", "has_calls", "shown"), FINISHES)
def test_what_was_emitted_counts_more_than_what_was_said_unless_it_was_cut(
    said: str | None, has_calls: bool, shown: str | None
) -> None:
    assert finish_reason(said, has_calls=has_calls) == shown


def test_answer_with_arguments_as_an_object_and_no_id_B021() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}
    answer, body = normalised({"role": "assistant", "content": "", "tool_calls": [call]})
    message = body["choices"][0]["message"]
    assert message["content"] is None
    assert set(message["tool_calls"][0]) == {"id", "type", "function"}
    assert message["tool_calls"][0]["id"] == answer.message.tool_calls[0].id == "made_0"
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Zürich", "days": 2}
    assert answer.finish_reason == body["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("arguments", ["", "   ", "null", None, {}])
def test_blank_arguments_of_an_answer_are_an_empty_object_B023(arguments: Any) -> None:
    answer, _ = normalised({"tool_calls": [{"id": "a", "function": {"name": "ping", "arguments": arguments}}]})
    assert answer.message.tool_calls == (ToolCall("a", "ping", "{}"),)
    without_key, _ = normalised({"tool_calls": [{"id": "a", "function": {"name": "ping"}}]})
    assert without_key.message.tool_calls == answer.message.tool_calls


@pytest.mark.parametrize("finish", ["stop", "function_call", "tool_use", "", None])
def test_answer_with_calls_ends_with_tool_calls_whatever_it_said_B024(finish: str | None) -> None:
    answer, body = normalised({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}, finish)
    assert answer.finish_reason == body["choices"][0]["finish_reason"] == "tool_calls"


def test_answer_drops_what_belongs_to_streams_and_adds_what_is_required_B048() -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer, body = normalised(
        {"content": "x", "tool_calls": [call], "delta": {}}, usage={"prompt_tokens": 3, "completion_tokens": 1}
    )
    assert set(body["choices"][0]["message"]) == {"role", "content", "refusal", "tool_calls"}
    assert set(body["choices"][0]["message"]["tool_calls"][0]) == {"id", "type", "function"}
    assert body["object"] == "chat.completion"
    assert body["usage"]["total_tokens"] == 4
    assert answer.usage == Usage(3, 1)


def test_answer_keeps_reasoning_refusal_and_every_choice() -> None:
    answer, body = normalised({"content": None, "refusal": "no", "reasoning_content": "hm"})
    assert answer.message.blocks == (Reasoning("hm"), Refusal("no"))
    assert body["choices"][0]["message"]["reasoning_content"] == "hm"
    assert body["choices"][0]["message"]["refusal"] == "no"
    two = {"choices": [{"message": {"content": "a"}}, {"message": {"content": [{"type": "text", "text": "b"}]}}]}
    many = normalise_answer(json.dumps(two).encode(), counting())
    assert [(c["index"], c["message"]["content"]) for c in check_answer(many.body)["choices"]] == [(0, "a"), (1, "b")]
    assert many.message.blocks == (Text("a"),)


@pytest.mark.parametrize("read", [read_answer, normalise_answer])
@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b'{"choices":[]}', b'{"choices":null}', b'{"choices":[{}]}', b"<html>", b"\xff"]
)
def test_what_is_no_chat_completion_is_refused(read: Any, body: bytes) -> None:
    with pytest.raises((NotAnAnswer, msgspec.DecodeError)):
        read(body, counting())


def test_exact_answer_is_read_and_its_body_left_alone() -> None:
    body = (
        b'{"id":"x","choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function",'
        b'"function":{"name":"f","arguments":"{}"}}]},"finish_reason":"stop"}],"vendor":1,"usage":{"prompt_tokens":2}}'
    )
    answer = read_answer(body, counting())
    assert answer.body is body
    assert (answer.finish_reason, answer.said_finish) == ("tool_calls", "stop")
    assert answer.usage == Usage(2, 0)


def test_stream_with_preamble_nulls_and_usage_tail_B069() -> None:
    preamble = Frame({"id": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []})
    chunks, choices = streamed(
        preamble,
        d({"role": "assistant"}),
        d({"content": None}),
        d({"content": "Hi"}),
        Frame({"choices": None}),
        f("stop"),
        u(3, 1),
    )
    assert text_of(choices) == "Hi"
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert reasons(choices) == ["stop"]
    assert [each.fields.usage.usage() for each in chunks if each.fields.usage] == [Usage(3, 1)]


@pytest.mark.parametrize(
    "frames",
    [
        [chunk(choices=[{"index": 0, "delta": {"content": "42"}, "finish_reason": "stop"}]), u(5, 1)],
        [
            d({"content": "42"}),
            chunk(choices=[{"delta": {}, "finish_reason": "stop"}], usage={"prompt_tokens": 5, "completion_tokens": 1}),
        ],
        [d({"content": "42"}), f("stop"), f("stop"), u(5, 1)],
        [d({"role": "assistant", "content": "4"}), d({"role": "assistant", "content": "2"}), f("stop"), u(5, 1)],
    ],
    ids=["text and finish in one", "usage in the finish chunk", "two finishes", "role in every chunk"],
)
def test_legal_ends_are_one_text_one_role_one_finish_and_one_usage_B071(frames: list[Frame]) -> None:
    chunks, choices = streamed(*frames)
    assert text_of(choices) == "42"
    assert reasons(choices) == ["stop"]
    assert [choice["delta"]["role"] for choice in choices if "role" in choice["delta"]] == ["assistant"]
    assert [each.fields.usage.usage() for each in chunks if each.fields.usage] == [Usage(5, 1)]


@pytest.mark.parametrize("finish", ["stop", "function_call", "tool_use", "tool_calls"])
def test_streamed_calls_end_with_tool_calls_B024(finish: str) -> None:
    _, choices = streamed(tc(0, id="a", name="f", arguments="{}"), f(finish))
    assert reasons(choices) == ["tool_calls"]


@pytest.mark.parametrize("finish", ["length", "max_tokens"])
def test_streamed_calls_that_were_cut_end_with_length(finish: str) -> None:
    _, choices = streamed(tc(0, id="a", name="f", arguments="{}"), f(finish))
    assert reasons(choices) == ["length"]


def test_streamed_calls_get_indexes_ids_and_text_arguments_B018_B020_B021() -> None:
    add = {"function": {"name": "add", "arguments": {"x": 1}}}
    _, choices = streamed(d({"tool_calls": [add]}), d({"tool_calls": [{"id": "b", **add}]}), f("stop"))
    assert calls_of(choices) == [("made_0", "add", '{"x":1}'), ("b", "add", '{"x":1}')]
    _, choices = streamed(
        tc(3, id="a", name="s", arguments='{"q":'),
        tc(3, id="a", name="s", arguments='"x"}'),
        tc(3, id="", name=""),
        f("stop"),
    )
    assert calls_of(choices) == [("a", "s", '{"q":"x"}')]
    assert "content" not in choices[0]["delta"]


def test_logprobs_get_the_field_that_some_servers_leave_out() -> None:
    said: dict[str, Any] = {"content": []}
    body = {"choices": [{"message": {"content": "x"}, "logprobs": said, "finish_reason": "stop"}]}
    answer = normalise_answer(json.dumps(body).encode(), counting())
    assert check_answer(answer.body)["choices"][0]["logprobs"] == {"content": [], "refusal": None}
    _, choices = streamed(chunk(choices=[{"index": 0, "delta": {"content": "x"}, "logprobs": said}]))
    assert choices[0]["logprobs"] == {"content": [], "refusal": None}


def test_two_streamed_choices_have_a_role_and_a_finish_each() -> None:
    _, choices = streamed(d({"content": "a"}), d({"content": "b"}, index=1), f("stop", index=1), f("length"))
    assert [(c["index"], c["delta"].get("role"), c["finish_reason"]) for c in choices] == [
        (0, "assistant", None),
        (1, "assistant", None),
        (1, None, "stop"),
        (0, None, "length"),
    ]


def test_reasoning_and_list_content_are_kept() -> None:
    _, choices = streamed(d({"reasoning_content": "hm"}), d({"content": [{"type": "text", "text": "x"}]}), f("stop"))
    assert choices[0]["delta"]["reasoning_content"] == "hm"
    assert text_of(choices) == "x"


@needs_recordings
def test_answers_of_real_servers_become_what_the_schema_requires() -> None:
    answers = upstream_answers()
    assert len(answers) > 8
    for body in answers:
        answer = normalise_answer(json.dumps(body).encode(), counting())
        checked = check_answer(answer.body)
        assert len(checked["choices"]) == len(body["choices"])
        said = body["choices"][0]["message"]
        assert answer.message.text == (said.get("content") or "")
        assert len(answer.message.tool_calls) == len(said.get("tool_calls") or ())


@needs_recordings
def test_streams_of_real_servers_become_what_the_schema_requires() -> None:
    streams = upstream_streams()
    assert len(streams) > 8
    for chunks in streams:
        raw = [json.loads(data) for data in chunks]
        _, choices = streamed(*(Frame(body) for body in raw))
        expected = "".join(c["delta"].get("content") or "" for body in raw for c in body.get("choices") or ())
        assert text_of(choices) == expected
        assert len([c for c in choices if "role" in c["delta"]]) == 1
        assert len(reasons(choices)) <= 1
        for _, name, arguments in calls_of(choices):
            assert name
            assert isinstance(json.loads(arguments or "{}"), dict)
