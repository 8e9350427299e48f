"""Streams that hooks look at while they come: the same text however it is cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.blocks import Message, Text
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.usage import Usage
from gateway.security.principal import Principal
from gateway.tools import look_ahead
from gateway.tools.look_ahead import reach_of
from gateway.turn.guarded import GuardedSink
from gateway.turn.hooks import Hooks


class Heard:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.text = ""
        self.ends: list[str | None] = []

    @property
    def started(self) -> bool:
        return bool(self.text)

    async def relay(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            for choice in chunk.choices:
                assert not self.ends, "nothing comes behind an end"
                self.text += (choice.delta and choice.delta.content) or ""  # type: ignore[operator]
                if choice.finish_reason:
                    self.ends.append(choice.finish_reason)

    def straight(self) -> None:
        return None

    async def add(self, text: str) -> None:
        raise AssertionError(text)

    async def finish(self, reason: str | None, usage: Usage) -> None:
        self.ends.append(reason)


def piece(text: str, finish: str | None = None) -> Chunk:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return decode_chunk(msgspec.json.encode({"choices": [choice]}))


@look_ahead(12)
async def stars(message: Message, principal: Principal) -> Message:
    return Message("assistant", (Text(re.sub(r"[0-9]{3,6}|secret(?: word)?", "*", message.text)),))


async def through(hook: Any, pieces: Sequence[str]) -> Heard:
    heard = Heard()
    sink = GuardedSink(heard, Hooks({"on_answer": [hook]}), Principal("k"))
    for each in pieces:
        await sink.relay([piece(each)])
    await sink.relay([piece("", "stop")])
    await sink.finish(None, Usage())
    return heard


WORDS = st.lists(
    st.sampled_from(["secret", " word", "123", "4567", " ", "x", "y z", "se", "cret", "\u4f60"]), max_size=25
)


@given(WORDS, st.randoms(use_true_random=False))
@settings(max_examples=120, deadline=None)
async def test_what_hooks_make_of_a_text_is_the_same_however_it_is_cut(words: list[str], dice: Any) -> None:
    # Runs of digits longer than a hook promised to look at are not its business.
    text = re.sub(r"([0-9]{6})(?=[0-9])", r"\1 ", "".join(words))
    cuts = sorted(dice.randint(0, len(text)) for _ in range(dice.randint(0, 12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = (await stars(Message("assistant", (Text(text),)), Principal("k"))).text
    heard = await through(stars, pieces)
    assert heard.text == whole
    assert heard.ends == ["stop", None]


async def test_a_text_goes_out_as_far_as_hooks_cannot_change_it() -> None:
    heard = Heard()
    sink = GuardedSink(heard, Hooks({"on_answer": [stars]}), Principal("k"))
    await sink.relay([piece("a" * 100)])
    assert len(heard.text) == 88


async def test_a_hook_that_breaks_its_promise_makes_the_answer_wait() -> None:
    @look_ahead(4)
    async def signed(message: Message, principal: Principal) -> Message:
        return Message("assistant", (Text(f"{message.text}!"),))

    assert (await through(signed, list("hello to you"))).text == "hello to you!"


@pytest.mark.parametrize("wrong", [0, 4097, True, 1.5, "64"])
def test_a_look_ahead_is_a_number_of_characters(wrong: Any) -> None:
    with pytest.raises(ValueError, match="look_ahead"):
        look_ahead(wrong)


def test_hooks_that_look_ahead_add_up_and_one_that_does_not_needs_the_whole() -> None:
    async def plain(message: Message, principal: Principal) -> None: ...

    assert reach_of([]) == 0
    assert reach_of([stars, stars]) == 24
    assert reach_of([stars, plain]) is None
