"""The older form of calls: read as the newer one, written back as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.chat.chunk import decode_chunk
from gateway.chat.codecs.chat_completions import decode_request, encode_message
from gateway.chat.codecs.functions import FunctionsWriter, functions_answer
from gateway.errors import InvalidRequest
from tests.backends.openai_schemas import check_answer, check_chunk
from tests.frames import Frame, d, f, tc, words

WEATHER = {"name": "weather", "description": "Weather of a city", "parameters": {"type": "object"}}
USER = {"role": "user", "content": "?"}


def asked(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def test_functions_are_offered_as_tools() -> None:
    request = decode_request(asked(functions=[WEATHER], function_call={"name": "weather"}, temperature=0))
    assert request.functions is True
    assert [json.loads(tool.wire) for tool in request.tools] == [{"type": "function", "function": WEATHER}]
    assert request.tool_choice is not None
    assert (request.tool_choice.mode, request.tool_choice.name) == ("named", "weather")
    assert set(request.fields) == {"temperature"}


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_choice_by_word_stays(choice: str) -> None:
    found = decode_request(asked(functions=[WEATHER], function_call=choice)).tool_choice
    assert found is not None
    assert found.mode == choice


def test_calls_and_results_of_a_history_are_paired_by_their_places() -> None:
    round_trip = [
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"city":"Rome"}'}},
        {"role": "function", "name": "weather", "content": "9 degrees"},
    ]
    request = decode_request(asked(messages=[USER, *round_trip, USER, *round_trip]))
    sent = [json.loads(encode_message(message)) for message in request.messages]
    ids = [message["tool_calls"][0]["id"] for message in sent if message["role"] == "assistant"]
    assert ids == [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert len(set(ids)) == 2
    assert not any("function_call" in message or message["role"] == "function" for message in sent)
    assert request.functions is False


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"functions": {}}, "functions"),
    "no name": ({"functions": [{"description": "x"}]}, "functions[0].name"),
    "same name": ({"functions": [WEATHER, WEATHER]}, "tools[1].function.name"),
    "choice": ({"functions": [WEATHER], "function_call": 5}, "function_call"),
    "result without call": (
        {"messages": [USER, {"role": "function", "name": "f", "content": "r"}]},
        "messages[1].tool_call_id",
    ),
    "result without name": ({"messages": [USER, {"role": "function", "content": "r"}]}, "messages[1].name"),
    "call without name": (
        {"messages": [USER, {"role": "assistant", "function_call": {"arguments": "{}"}}]},
        "messages[1].function_call.name",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_names_its_field(fault: str) -> None:
    fields, param = FAULTS[fault]
    with pytest.raises(InvalidRequest) as caught:
        decode_request(asked(**fields))
    assert caught.value.param == param


def test_answer_tells_the_first_call_in_the_older_form() -> None:
    calls = [{"id": i, "type": "function", "function": {"name": "weather", "arguments": i}} for i in ("a", "b")]
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    [told] = check_answer(functions_answer(json.dumps(body).encode()))["choices"]
    assert told["message"]["function_call"] == {"name": "weather", "arguments": "a"}
    assert ("tool_calls" in told["message"], told["finish_reason"]) == (False, "function_call")


def streamed(*frames: Frame) -> list[dict[str, Any]]:
    chunks = [decode_chunk(json.dumps(frame.payload).encode()) for frame in frames]
    written = FunctionsWriter("mine", 5, "asked").frames(chunks)
    return [check_chunk(event.removeprefix(b"data: "))["choices"][0] for event in written.split(b"\n\n") if event]


def test_stream_tells_the_first_call_in_the_older_form() -> None:
    told = streamed(
        *words("Let me see."),
        tc(0, id="a", name="weather", arguments=""),
        tc(0, arguments="{}"),
        tc(1, id="b", name="weather", arguments="{}"),
        f("tool_calls"),
    )
    pieces = [choice["delta"]["function_call"] for choice in told if "function_call" in choice["delta"]]
    assert pieces == [{"name": "weather", "arguments": ""}, {"arguments": "{}"}]
    assert not any("tool_calls" in choice["delta"] for choice in told)
    assert [choice["finish_reason"] for choice in told if choice["finish_reason"]] == ["function_call"]
    assert "".join(choice["delta"].get("content") or "" for choice in told) == "Let me see."


def test_stream_of_text_ends_as_ever() -> None:
    assert [choice["finish_reason"] for choice in streamed(d({"content": "x"}), f("stop"))] == [None, "stop"]
