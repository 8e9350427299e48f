from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from gateway.chat.blocks import Image, Message, Reasoning, Refusal, Text, ToolCall, ToolResult
from gateway.chat.codecs.chat_completions import decode_message, decode_request, encode_message, with_system_text
from gateway.errors import InvalidRequest
from tests.chat.recordings import client_requests, needs_recordings
from tests.chat.strategies import messages
from tests.strict_history import history_fault

USER = {"role": "user", "content": "hi"}


def request(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def said(*items: Any) -> bytes:
    return json.dumps({"model": "m", "messages": list(items)}).encode()


def asking(*ids: str) -> dict[str, Any]:
    calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "r"}


FAULTS: dict[str, tuple[bytes, str | None]] = {
    "not JSON": (b"{", None),
    "not an object": (b"[]", None),
    "not UTF-8": (b'{"model":"\xff"}', None),
    "no model": (json.dumps({"messages": [USER]}).encode(), "model"),
    "empty model": (request(model=""), "model"),
    "model is a number": (request(model=5), "model"),
    "model is null": (request(model=None), "model"),
    "no messages": (b'{"model":"m"}', "messages"),
    "messages are null": (request(messages=None), "messages"),
    "messages are an object": (request(messages={}), "messages"),
    "messages are empty": (request(messages=[]), "messages"),
    "message is a string": (said("hi"), "messages[0]"),
    "message without role": (said(USER, {"content": "x"}), "messages[1]"),
    "unknown role": (said({"role": "robot", "content": "x"}), "messages[0].role"),
    "role is a number": (said(USER, {"role": 7, "content": "x"}), "messages[1].role"),
    "no content": (said({"role": "user"}), "messages[0].content"),
    "null content of a user": (said({"role": "user", "content": None}), "messages[0].content"),
    "content is a number": (said(USER, {"role": "user", "content": 5}), "messages[1].content"),
    "part is a number": (
        said(USER, {"role": "user", "content": [{"type": "text", "text": "a"}, 5]}),
        "messages[1].content[1]",
    ),
    "part without type": (said({"role": "user", "content": [{"text": "x"}]}), "messages[0].content[0].type"),
    "text part without text": (
        said(USER, {"role": "user", "content": [{"type": "text"}]}),
        "messages[1].content[0].text",
    ),
    "image without url": (
        said({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}),
        "messages[0].content[0].image_url",
    ),
    "audio without data": (
        said({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}),
        "messages[0].content[0].input_audio",
    ),
    "call without id": (
        said(
            USER, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}
        ),
        "messages[1].tool_calls[0]",
    ),
    "call without function": (
        said(USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function"}]}),
        "messages[1].tool_calls[0]",
    ),
    "call's id is a number": (
        said(USER, {"role": "assistant", "content": None, "tool_calls": [{"id": 5, "function": {"name": "f"}}]}),
        "messages[1].tool_calls[0].id",
    ),
    "result without id": (said(USER, {"role": "tool", "content": "x"}), "messages[1].tool_call_id"),
    "stream is a string": (request(stream="yes"), "stream"),
    "stream options": (request(stream_options={"include_usage": "yes"}), "stream_options.include_usage"),
    "n is zero": (request(n=0), "n"),
    "n is a fraction": (request(n=1.5), "n"),
    "parallel_tool_calls": (request(parallel_tool_calls=1), "parallel_tool_calls"),
    "tools are an object": (request(tools={}), "tools"),
    "tool without name": (request(tools=[{"type": "function", "function": {}}]), "tools[0].function.name"),
    "tool's name is a number": (
        request(tools=[{"type": "function", "function": {"name": 5}}]),
        "tools[0].function.name",
    ),
    "tool named twice": (
        request(tools=[{"type": "function", "function": {"name": "a"}}] * 2),
        "tools[1].function.name",
    ),
    "tool_choice": (request(tool_choice="sometimes"), "tool_choice"),
    "user": (request(user=5), "user"),
    "not UTF-8 in a field nobody reads": (request(extra="?").replace(b'"?"', b'"\xff"'), None),
    "nested too deeply": (request(extra="?").replace(b'"?"', b"[" * 100_000 + b"]" * 100_000), None),
    "messages nested too deeply": (b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
}


@pytest.mark.parametrize(("body", "param"), FAULTS.values(), ids=FAULTS.keys())
def test_fault_names_its_field_as_openai_does(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_request(body)
    assert caught.value.param == param
    assert "$" not in caught.value.message


def test_nulls_of_options_are_absent_and_messages_stay_as_they_came_B046() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"hi","name":null},{"role":"assistant","content":"hello",'
        b'"tool_calls":null,"function_call":null,"refusal":null,"audio":null},{"role":"developer","content":"be brief"},'
        b'{"role":"user","content":"again"}],"tools":null,"tool_choice":null,"stop":null,"stream":null,'
        b'"stream_options":null,"response_format":null,"seed":null,"user":null,"n":null,"parallel_tool_calls":null,'
        b'"x_unknown":{"a":1}, "x_null":null}'
    )
    read = decode_request(body)
    assert {name: bytes(raw) for name, raw in read.fields.items()} == {"x_unknown": b'{"a":1}', "x_null": b"null"}
    assert (read.stream, read.tools, read.tool_choice, read.n, read.user) == (False, (), None, 1, None)
    assert [message.role for message in read.messages] == ["user", "assistant", "developer", "user"]
    assert b",".join(map(encode_message, read.messages)) in body


def test_unknown_fields_travel_byte_for_byte() -> None:
    odd = b'{ "b" : 1.50,\n "a":[1e2, "\\u00e9"] , "a":2}'
    head = b'{"model":"m","messages":[{"role":"user","content":"x"}],"vendor":'
    read = decode_request(head + odd + b',"top_k":  7e0}')
    assert bytes(read.fields["vendor"]) == odd
    assert bytes(read.fields["top_k"]).strip() == b"7e0"


def test_message_with_odd_spelling_and_unknown_fields_is_sent_as_it_came() -> None:
    raw = b'{ "role":"user",  "content":[{"type":"text","text":"\\u4f60","cache_control":{"type":"ephemeral"}}],"x":1}'
    assert encode_message(decode_message(raw)) == raw


@pytest.mark.parametrize("blank", ['""', '"   "', "null"])
def test_blank_arguments_in_history_become_an_empty_object_and_the_rest_stays(blank: str) -> None:
    raw = '{"role":"assistant","content":null,"x":1,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":%s}}]}'
    message = decode_message((raw % blank).encode())
    assert json.loads(encode_message(message)) == json.loads(raw % '"{}"')
    assert message.tool_calls == (ToolCall("a", "f", "{}"),)


def test_arguments_that_came_as_an_object_become_text() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"city": "Zürich"}}}
    message = decode_message(json.dumps({"role": "assistant", "content": None, "tool_calls": [call]}).encode())
    sent = json.loads(encode_message(message))["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"city": "Zürich"}


def test_tool_choice_is_read_and_kept() -> None:
    named = {"type": "function", "function": {"name": "f"}}
    for value, mode, name in (
        ("auto", "auto", None),
        ("none", "none", None),
        ("required", "required", None),
        (named, "named", "f"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "other", None),
    ):
        choice = decode_request(request(tool_choice=value)).tool_choice
        assert choice is not None
        assert (choice.mode, choice.name) == (mode, name)
        assert json.loads(choice.wire) == value


def test_end_user_is_the_safety_identifier_before_user() -> None:
    assert decode_request(request(user="u", safety_identifier="s")).user == "s"
    assert decode_request(request(user="u")).user == "u"


PAIRS: dict[str, tuple[list[Any], str | None]] = {
    "result right behind its call": ([USER, asking("a"), result("a")], None),
    "results in another order": ([USER, asking("a", "b"), result("b"), result("a"), USER], None),
    "result without call": ([USER, result("a")], "messages[1].tool_call_id"),
    "result of another call": ([USER, asking("a"), result("b")], "messages[2].tool_call_id"),
    "two results of one call": ([USER, asking("a"), result("a"), result("a")], "messages[3].tool_call_id"),
    "call without result": ([USER, asking("a"), USER], "messages[1].tool_calls"),
    "call without result at the end": ([USER, asking("a")], "messages[1].tool_calls"),
    "one result is missing": ([USER, asking("a", "b"), result("a"), USER], "messages[1].tool_calls"),
    "result comes too late": ([USER, asking("a"), USER, result("a")], "messages[1].tool_calls"),
    "a field that says function is no excuse": (
        [USER, {**result("a"), "type": "function"}],
        "messages[1].tool_call_id",
    ),
    "legacy function result": (
        [
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "r"},
        ],
        None,
    ),
    "custom call and its result": (
        [
            USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sql", "input": "x"}}],
            },
            result("c"),
        ],
        None,
    ),
}


@pytest.mark.parametrize(("items", "param"), PAIRS.values(), ids=PAIRS.keys())
def test_every_call_needs_its_result_and_every_result_its_call(items: list[Any], param: str | None) -> None:
    if param is None:
        assert len(decode_request(said(*items)).messages) == len(items)
        return
    with pytest.raises(InvalidRequest) as caught:
        decode_request(said(*items))
    assert caught.value.param == param


ALONE: list[Any] = [
    USER,
    {"role": "developer", "content": "", "name": "ops", "tool_calls": None, "vendor": {"a": [1]}},
    {"role": "assistant", "content": "so", "refusal": "", "reasoning_content": ""},
    {"role": "assistant", "content": "no", "refusal": "never"},
    {"role": "assistant", "content": "well", "reasoning_content": "hm"},
    asking("a"),
    result("a"),
    {"role": "user", "content": [{"type": "text", "text": "x"}]},
]


@pytest.mark.parametrize("last", range(1, len(ALONE) + 1))
def test_a_conversation_is_read_as_its_messages_are_one_by_one(last: int) -> None:
    items = ALONE[:last]
    alone = [decode_message(json.dumps(each).encode(), at) for at, each in enumerate(items)]
    assert [*decode_request(said(*items), paired=False).messages] == alone


@settings(max_examples=60)
@given(messages)
def test_message_of_any_blocks_is_the_same_after_encoding_and_decoding(message: Message) -> None:
    wire = encode_message(message)
    again = decode_message(wire)
    assert (again.role, again.name) == (message.role, message.name)
    assert again.blocks == message.blocks
    assert encode_message(again) == wire


def test_message_with_calls_alone_says_null_and_any_other_says_text_B045() -> None:
    calls = Message("assistant", (ToolCall("a", "f", "{}"),))
    assert encode_message(calls) == (
        b'{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function",'
        b'"function":{"name":"f","arguments":"{}"}}]}'
    )
    for role in ("assistant", "user"):
        assert json.loads(encode_message(Message(role, ())))["content"] == ""


def test_history_built_by_the_gateway_is_what_the_strictest_server_takes() -> None:
    built = (
        Message("system", (Text("s"),)),
        Message("user", (Text("a"), Image("u", None))),
        Message("assistant", (Reasoning("hm"), Text("x"), ToolCall("a", "f", "{}"))),
        Message("tool", (ToolResult("a", "r"),)),
        Message("assistant", (Refusal("no"),)),
    )
    assert history_fault({"messages": [json.loads(encode_message(message)) for message in built]}) is None


def test_reasoning_is_not_sent_back_upstream() -> None:
    assert b"hm" not in encode_message(Message("assistant", (Reasoning("hm"), Text("x"))))


def test_operator_text_is_merged_into_the_one_leading_system_message() -> None:
    user = Message("user", (Text("hi"),))
    assert with_system_text((user,), "be brief") == (Message("system", (Text("be brief"),)), user)
    for role in ("system", "developer"):
        merged = with_system_text((decode_message(b'{"role":"%s","content":"mine"}' % role.encode()), user), "be brief")
        assert [message.role for message in merged] == [role, "user"]
        assert json.loads(encode_message(merged[0])) == {"role": role, "content": "mine\n\nbe brief"}


@needs_recordings
def test_requests_of_real_clients_are_read_and_their_messages_sent_as_they_came() -> None:
    requests = client_requests()
    assert len(requests) > 50
    for body in requests:
        raw = [json.dumps(item, ensure_ascii=False).encode() for item in body["messages"]]
        read = decode_request(json.dumps(body, ensure_ascii=False).encode())
        assert read.model == body["model"]
        assert read.stream is bool(body.get("stream"))
        assert [tool.name for tool in read.tools] == [tool["function"]["name"] for tool in body.get("tools") or ()]
        for message, sent in zip(read.messages, raw, strict=True):
            if b'"arguments": ""' not in sent:
                assert encode_message(message) == sent
        for name, value in read.fields.items():
            assert msgspec.json.decode(value) == body[name]
