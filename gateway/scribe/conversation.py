"""One conversation as the Scribe knows it: its window, its pins, and what is remembered of what was cut off.

Pure: what it holds is a function of the messages it has read and of the room there was. It is read on, never anew, so that a
long conversation costs what its newest messages cost. Does not know whose it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.chat.blocks import Message
from gateway.chat.codecs.chat_completions import encode_message
from gateway.scribe.notes import Notes, pins_tokens, with_notes
from gateway.scribe.pins import Pin, PinPatterns, Pins
from gateway.scribe.summary import Lines
from gateway.scribe.window import Room, Window

# Messages that are worth a summary however few turns they are.
_MANY: Final = 12


class Written(msgspec.Struct, frozen=True):
    """A summary that a model wrote of the messages before `upto`."""

    text: str
    upto: int


class Fitted(msgspec.Struct, frozen=True):
    """What is sent of a conversation.

    Attributes:
        messages: in order; the notes stand in the last of the user's.
        tokens: their tokens, notes included.
        notes: what the gateway tells of the rest.
    """

    messages: tuple[Message, ...]
    tokens: int
    notes: Notes


class Conversation:
    """What was read so far.

    Args:
        patterns: what pins are found by.

    Attributes:
        window: which messages are sent.
        lines: what is remembered of the others.
        written: the model's summary of its beginning, or None.
        tried: messages that a model was asked to sum up, whatever came of it.
    """

    __slots__ = ("_last_sent", "_pins", "lines", "prints", "tried", "window", "written")

    def __init__(self, patterns: PinPatterns) -> None:
        self.window = Window()
        self.lines = Lines()
        self.written: Written | None = None
        self.tried = 0
        # One number a message: whether another conversation begins like this one.
        self.prints = array("q")
        self._pins = Pins(patterns)
        self._last_sent: list[tuple[int, int]] = []

    def continues(self, prints: array[int]) -> bool:
        """Whether messages with these prints begin with those that were read."""
        size = len(self.prints)
        return size <= len(prints) and prints[:size] == self.prints

    def read(self, messages: Sequence[Message], prints: array[int], room: Room) -> None:
        """Read on to the end of these messages."""
        for index in range(len(self.prints), len(messages)):
            message = messages[index]
            if message.role == "user":
                text = message.text
                if index and messages[index - 1].role == "assistant":
                    self._pins.confirmed(text, messages[index - 1].text, index)
                self._pins.read(text, index)
                self.lines.heard(index, text)
        self.prints = prints
        self.window.read(messages, room)
        self._note(messages)

    def cut(self, messages: Sequence[Message], room: Room) -> bool:
        """Cut once more; whether it fits now."""
        fits = self.window.cut(room)
        self._note(messages)
        return fits

    def pins(self, messages: Sequence[Message], most: int) -> tuple[Pin, ...]:
        """The pins that are told beside these messages."""
        return self._pins.kept(most, _last_user(messages))

    def fitted(
        self, messages: Sequence[Message], pins: tuple[Pin, ...], summary_tokens: int, memories: tuple[str, ...] = ()
    ) -> Fitted:
        """What is sent: the window with its notes."""
        sent = self.window.sent(messages)
        notes = Notes(pins, self._summed_up(summary_tokens, _last_user(messages)), memories)
        with_notes(sent, notes)
        tokens = self.window.live + (pins_tokens(pins) if pins else 0)
        return Fitted(tuple(sent), tokens, notes)

    def unsummed(self, messages: Sequence[Message], every: int) -> tuple[int, int] | None:
        """From where to where a model should sum up what was cut off; None where that is not worth it yet.

        Args:
            messages: those that were read.
            every: turns that are worth it; so are more than twelve messages, and the first that are cut.
        """
        start, end = self.written.upto if self.written is not None else 0, self.lines.upto
        if end <= max(start, self.tried):
            return None
        since = max(start, self.tried)
        turns = sum([message.role == "user" for message in messages[since:end]])
        return (start, end) if not self.tried or turns >= every or end - since > _MANY else None

    def prefix_share(self, sent: Sequence[Message]) -> float | None:
        """The share of the bytes sent the last time with which these messages begin; None for the first time."""
        now = [(hash(raw), len(raw)) for raw in map(encode_message, sent)]
        before, self._last_sent = self._last_sent, now
        total = sum([size for _, size in before])
        if not total:
            return None
        same = 0
        for old, new in zip(before, now, strict=False):
            if old != new:
                break
            same += old[1]
        return round(same / total, 4)

    def _note(self, messages: Sequence[Message]) -> None:
        if self.window.went:
            self.lines.add((at, messages[at]) for start, end in self.window.went for at in range(start, end))
            self.window.went.clear()

    def _summed_up(self, max_tokens: int, before: int) -> str:
        """The summary that stands in the message at this position."""
        written = self.written
        return self.lines.text(
            max_tokens,
            before=before,
            written=written.text if written else None,
            upto=written.upto if written else 0,
            replaced=self._pins.replaced,
        )


def _last_user(messages: Sequence[Message]) -> int:
    return next((index for index in range(len(messages) - 1, -1, -1) if messages[index].role == "user"), 0)


def prints_of(messages: Sequence[Message]) -> array[int]:
    """One number for each message; the same for equal bytes, in this process."""
    return array("q", [hash(message.wire or encode_message(message)) for message in messages])
