"""Summaries: what is open stays, parts are read as what they are."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.blocks import Message, Text, ToolCall, ToolResult
from gateway.chat.codecs.chat_completions import decode_message
from gateway.scribe.summary import Lines, asking_for, is_shorter, words_of
from gateway.scribe.tokens import text_tokens


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def heard(lines: Lines, at: int, text: str) -> None:
    """Said, and cut off."""
    lines.heard(at, text)
    lines.add([(at, user(text))])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=400), max_size=60), st.integers(60, 400))
def test_an_open_goal_stays_however_often_is_summed_up(talk: list[str], room: int) -> None:
    lines = Lines()
    heard(lines, 0, "We still need the invoice of March.")
    for index, text in enumerate(talk, 1):
        lines.add([(index, Message("assistant", (Text(text),)))])
        lines.heard(index, "and the next one?")
    summary = lines.text(room, written="A model forgot about it.", upto=len(talk))
    assert "Open: We still need the invoice of March." in summary
    assert text_tokens(summary) <= room + 2


def test_a_goal_is_open_until_its_user_calls_it_done() -> None:
    lines = Lines()
    heard(lines, 0, "We still need the invoice of March. Later we need the hotel too.")
    lines.heard(3, "The hotel is done.")
    assert [goal for _, goal in lines.goals] == ["We still need the invoice of March."]
    # Said before, it closes nothing that was asked for since.
    heard(lines, 5, "We still need a hotel in Bonn.")
    assert len(lines.goals) == 2


def test_values_that_no_longer_hold_are_not_told() -> None:
    lines = Lines()
    heard(lines, 4, "The codename is Bluebird, the desk is Berlin.")
    text = lines.text(200, replaced={4: ["Bluebird"]})
    assert "Bluebird" not in text
    assert "Berlin" in text


def test_parts_are_read_as_what_they_are_B059() -> None:
    messages = [
        decode_message(json.dumps(each).encode())
        for each in (
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look at this"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                    {"type": "file", "file": {"file_data": "JVBERi0xLjQK", "filename": "a.pdf"}},
                ],
            },
            {
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "I may not."}],
                "reasoning_content": "SECRET",
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": '{"found": [1, 2]}'},
        )
    ]
    prompt = asking_for(messages)[1].text
    assert words_of(messages[0]) == "Look at this [image] [audio] [file]"
    for wanted in ("Look at this", "[image]", "[audio]", "I may not.", 'find with {"a": 1}', '{"found": [1, 2]}'):
        assert wanted in prompt
    for never in ("base64", "iVBOR", "UklGR", "JVBER", "SECRET", "object Object", "{'type'"):
        assert never not in prompt
    lines = Lines()
    lines.add(enumerate(messages))
    told = lines.text(400)
    assert "{'" not in told
    assert "SECRET" not in told


def test_a_summary_is_shorter_than_what_it_sums_up() -> None:
    source = [
        user("word " * 100),
        Message("tool", (ToolResult("c", "{}"),)),
        Message("assistant", (ToolCall("c", "f", "{}"),)),
    ]
    assert is_shorter("fine", source)
    assert not is_shorter("", source)
    assert not is_shorter("word " * 200, source)


def test_what_was_corrected_stands_behind_what_it_corrects() -> None:
    lines = Lines()
    heard(lines, 0, "Group it by store. And what about May?")
    lines.heard(4, "thanks")
    lines.heard(6, "No: group it by line.")
    lines.heard(8, "Now?")
    text = lines.text(200, before=8)
    assert text == "- User: Group it by store.\n- Asked: And what about May?\n- User: No: group it by line."
    assert Lines().text(200) == ""


def test_the_first_words_are_told_whole_and_what_corrects_them_stands_behind_them() -> None:
    lines = Lines()
    brief = "The report is for the committee and comes on Friday. " * 8 + "Leave out the returns."
    lines.heard(0, brief)
    for at in range(2, 60, 2):
        lines.heard(at, f"Then look at shop {at}, and tell me in a few sentences what was sold there and why. " * 4)
    lines.heard(60, "Correction: leave out the samples.")
    lines.add([(0, Message("user", (Text(brief),)))])
    for room in (1_500, 300):
        text = lines.text(room, before=62)
        assert text.startswith("- User: The report is for the committee")
        assert ("Leave out the returns." in text) == (room == 1_500)
        assert text.endswith("- User: Correction: leave out the samples.")
        assert text_tokens(text) <= room
