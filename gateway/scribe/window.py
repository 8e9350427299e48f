"""The window: which messages of a conversation are sent, and how much of each, when there is no room for all.

Pure: a function of the conversation, the limits and what was cut before. Messages come in order and are never taken back; a
cut is made when there is too much (100 %), goes down to 60 %, and holds until there is too much again, so that the
beginning of what is sent stays the same from turn to turn.

A message that calls tools and the results behind it are one unit: it is sent whole, with shortened results, or not at all.
Whatever cuts a conversation, the cuts of its earlier requests included, can be computed anew from the conversation alone.
Does not know pins, summaries, backends or where limits come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.chat.blocks import Message, Text, ToolResult
from gateway.scribe.shortening import shortened_message
from gateway.scribe.tokens import MESSAGE_TOKENS, message_tokens, text_tokens
from gateway.scribe.weights import Kind, asked, kind_of

# A cut goes down to this share of the room.
DOWN_TO: Final = 0.6
# What the user said goes only for a smaller gain: it is worth more than prompt caches.
_DOWN_TO_FOR_WORDS: Final = 0.85

GONE: Final = 0
# Tokens that are left of a result, an answer, a long message of the user's.
_STUB: Final = 24
_SHORT_RESULT: Final = 60
_SHORT_ANSWER: Final = 80
_SHORT_WORDS: Final = 150
# The same of the first: with it users say what it is all about.
_SHORT_BEGINNING: Final = 400
# No result of late takes more than this share of the room, where there is too little.
_RESULT_SHARE: Final = 0.2
_LEAST_RESULT: Final = 32


class Room(msgspec.Struct, frozen=True):
    """How much may be sent.

    Attributes:
        tokens: for messages, notes apart; None for as many as there are.
        whole: the same as long as nothing is cut, so that there are no notes.
        messages: how many, or None.
        recent_turns: the turns that are cut last.
        summed_up: whether a cut takes away everything but the turns of late.
    """

    tokens: int | None = None
    whole: int | None = None
    messages: int | None = None
    recent_turns: int = 2
    summed_up: bool = False


class Unit:
    """Messages that are sent together or not at all: `start` to `end`, and their tokens."""

    __slots__ = ("asked", "end", "form", "kind", "results", "start", "superseded", "tokens", "turn")

    def __init__(self, start: int, kind: Kind, tokens: int, turn: int, calls: bytes | None) -> None:
        self.start = start
        self.end = start + 1
        self.kind = kind
        self.tokens = tokens
        self.turn = turn
        self.asked = calls
        # How many results, or else texts, there are to shorten, and what they take.
        self.results: list[int] = []
        self.superseded = False
        self.form: int | None = None

    def sent(self, form: int | None) -> int:
        """The tokens that are sent in a form: None for all, `GONE`, or tokens left of each result or text."""
        if form is None:
            return self.tokens
        if form == GONE:
            return 0
        return self.tokens - sum([size - form for size in self.results if size > form])

    @property
    def size(self) -> int:
        """How many messages it is."""
        return self.end - self.start


class Offer(NamedTuple):
    """What may be taken away of a unit.

    Attributes:
        form: what is left: `GONE`, or tokens of each result or text.
        limit: the room at which it may stay; None where there is room enough.
        of_old: whether it may go too where there are too many messages.
    """

    form: int
    limit: int | None
    unit: Unit
    of_old: bool = False


class Window:
    """A conversation as it was sent so far.

    Attributes:
        seen: how many messages it has read.
        total: their tokens.
        live: tokens of what is sent of them.
        count: messages that are sent of them.
        epochs: how many cuts there were.
        went: units that a cut took away and nobody has taken note of yet, in order.
    """

    __slots__ = (
        "_alive",
        "_beginning",
        "_by_asked",
        "_last",
        "count",
        "epochs",
        "live",
        "seen",
        "total",
        "turns",
        "went",
    )

    def __init__(self) -> None:
        self.seen = 0
        self.total = 0
        self.live = 0
        self.count = 0
        self.epochs = 0
        self.turns = 0
        self.went: list[tuple[int, int]] = []
        # Units something of which is sent; the others are never looked at again.
        self._alive: list[Unit] = []
        self._last: Unit | None = None
        self._beginning: Unit | None = None
        self._by_asked: dict[bytes, Unit] = {}

    @property
    def is_cut(self) -> bool:
        """Whether anything is left out or shortened."""
        return self.epochs > 0

    def read(self, messages: Sequence[Message], room: Room) -> None:
        """Read on to the end of a conversation whose beginning was read before, cutting wherever a request was too long."""
        for index in range(self.seen, len(messages)):
            message = messages[index]
            if index > self.seen and message.role == "assistant" and messages[index - 1].role != "assistant":
                self._check(room)  # here a request was made
            self._add(index, message)
        self.seen = len(messages)
        self._check(room)

    def cut(self, room: Room) -> bool:
        """Cut once more, for less room than was reckoned with; whether it fits now."""
        self._cut(room)
        return self.fits(room)

    def fits(self, room: Room) -> bool:
        """Whether what is sent fits. Of a number of messages more may be needed."""
        return room.tokens is None or self.live <= room.tokens

    def sent(self, messages: Sequence[Message]) -> list[Message]:
        """What is sent of these messages, which are those that were read."""
        out: list[Message] = []
        for unit in self._alive:
            if unit.form is None:
                out += messages[unit.start : unit.end]
                continue
            for message in messages[unit.start : unit.end]:
                short = unit.kind != "tool" or message.role == "tool"
                out.append(shortened_message(message, unit.form) if short else message)
        return out

    def left_out(self) -> tuple[int, int]:
        """How many messages are not sent, and how many units are shortened."""
        return self.seen - self.count, sum([unit.form is not None for unit in self._alive])

    def needed(self) -> Iterator[tuple[str, int]]:
        """What no cut takes away: its name and its tokens."""
        system = sum([unit.tokens for unit in self._alive if unit.kind == "system"])
        if system:
            yield "system messages in the conversation", system
        last = self._last_words()
        if last is not None:
            yield "the last user message", last.tokens
        rest = sum([unit.sent(unit.form) for unit in self._alive if unit is not last and unit.kind != "system"])
        if rest:
            yield "the tool calls of this turn", rest

    def _add(self, index: int, message: Message) -> None:
        tokens = message_tokens(message)
        self.total += tokens
        unit = self._last
        if message.role == "tool" and unit is not None and unit.kind == "tool" and unit.end == index:
            before = unit.sent(unit.form)
            unit.end += 1
            unit.tokens += tokens
            unit.results.append(tokens - MESSAGE_TOKENS)
            self.live += unit.sent(unit.form) - before
            self.count += unit.form != GONE
            return
        kind = kind_of(message)
        self.live += tokens
        self.count += 1
        if kind in ("user", "noise"):
            self.turns += 1
        calls = asked(message.tool_calls) if message.tool_calls else None
        unit = Unit(index, kind, tokens, self.turns, calls)
        if kind in ("user", "noise", "assistant"):
            unit.results.extend(text_tokens(block.text) for block in message.blocks if isinstance(block, Text))
        elif message.role == "tool":
            unit.results.extend(text_tokens(b.text) for b in message.blocks if isinstance(b, ToolResult))
        if calls is not None:
            before_it = self._by_asked.get(calls)
            if before_it is not None:
                before_it.superseded = True
            self._by_asked[calls] = unit
        if kind == "user" and self._beginning is None:
            self._beginning = unit
        self._alive.append(unit)
        self._last = unit

    def _check(self, room: Room) -> None:
        limit = room.whole if not self.epochs and room.whole is not None else room.tokens
        too_long = limit is not None and self.live > limit
        too_many = room.messages is not None and self.count > room.messages
        if too_long or too_many:
            self._cut(room)

    def _cut(self, room: Room) -> None:
        """Take away what is worth least, until enough of it is gone."""
        tokens, messages = room.tokens, room.messages
        before = self.live, self.count
        fewer = None if messages is None or self.count <= messages else max(1, int(messages * DOWN_TO))
        if tokens is not None and self.live <= tokens and fewer is not None:
            tokens = None  # there are too many of them, not too much
        for offer in self._offers(room, tokens):
            too_much = offer.limit is not None and self.live > offer.limit
            too_many = offer.form == GONE and offer.of_old and fewer is not None and self.count > fewer
            if too_much or too_many:
                self._take(offer.unit, offer.form)
        if (self.live, self.count) != before:
            self.epochs += 1
            self._alive = [unit for unit in self._alive if unit.form != GONE]
            # What is not sent is not remembered: a call that is made again later supersedes nothing then.
            self._by_asked = {unit.asked: unit for unit in self._alive if unit.asked is not None}

    def _offers(self, room: Room, tokens: int | None) -> Iterator[Offer]:
        """What may be taken away, the least worth first."""
        down = words = None
        if tokens is not None:
            down, words = int(tokens * DOWN_TO), int(tokens * _DOWN_TO_FOR_WORDS)
        last = self._last_words()
        here = last.start if last is not None else -1
        oldest_recent = self.turns - room.recent_turns + 1
        alive = [unit for unit in self._alive if unit.kind != "system" and unit is not last]
        past = [unit for unit in alive if unit.start < here]
        stale = [unit for unit in past if unit.turn < oldest_recent]
        recent = [unit for unit in past if unit.turn >= oldest_recent]
        running = [unit for unit in alive if unit.start > here]
        tools = [unit for unit in stale if unit.kind == "tool"]
        late = [unit for unit in (*recent, *running) if unit.kind == "tool"]
        answers = [unit for unit in stale if unit.kind == "assistant"]
        said = [unit for unit in stale if unit.kind == "user"]
        share = max(_LEAST_RESULT, int((room.tokens or 0) * _RESULT_SHARE))
        yield from (Offer(_STUB, down, unit) for unit in alive if unit.superseded)
        yield from (Offer(share, down, unit) for unit in late)
        if room.summed_up:
            yield from (Offer(GONE, -1, unit) for unit in stale)
        yield from (Offer(_SHORT_RESULT, down, unit) for unit in tools)
        yield from (Offer(GONE, down, unit, of_old=True) for unit in past if unit.kind == "noise")
        yield from (Offer(GONE, down, unit, of_old=True) for unit in tools)
        yield from (Offer(_SHORT_ANSWER, down, unit) for unit in answers)
        yield from (Offer(GONE, down, unit, of_old=True) for unit in answers)
        for unit in said:
            yield Offer(_SHORT_BEGINNING if unit is self._beginning else _SHORT_WORDS, down, unit)
        yield from (Offer(_SHORT_RESULT, tokens, unit) for unit in late[:-1])
        yield from (Offer(GONE, words, unit, of_old=True) for unit in said)
        yield from (Offer(GONE, tokens, unit) for unit in recent if unit.kind != "user")
        yield from (Offer(GONE, tokens, unit) for unit in recent)
        yield from (Offer(GONE, tokens, unit) for unit in running[:-1])
        if running and running[-1].results and tokens is not None:
            end = running[-1]
            fixed = self.live - sum([min(size, end.form or size) for size in end.results])
            yield Offer(max(_LEAST_RESULT, (tokens - fixed) // len(end.results)), tokens, end)

    def _take(self, unit: Unit, form: int) -> None:
        if unit.form == GONE or (form != GONE and unit.form is not None and unit.form <= form):
            return
        before, after = unit.sent(unit.form), unit.sent(form)
        if form != GONE and after >= before:
            return
        self.live -= before - after
        unit.form = form
        if form == GONE:
            self.count -= unit.size
            self.went.append((unit.start, unit.end))

    def _last_words(self) -> Unit | None:
        return next((unit for unit in reversed(self._alive) if unit.kind in ("user", "noise")), None)
