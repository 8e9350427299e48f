"""The window over any conversation and any room: whole pairs, order, the last word, and the room kept."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.backend import ModelCall
from gateway.chat.blocks import Message, Text, ToolCall, ToolResult
from gateway.chat.codecs.chat_completions import decode_message, encode_message
from gateway.clock import SystemClock
from gateway.config.context import ContextConfig, PinConfig
from gateway.config.models import BackendConfig
from gateway.errors import ContextTooLong
from gateway.observe.events import Recorder
from gateway.scribe.conversations import Conversations
from gateway.scribe.marks import BEGIN
from gateway.scribe.pins import PinPatterns
from gateway.scribe.tokens import conversation_tokens
from gateway.scribe.window import Room, Window
from gateway.turn.windowing import TurnWindow, windowing
from tests.strict_history import history_fault

# Compiled once: that takes longer than a window.
PATTERNS = PinPatterns([])
WORDS = st.sampled_from(
    ["thanks", "ok", "please look at region East China", "our code is BLUE-7", "what now?", "好的", "继续查"]
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    out: list[Message] = []
    if draw(st.booleans()):
        out.append(Message("system", (Text("s" * draw(st.integers(1, 400))),)))
    for turn in range(draw(st.integers(1, 12))):
        out.append(Message("user", (Text(draw(WORDS) + " x" * draw(st.integers(0, 120))),)))
        for step in range(draw(st.integers(0, 3))):
            ids = [f"c{turn}.{step}.{at}" for at in range(draw(st.integers(1, 3)))]
            name = draw(st.sampled_from(["find", "read"]))
            out.append(Message("assistant", tuple(ToolCall(each, name, '{"a": 1}') for each in ids)))
            out += [Message("tool", (ToolResult(each, "r" * draw(st.integers(0, 3000))),)) for each in ids]
        if draw(st.booleans()):
            out.append(Message("assistant", (Text("answer " * draw(st.integers(1, 120))),)))
    if out[-1].role == "assistant":
        out.append(Message("user", (Text("and now?"),)))
    return tuple(out)


def bodies(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [json.loads(encode_message(message)) for message in messages]


def windowed(messages: tuple[Message, ...], context: int, **config: Any) -> tuple[Message, ...]:
    """What a backend with so much context is sent."""
    settings = windowing(ContextConfig(**config), None)
    record = Recorder("0" * 32, "me", SystemClock())
    window = TurnWindow(Conversations(), PATTERNS, settings, "me", None, record, kept=False)
    backend = BackendConfig(provider="openai", base_url="http://x", model="m", context_tokens=context)
    return window.fit(ModelCall(messages, {}, "t", 1.0, "m"), "b", backend, tighter=False).messages


def tried(messages: tuple[Message, ...], context: int, strategy: str) -> tuple[tuple[Message, ...], str]:
    """What is sent, or why it cannot be."""
    try:
        return windowed(messages, context, strategy=strategy, answer_reserve_tokens=0), ""
    except ContextTooLong as refusal:
        return (), refusal.message


@settings(max_examples=150, deadline=None)
@given(conversations(), st.integers(60, 6000), st.sampled_from(["auto", "window", "summary", "last", "fresh"]))
def test_any_conversation_fits_any_room_or_is_refused_by_name(
    messages: tuple[Message, ...], context: int, strategy: str
) -> None:
    sent, refusal = tried(messages, context, strategy)
    if refusal:
        assert re.search("last user message|system messages", refusal)
        return
    assert conversation_tokens(sent) <= context
    assert history_fault({"messages": bodies(sent)}) is None
    last = [message for message in messages if message.role == "user"][-1]
    assert [message.text for message in sent if message.role == "user"][-1].endswith(last.text)
    if messages[0].role == "system":
        assert sent[0] == messages[0]
    # Order is kept, and nothing is there twice.
    calls = [call.id for message in messages for call in message.tool_calls]
    assert [id_ for id_ in calls if id_ in {c.id for m in sent for c in m.tool_calls}] == [
        call.id for message in sent for call in message.tool_calls
    ]
    assert sent == tried(messages, context, strategy)[0], "it is a function"


@settings(max_examples=100, deadline=None)
@given(conversations(), st.integers(100, 3000))
def test_reading_on_cuts_as_reading_at_once_does(messages: tuple[Message, ...], tokens: int) -> None:
    room = Room(tokens=tokens, whole=tokens)
    whole, piece = Window(), Window()
    whole.read(messages, room)
    for index, message in enumerate(messages):
        following = messages[index + 1].role if index + 1 < len(messages) else "assistant"
        if following == "assistant" and message.role != "assistant":  # here a request was made
            piece.read(messages[: index + 1], room)
    piece.read(messages, room)
    assert bodies(whole.sent(messages)) == bodies(piece.sent(messages))
    assert (whole.live, whole.count, whole.epochs) == (piece.live, piece.count, piece.epochs)
    assert whole.live == conversation_tokens(whole.sent(messages)) or whole.is_cut


def test_pairs_stay_whole_for_every_budget_B054() -> None:
    messages = tuple(
        decode_message(json.dumps(each).encode())
        for each in (
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is the weather in the towns of my list?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "a", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "rain and wind " * 650},
            {"role": "assistant", "content": "done"},
            {"role": "user", "content": "And tomorrow?"},
        )
    )
    for budget in range(50, 4001, 10):
        sent = windowed(messages, budget, answer_reserve_tokens=0)
        assert conversation_tokens(sent) <= budget
        assert history_fault({"messages": bodies(sent)}) is None
        assert sent[0] == messages[0]
        assert sent[-1].text.endswith("And tomorrow?")
    with pytest.raises(ContextTooLong, match=r"last user message \(\d+ tokens\)"):
        windowed(messages, 10, answer_reserve_tokens=0)


def test_a_cut_holds_until_there_is_too_much_again() -> None:
    room = Room(tokens=2000, whole=2000)
    window = Window()
    messages: list[Message] = []
    shares: list[float] = []
    before: list[dict[str, Any]] = []
    for turn in range(60):
        messages.append(Message("user", (Text(f"question {turn} " + "word " * 20),)))
        window.read(messages, room)
        now = bodies(window.sent(messages))
        same = sum(1 for one, other in zip(before, now, strict=False) if one == other)
        shares.append(same == len(before))
        before = now
        messages.append(Message("assistant", (Text("answer " * 60),)))
        assert window.live <= 2000
    # Most turns add to what was sent before and change nothing of it.
    assert sum(shares) >= 50
    assert 2 <= window.epochs <= 10


def test_a_giant_result_is_shortened_before_anything_else_goes_B056() -> None:
    talk = [Message("user", (Text("My customer number is 4711."),)), Message("assistant", (Text("Noted."),))]
    for turn in range(11):
        talk += [Message("user", (Text(f"question {turn}"),)), Message("assistant", (Text(f"answer {turn}"),))]
    talk += [
        Message("user", (Text("read the file"),)),
        Message("assistant", (ToolCall("c", "read", "{}"),)),
        Message("tool", (ToolResult("c", "line of a log\n" * 110_000),)),
        Message("assistant", (Text("It is long."),)),
        Message("user", (Text("what's my customer number?"),)),
    ]
    sent = windowed(tuple(talk), 32_000)
    assert len(sent) == len(talk)
    assert "customer number: 4711" in sent[-1].text
    assert conversation_tokens(sent) <= 32_000


def test_a_newer_result_takes_the_place_of_an_older_one_of_the_same_call() -> None:
    def call(id_: str, text: str) -> list[Message]:
        return [
            Message("assistant", (ToolCall(id_, "stock", '{"item": 7}'),)),
            Message("tool", (ToolResult(id_, text),)),
        ]

    talk = [
        Message("user", (Text("How many are there?"),)),
        *call("a", "OLD " * 300),
        Message("assistant", (Text("Many."),)),
        Message("user", (Text("And now?"),)),
        *call("b", "NEW " * 300),
        Message("assistant", (Text("Fewer."),)),
        Message("user", (Text("Are you sure?"),)),
    ]
    sent = windowed(tuple(talk), 640, answer_reserve_tokens=0)
    text = json.dumps(bodies(sent))
    assert text.count("OLD") <= 10
    assert text.count("NEW") > 50


def test_pins_are_told_with_the_last_user_message_and_newer_ones_replace_older() -> None:
    talk: list[Message] = [Message("user", (Text("Region is North China. The project codename is Bluebird."),))]
    talk += [
        Message("assistant", (Text("fine " * 400),)),
        Message("user", (Text("Change the project codename to Kestrel."),)),
    ]
    talk += [Message("assistant", (Text("done " * 400),)), Message("user", (Text("Go on."),))]
    talk += [Message("assistant", (Text("yes " * 400),)), Message("user", (Text("Which codename?"),))]
    sent = windowed(tuple(talk), 1000, answer_reserve_tokens=0)
    last = sent[-1].text
    assert last.startswith(BEGIN)
    assert "- region: North China" in last
    assert "- project codename: Kestrel" in last
    assert "project codename: Bluebird" not in last


def test_configured_pins_come_first_and_tags_may_be_written_out() -> None:
    patterns = PinPatterns([PinConfig(tag="ticket", pattern=r"\bT-(\d+)\b", priority=5)])
    found = {pin.tag: pin.value for pin in patterns.found_in("See T-77, #desk: Berlin", 0)}
    assert found["ticket"] == "77"
    assert found["desk"] == "Berlin"


def test_what_a_user_says_yes_to_is_pinned_and_so_is_what_stands_behind_a_long_text() -> None:
    def talk(answer: str, *, long: bool = False) -> str:
        said = [
            Message(
                "user",
                (Text("The log is:\n" + "line of a log\n" * 900 + "My customer number is 4711." if long else "Hello"),),
            ),
            Message("assistant", (Text("Is it the order SO-2024-0318 you ask about?"),)),
            Message("user", (Text(answer),)),
            *(Message("assistant" if at % 2 == 0 else "user", (Text("word " * 120),)) for at in range(9)),
            Message("user", (Text("Go on."),)),
        ]
        return windowed(tuple(said), 1200, answer_reserve_tokens=0)[-1].text

    assert "- order: SO-2024-0318" in talk("Yes, please.")
    assert "- order: SO-2024-0318" in talk("对的")
    for other in ("No.", "Yes, but not that one.", "Why?", "不对"):
        assert "SO-2024-0318" not in talk(other)
    assert "- customer number: 4711" in talk("No.", long=True)


def test_what_is_only_asked_about_or_compared_with_takes_no_facts_place() -> None:
    def pins(*words: str) -> dict[str, str]:
        talk = [
            Message("user", (Text("It is about East China, last week."),)),
            Message("assistant", (Text("word " * 300),)),
        ]
        for each in words:
            talk += [Message("user", (Text(each),)), Message("assistant", (Text("word " * 300),))]
        text = windowed((*talk, Message("user", (Text("Go on."),))), 500, answer_reserve_tokens=0)[-1].text
        assert "(changed since)" not in text or "South" in text
        return dict(
            line[2:].split(": ", 1) for line in text.splitlines() if line.startswith(("- region:", "- date range:"))
        )

    for each in ("How was last month?", "Compare it with last month.", "与上个月相比如何？"):
        assert pins(each)["date range"].startswith("last week (asked about later: ")
    assert pins("How was South China?", "No, take South China.") == {"region": "South China", "date range": "last week"}
    assert pins("Was North China better?")["region"] == "East China (asked about later: North China)"
