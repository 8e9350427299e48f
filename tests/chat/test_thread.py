from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.blocks import Message
from gateway.chat.codecs.chat_completions import decode_message
from gateway.chat.thread import chain
from tests.chat.strategies import messages


def name_of(*items: dict[str, Any], owner: str = "me") -> str:
    return chain(owner, [decode_message(json.dumps(item).encode()) for item in items])[-1]


def calling(arguments: str, **more: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **more}


HI = {"role": "user", "content": "hi"}

SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text as a part": (HI, {"role": "user", "content": [{"type": "text", "text": "hi"}]}),
    "text in two parts": (
        HI,
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
    ),
    "unknown fields": (HI, {**HI, "x": 1}),
    "system and developer": ({"role": "system", "content": "s"}, {"role": "developer", "content": "s"}),
    "null and empty content": (calling("{}"), calling("{}", content="")),
    "spacing and order of arguments": (calling('{"a":1,"b":2}'), calling('{ "b": 2, "a": 1 }')),
    "numbers as JavaScript spells them": (calling('{"a":[1.0,{"b":2e1}]}'), calling('{"a":[1,{"b":20}]}')),
    "fields that SDKs add": (
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "tool_calls": None, "audio": None},
    ),
    "reasoning": (
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": "x", "reasoning_content": "r"},
    ),
    "refusal": ({"role": "assistant", "content": None}, {"role": "assistant", "content": None, "refusal": "no"}),
}

DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": (HI, {"role": "user", "content": "ho"}),
    "role": (HI, {"role": "assistant", "content": "hi"}),
    "arguments": (calling('{"a":1}'), calling('{"a":2}')),
    "call or text": (calling("{}"), {"role": "assistant", "content": "f"}),
    "image": (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b"}}]},
    ),
    "result of another call": (
        {"role": "tool", "tool_call_id": "a", "content": "r"},
        {"role": "tool", "tool_call_id": "b", "content": "r"},
    ),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_what_a_client_may_change_on_the_way_back_makes_no_difference(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert name_of(HI, one) == name_of(HI, other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_was_said_makes_a_difference(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert name_of(HI, one) != name_of(HI, other)


def test_equal_conversations_of_two_owners_never_meet() -> None:
    mine, theirs = (chain(owner, [decode_message(json.dumps(HI).encode())] * 2) for owner in ("me", "you"))
    assert not set(mine) & set(theirs)


def test_border_between_two_messages_counts() -> None:
    a, b, ab = ({"role": "user", "content": text} for text in ("a", "b", "ab"))
    assert name_of(a, b) not in (name_of(ab), name_of(b, a))


@settings(max_examples=25)
@given(st.lists(messages, min_size=1, max_size=5), st.lists(messages, max_size=3))
def test_longer_conversation_shares_every_hash_of_the_shorter(said: list[Message], more: list[Message]) -> None:
    short, long = chain("me", said), chain("me", said + more)
    assert long[: len(short)] == short
    assert len(set(long)) == len(said) + len(more)
