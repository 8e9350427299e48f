"""Random messages and streams, for properties. Texts are whatever JSON can carry."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from gateway.chat.blocks import Audio, Block, Image, Message, Refusal, Text, ToolCall, ToolResult, Unknown

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
ids = st.from_regex(r"call_[a-z0-9]{1,8}", fullmatch=True)
json_texts = st.dictionaries(words, st.one_of(st.integers(-(2**40), 2**40), texts, st.booleans()), max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)

content_blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, texts),
    st.builds(Image, texts, st.one_of(st.none(), st.sampled_from(["low", "high"]))),
    st.builds(Audio, texts, st.sampled_from(["wav", "mp3"])),
    texts.map(lambda text: Unknown("file", {"type": "file", "file": {"file_id": text}})),
)
calls = st.builds(ToolCall, ids, words, json_texts)
custom_calls = ids.map(lambda i: ToolCall(i, "sql", "select 1", custom=True))


def _said(role: Any) -> st.SearchStrategy[Message]:
    blocks = st.lists(content_blocks, min_size=1, max_size=4).map(tuple)
    return st.builds(Message, st.just(role), blocks, st.one_of(st.none(), words))


def _answered(content: list[Block], asked: list[Block]) -> Message:
    return Message("assistant", (*content, *asked))


assistant_messages = st.builds(
    _answered,
    st.lists(st.one_of(content_blocks, st.builds(Refusal, texts)), max_size=3),
    st.lists(st.one_of(calls, custom_calls), min_size=1, max_size=3),
)
tool_messages = st.builds(lambda i, text: Message("tool", (ToolResult(i, text),)), ids, texts)
messages: st.SearchStrategy[Message] = st.one_of(
    *(_said(role) for role in ("system", "developer", "user", "assistant")), assistant_messages, tool_messages
)


@st.composite
def cuttings(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes in pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
