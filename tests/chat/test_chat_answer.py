from __future__ import annotations

import json
from typing import Any

from gateway.chat.blocks import Message, Reasoning, Refusal, Text, ToolCall
from gateway.chat.codecs.chat_answer import changed_answer, named_answer
from gateway.chat.usage import Usage
from tests.backends.openai_schemas import check_answer

CUSTOM = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": "said",
    "refusal": None,
    "reasoning_content": "thought",
    "annotations": [],
}
CHOICE = {"index": 0, "message": {**MESSAGE, "tool_calls": [CALL, CUSTOM]}, "logprobs": None, "finish_reason": "stop"}
BODY = json.dumps(
    {"id": "up", "object": "chat.completion", "created": 0, "model": "up", "choices": [CHOICE], "vendor": {"x": 1.50}}
).encode()


def changed(*blocks: Any, finish: str | None = "stop") -> dict[str, Any]:
    message = Message("assistant", blocks)
    raw = changed_answer(BODY, "mine", 5, "asked", message=message, finish_reason=finish, usage=Usage(1, 2))
    return check_answer(raw)


def test_naming_changes_the_three_values_and_nothing_else() -> None:
    named = json.loads(named_answer(BODY, "mine", 5, "asked"))
    assert named == {**json.loads(BODY), "id": "mine", "created": 5, "model": "asked"}
    assert b'"x": 1.5' in named_answer(BODY, "mine", 5, "asked")


def test_changed_answer_holds_what_the_message_holds() -> None:
    calls = (ToolCall("b", "g", "{}"), ToolCall("c", "sql", "select 1", custom=True))
    body = changed(Reasoning("less"), Text("new"), *calls, finish="tool_calls")
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("new", "less")
    assert [call["id"] for call in message["tool_calls"]] == ["b", "c"]
    assert message["tool_calls"][1] == CUSTOM
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert (body["usage"]["total_tokens"], body["vendor"], message["annotations"]) == (3, {"x": 1.5}, [])


def test_what_was_taken_out_of_the_message_is_gone() -> None:
    message = changed(Text("new"))["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert "tool_calls" not in message
    refused = changed(Refusal("no"), finish=None)["choices"][0]
    assert (refused["message"]["content"], refused["message"]["refusal"]) == (None, "no")
    assert refused["finish_reason"] == "stop"
