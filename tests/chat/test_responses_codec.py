"""Items of the Responses API read as a conversation: whatever clients make of them, what comes out is one a strict server takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.codecs.chat_completions import decode_message, encode_message
from gateway.chat.codecs.responses import chat_request, decode_responses
from gateway.chat.codecs.responses_stream import ResponseWriter, Shown, told_again
from gateway.chat.codecs.responses_thoughts import opened, sealed
from gateway.chat.codecs.responses_tools import flat_name
from gateway.chat.request import ChatRequest
from gateway.errors import InvalidRequest
from tests.chat.recordings import FOLDER, needs_recordings
from tests.strict_history import history_fault


def read(**body: Any) -> ChatRequest:
    return chat_request(decode_responses(json.dumps({"model": "m", **body}).encode()), [])


def messages(*items: Any) -> list[dict[str, Any]]:
    made = [json.loads(encode_message(message)) for message in read(input=list(items)).messages]
    assert history_fault({"messages": made}) is None
    return made


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(call_id: str = "c1", name: str = "f", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def output(call_id: str = "c1", value: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value, **more}


def own(call_id: str, at: int, **more: Any) -> dict[str, Any]:
    item_id = f"mcp_{'a' * 32}_{at}_0"
    return {
        "type": "mcp_call",
        "id": item_id,
        "call_id": call_id,
        "server_label": "gateway",
        "name": "g",
        "arguments": "{}",
        **more,
    }


# --- Conversations ---------------------------------------------------------------------------------------------------


def test_an_item_without_type_is_a_message() -> None:
    assert messages(user("hi")) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("kind", ["input_text", "output_text", "text"])
def test_text_parts_under_any_of_their_names_are_text(kind: str) -> None:
    assert messages(user([{"type": kind, "text": "hi"}])) == [{"role": "user", "content": "hi"}]


def test_images_sound_and_files_reach_the_model_in_its_own_form() -> None:
    parts = [
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
        {"type": "input_image", "image_url": {"url": "https://x/y.png"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"},
    ]
    [message] = messages(user(parts))
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"}},
    ]


def test_leading_operator_texts_become_one_system_message() -> None:
    made = read(
        instructions="one",
        input=[
            {
                "role": "developer",
                "content": [{"type": "input_text", "text": "two"}, {"type": "input_text", "text": "three"}],
            },
            {"role": "system", "content": "four"},
            user("hi"),
            {"role": "developer", "content": "five"},
        ],
    ).messages
    assert [(message.role, message.text) for message in made] == [
        ("system", "one\n\ntwo\n\nthree\n\nfour"),
        ("user", "hi"),
        ("system", "five"),
    ]


def test_outputs_follow_their_calls_wherever_the_client_put_them() -> None:
    made = messages(
        user("x"), called("a"), called("b"), user("meanwhile"), output("b", "B"), output("a", "A"), user("y")
    )
    assert [m["role"] for m in made] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert [(m["tool_call_id"], m["content"]) for m in made[2:4]] == [("a", "A"), ("b", "B")]


def test_calls_of_several_rounds_may_share_an_id() -> None:
    made = messages(user("x"), called("c"), output("c", "1"), called("c"), output("c", "2"))
    assert [m.get("content") for m in made if m["role"] == "tool"] == ["1", "2"]


def test_words_and_calls_of_one_round_are_one_message() -> None:
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "let me see", "annotations": []}],
    }
    made = messages(user("x"), {"type": "reasoning", "summary": []}, said, called("a"), output("a"))
    assert [m["role"] for m in made] == ["user", "assistant", "tool"]
    assert (made[1]["content"], len(made[1]["tool_calls"])) == ("let me see", 1)


def test_rounds_of_the_gateway_are_told_apart() -> None:
    made = messages(user("x"), own("a", 1, output="1"), own("b", 1, output="2"), own("c", 2, output="3"))
    assert [m["role"] for m in made] == ["user", "assistant", "tool", "tool", "assistant", "tool"]
    assert [m["content"] for m in made if m["role"] == "tool"] == ["1", "2", "3"]


def test_calls_of_both_kinds_in_one_round_are_one_message() -> None:
    theirs = called("b", id=f"fc_{'a' * 32}_1_1")
    made = messages(user("x"), own("a", 1, output="1"), theirs, output("b", "2"))
    assert [m["role"] for m in made] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in made[1]["tool_calls"]] == ["a", "b"]


def test_call_of_the_gateway_that_lost_its_id_on_the_way_still_pairs() -> None:
    item = own("a", 1, error={"type": "mcp_tool_execution_error", "content": "broken"})
    del item["call_id"]
    made = messages(user("x"), item)
    assert made[1]["tool_calls"][0]["id"] == made[2]["tool_call_id"] == f"call_{'a' * 32}_1_0"
    assert "broken" in made[2]["content"]


def test_images_that_a_tool_returned_are_shown_behind_all_results() -> None:
    shown = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    made = messages(user("x"), called("a"), called("b"), output("a", shown), output("b", "B"))
    assert [m["role"] for m in made] == ["user", "assistant", "tool", "tool", "user"]
    assert made[2]["content"] == "see"
    assert made[4]["content"][1]["image_url"]["url"] == "data:image/png;base64,AA"


@pytest.mark.parametrize("kind", ["local_shell_call", "shell_call", "apply_patch_call", "computer_call"])
def test_calls_of_kinds_that_models_do_not_know_stay_in_the_conversation(kind: str) -> None:
    call = {"type": kind, "id": "x1", "call_id": "a", "status": "completed", "action": {"commands": ["ls"]}}
    made = messages(user("x"), call, {"type": f"{kind}_output", "call_id": "a", "output": "ok"})
    assert json.loads(made[1]["tool_calls"][0]["function"]["arguments"]) == {"action": {"commands": ["ls"]}}
    assert made[2]["content"] == "ok"


def test_what_another_service_did_by_itself_is_left_out() -> None:
    made = messages(user("x"), {"type": "web_search_call", "id": "ws_1", "status": "completed"}, user("y"))
    assert [m["content"] for m in made] == ["x", "y"]


def test_tools_of_a_namespace_keep_their_names_over_turns() -> None:
    long = "n" * 40
    body = {
        "model": "m",
        "input": [user("x"), called("a", "close", namespace=long), output("a")],
        "tools": [
            {
                "type": "namespace",
                "name": long,
                "tools": [{"type": "function", "name": "close"}, {"type": "function", "name": "o" * 60}],
            }
        ],
    }
    request = chat_request(decode_responses(json.dumps(body).encode()), [])
    names = [tool.name for tool in request.tools]
    assert request.messages[1].tool_calls[0].name == names[0] == flat_name(long, "close")
    assert max(map(len, names)) <= 64
    assert len(set(names)) == 2


# --- Refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": "x", "model": ""}, "model"),
        ({"input": "x", "instructions": 5}, "instructions"),
        ({"input": "x", "metadata": {"a": 5}}, "metadata"),
        ({"input": "x", "metadata": {"a": "v" * 513}}, "metadata"),
        ({"input": "x", "metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"input": "x", "include": ["everything"]}, "include"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
        ({"input": "x", "truncation": "left"}, "truncation"),
        ({"input": "x", "max_tool_calls": 3}, "max_tool_calls"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": "many"}, "max_output_tokens"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"input": "x", "tools": [{"name": "f"}]}, "tools[0].type"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "tools": [{"type": "function", "name": "f"}] * 2}, "tools"),
        ({"input": "x", "tools": [{"type": "function", "name": "f", "parameters": "x"}]}, "tools[0].parameters"),
        ({"input": "x", "tools": [{"type": "namespace", "name": "n"}]}, "tools[0]"),
        ({"input": "x", "tool_choice": "sometimes"}, "tool_choice"),
        ({"input": "x", "tool_choice": {"type": "custom", "name": "f"}}, "tool_choice"),
        ({"input": "x", "tool_choice": {"type": "web_search"}, "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"input": "x", "tool_choice": {"type": ["function"]}}, "tool_choice"),
        ({"input": [{"role": ["user"], "content": "x"}]}, "input[0].role"),
        ({"input": [called("a", namespace=["n"]), output("a")]}, "input[0].namespace"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": "x", "messages": []}, "messages"),
        ({"input": "x", "n": 2}, "n"),
        ({"input": "x", "conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
        ({"input": "x", "conversation": {}}, "conversation"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "message"}]}, "input[0].role"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"type": "never_heard_of"}]}, "input[0].type"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"input": [user([{"type": "video"}])]}, "input[0].content[0].type"),
        ({"input": [user(["x"])]}, "input[0].content[0]"),
        ({"input": [user([{"type": "input_text"}])]}, "input[0].content[0].text"),
        ({"input": [user([{"type": "input_image", "file_id": "f"}])]}, "input[0].content[0].file_id"),
        ({"input": [user([{"type": "input_image"}])]}, "input[0].content[0].image_url"),
        ({"input": [user([{"type": "input_file", "file_url": "https://x"}])]}, "input[0].content[0].file_url"),
        ({"input": [called("a")]}, "input"),
        ({"input": [output("a")]}, "input"),
        ({"input": [called("a"), output("a"), output("a")]}, "input"),
        ({"input": [output("a"), called("a")]}, "input"),
        ({"input": [called("a"), called("a"), output("a"), output("a")]}, "input[1].call_id"),
        ({"input": [called(""), output("")]}, "input[1].call_id"),
        ({"input": [called("a", name=""), output("a")]}, "input[0].name"),
        ({"input": [called("a", arguments=5), output("a")]}, "input[0].arguments"),
        ({"input": [called("a"), output("a", 5)]}, "input[1].output"),
        ({"input": [called("a"), output("a", [{"type": "input_audio"}])]}, "input[1].output[0].input_audio"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(**body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "raw", [b"{", b"[]", b"5", b'{"model":"m","input":"\xff"}', b"[" * 5000, b'{"model":"m","input":' + b"[" * 3000]
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        chat_request(decode_responses(raw), [])


def test_nulls_are_as_if_they_were_not_there() -> None:
    names = "instructions tools tool_choice text reasoning metadata include stream store background temperature truncation prompt"
    request = read(input="hi", **dict.fromkeys(names.split()))
    assert dict(request.fields) == {}


# --- Round trips -----------------------------------------------------------------------------------------------------


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_sealed_thoughts_open_again(thought: str) -> None:
    assert opened(sealed(thought)) == thought


@pytest.mark.parametrize(
    "foreign", [None, 5, "", "gAAAAAB...", "hermes1.", "hermes1.!!!", "hermes1.AAAA", sealed("x" * 99)[:-6]]
)
def test_what_others_sealed_stays_shut(foreign: Any) -> None:
    assert opened(foreign) is None


_ITEMS = st.lists(
    st.one_of(
        st.builds(user, st.text(min_size=1, max_size=5)),
        st.builds(lambda text: {"role": "assistant", "content": text}, st.text(max_size=5)),
        st.builds(lambda text: {"role": "developer", "content": text}, st.text(min_size=1, max_size=5)),
        st.builds(called, st.sampled_from("abc"), st.just("f"), st.sampled_from(["", "{}", '{"a":1}'])),
        st.builds(output, st.sampled_from("abc"), st.text(max_size=5)),
        st.builds(lambda call, at: own(call, at, output="x"), st.sampled_from("de"), st.integers(1, 3)),
        st.just({"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]}),
    ),
    min_size=1,
    max_size=8,
)


@given(_ITEMS)
def test_whatever_is_read_is_a_conversation_that_strict_servers_take(items: list[dict[str, Any]]) -> None:
    try:
        made = [json.loads(encode_message(message)) for message in read(input=items).messages]
    except InvalidRequest:
        return
    assert history_fault({"messages": made}) is None
    for position, message in enumerate(made):
        decode_message(json.dumps(message).encode(), position)


def test_response_that_is_told_again_is_the_same() -> None:
    writer = ResponseWriter({"id": "resp_x", "output": [], "status": "in_progress"}, Shown(), str)
    from gateway.chat.blocks import Message, Refusal, Text, ToolCall
    from gateway.chat.usage import Usage

    writer.whole(Message("assistant", (Text("hi"), Refusal("no"), ToolCall("c", "f", "{}"))))
    response = writer.end("stop", Usage(1, 2), 5)
    kinds = [frame.split(b"\n")[0] for frame in writer.take()]
    assert [frame.split(b"\n")[0] for frame in told_again(response)] == kinds


@needs_recordings
def test_every_recorded_request_is_read() -> None:
    bodies = []
    for file in sorted((FOLDER / "clients").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            each = json.loads(line)
            if each["path"].endswith("/responses") and each["body"]:
                bodies.append(each["body"])
    assert len(bodies) >= 15
    for body in bodies:
        request = chat_request(decode_responses(json.dumps(body).encode()), [])
        made = [json.loads(encode_message(message)) for message in request.messages]
        assert history_fault({"messages": made}) is None
