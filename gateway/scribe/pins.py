"""Pins: facts that survive any cut.

Pure. A pin has a tag, a value and the message it was said in; a newer value of a tag takes the older one's place. Found by
patterns (`context.pins`, and a few of the gateway's own), by tags written out (`#region: East China`), and where users say
of something that it is to last. Only what users say is read, and what
they say yes to: what a tool returned or a model wrote is nobody's wish.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
import re2

from gateway.config.context import PinConfig
from gateway.late import late
from gateway.scribe.marks import unmarked
from gateway.scribe.pin_patterns import OWN
from gateway.scribe.shortening import both_ends

# Longest value, and most of a message that is read: facts stand in what people type, before and behind what they paste.
_VALUE_CHARS: Final = 120
_READ_CHARS: Final = 4_000
_MOST_VALUES: Final = 4
# Tags that are remembered of one conversation; `keep_pins` of them are shown.
_MOST_TAGS: Final = 64
_MOST_REPLACED: Final = 256

# Said to last: the sentence itself is the pin.
_LASTING: Final = late(
    r"(?i)\b(?:remember|keep in mind|bear in mind|don'?t forget|from now on|from here on|for the rest of|always|never|"
    r"as a rule|note that|important:|throughout|in all (?:answers|replies)|until i say)\b"
    r"|记住|请记得|别忘|牢记|从现在起|从今以后|以后都|以后请|始终|永远|一直用|务必|不要再|注意[:：]"
)
# "the project code is BLUE-7": what is said of it by name.
_SAID_OF: Final = late(
    r"(?i)\b(?:my|our|the|his|her|their|your)\s+((?:[\w'-]+\s+){0,4}?[\w'-]+)\s+"
    r"(?:is now|are now|is|are|was changed to|has changed to|changed to|changes to|becomes|=|:|should be|shall be|will be)\s+"
    r"(?:now\s+)?((?:[^\n.!?;]|[.](?=\S)){1,120})"
)
_SAID_OF_HAN: Final = late(
    r"(?:我的|我们的|本次|这次|该)([\w]{1,12}?)(?:改为|改成|变为|换成|是|为|：|:)([^\n。！？；，,]{1,60})"
)
_CHANGED: Final = late(
    r"(?i)\b(?:change|set|switch|update|correct)\s+(?:my|our|the)\s+((?:[\w'-]+\s+){0,4}?[\w'-]+)\s+(?:from\s+.{1,60}?\s+)?to\s+"
    r"((?:[^\n.!?;]|[.](?=\S)){1,120})"
)
_TAGGED: Final = late(r"#([\w][\w -]{0,31}?)\s*[:=：]\s*([^\n#;；]{1,120})")
_SENTENCE: Final = late(r"[^\n.!?;。！？；]+(?:\.(?=\w)[^\n.!?;。！？；]+)*")
_WORD: Final = late(r"\w+")
_ARTICLES: Final = frozenset({"the", "a", "an", "new", "current", "actual", "correct", "my", "our", "now"})
# Names of nothing in particular.
_VAGUE: Final = frozenset(
    "it this that there what which who he she they we you question answer problem point thing same one rest result".split()
)
_LASTING_PRIORITY: Final = 3
_SAID_PRIORITY: Final = 1
# How tags of sentences begin that are said to last.
LASTING: Final = "said: "
_QUESTION: Final = ("?", "？")
_COMPARES: Final = late(
    r"(?i)\b(?:compare[ds]?|comparing|comparison|versus|vs|than|as opposed to|unlike|relative to)\b|相比|对比|比较|同比|环比|相较"
)
# A yes, and nothing else of weight.
_YES_CHARS: Final = 60
_YES: Final = late(
    r"(?i)^\W*(?:yes|yep|yeah|yup|correct|right|exactly|that'?s (?:it|right|correct|the one)|confirmed|i confirm|sure|ok(?:ay)?|"
    r"对|是的?|没错|正确|确认|好的?|嗯)(?=\W|$|的|了|，|。)"
)
_NO: Final = late(r"(?i)\b(?:no|not|but|wrong|instead)\b|不|但|错")


class Pin(msgspec.Struct, frozen=True):
    """A fact.

    Attributes:
        tag: what it is called.
        value: as it was said.
        priority: what is shown first, where there is not room for all.
        at: the position of the message it was said in.
        asked: whether it was only asked about, or compared with.
        later: what was asked about since, and holds beside it.
    """

    tag: str
    value: str
    priority: int
    at: int
    asked: bool = False
    later: str = ""

    @property
    def told(self) -> str:
        """As it is told: what is newest stands last."""
        return f"{self.value} (asked about later: {self.later})" if self.later else self.value


class PinPatterns:
    """What pins are found by.

    Args:
        configured: `context.pins`.
    """

    def __init__(self, configured: Sequence[PinConfig]) -> None:
        self._configured = tuple(configured)
        self._priorities = {pin.tag.casefold(): pin.priority + 10 for pin in configured}

    @cached_property
    def _rules(self) -> tuple[list[tuple[str, Any, int]], Any]:
        """Tags, patterns and ranks, and all patterns in one: which are worth a look takes one pass over a text.

        Compiled when there is a text to read: most conversations are short, and nobody asks what is pinned in them.
        """
        own = [(pin.tag, pin.pattern, pin.priority + 10) for pin in self._configured if pin.pattern is not None]
        named = {tag for tag, _, _ in own}
        texts = [*own, *(rule for rule in OWN if rule[0] not in named)]
        options = re2.Options()
        options.log_errors = False
        every = re2.Set.SearchSet(options)
        for _, text, _ in texts:
            every.Add(text)
        if texts:
            every.Compile()
        return [(tag, re2.compile(text, options), rank) for tag, text, rank in texts], every

    def found_in(self, text: str, at: int) -> list[Pin]:
        """The pins in what a user said; at most one of a tag, which may hold several values."""
        # Half a surrogate pair is nothing that engine reads.
        text = both_ends(text, _READ_CHARS).encode("utf-8", "replace").decode()
        found: dict[str, Pin] = {}
        asides = _asides(text)
        rules, every = self._rules
        for number in sorted(every.Match(text) or ()) if rules else ():
            tag, pattern, priority = rules[number]
            values: dict[str, bool] = {}
            for match in pattern.finditer(text):
                value = _clean(match.group(1) if pattern.groups else match.group())
                if value:
                    asked = any(start <= match.start() < end for start, end in asides)
                    values[value] = values.get(value, True) and asked
                if len(values) == _MOST_VALUES:
                    break
            stated = [value for value, asked in values.items() if not asked]
            if values and (tag not in found or (found[tag].asked and stated)):
                found[tag] = Pin(tag, ", ".join(stated or values), priority, at, asked=not stated)
        for match in _TAGGED.finditer(text):
            tag = match[1].strip()
            found[tag] = Pin(tag, _clean(match[2]), self._priorities.get(tag.casefold(), 9), at)
        for pin in said_in(text, at):
            found.setdefault(pin.tag, pin)
        return list(found.values())


class Pins:
    """The pins of one conversation, the newest of each tag.

    Args:
        patterns: what they are found by.
    """

    __slots__ = ("_by_tag", "_patterns", "replaced")

    def __init__(self, patterns: PinPatterns) -> None:
        self._patterns = patterns
        self._by_tag: dict[str, Pin] = {}
        # Values that no longer hold, by the message they were said in.
        self.replaced: dict[int, list[str]] = {}

    def read(self, text: str, at: int) -> None:
        """Read what a user said in the message at this position."""
        for pin in self._patterns.found_in(text, at):
            older = self._by_tag.pop(pin.tag, None)  # the newest stands last
            if older is not None and pin.asked:
                # Whoever compares with last month still wants last week.
                same = pin.value == older.value
                self._by_tag[pin.tag] = older if same else msgspec.structs.replace(older, later=pin.value)
                continue
            if older is not None and older.value != pin.value:
                self.replaced.setdefault(older.at, []).append(older.value)
            self._by_tag[pin.tag] = pin
        while len(self.replaced) > _MOST_REPLACED:
            del self.replaced[next(iter(self.replaced))]
        while len(self._by_tag) > _MOST_TAGS:
            del self._by_tag[min(self._by_tag, key=lambda tag: (self._by_tag[tag].priority, self._by_tag[tag].at))]

    def confirmed(self, text: str, asked: str, at: int) -> None:
        """Read what was asked, where the user says yes to it in the message at this position."""
        if (
            len(text) <= _YES_CHARS
            and asked.rstrip().endswith(_QUESTION)
            and _YES.search(text)
            and not _NO.search(text)
        ):
            self.read(asked, at)

    def kept(self, most: int, before: int) -> tuple[Pin, ...]:
        """The `most` that matter most, of those said before the message at this position, in the order they were said."""
        said = [pin for pin in self._by_tag.values() if pin.at < before]
        said.sort(key=lambda pin: (-pin.priority, -pin.at, pin.tag))
        return tuple(sorted(said[:most], key=lambda pin: (pin.at, pin.tag)))


def _asides(text: str) -> list[tuple[int, int]]:
    """Where a text only asks or compares."""
    if not any(mark in text for mark in _QUESTION) and _COMPARES.search(text) is None:
        return []
    return [
        (match.start(), match.end())
        for match in _SENTENCE.finditer(text)
        if text[match.end() : match.end() + 1] in _QUESTION or _COMPARES.search(match.group()) is not None
    ]


def said_in(text: str, at: int) -> Iterable[Pin]:
    """What is said of something by name, and what is said to last."""
    for match in _SENTENCE.finditer(text):
        sentence = match.group().strip()
        asks = text[match.end() : match.end() + 1] in _QUESTION
        named = None
        if not asks:
            named = _CHANGED.search(sentence) or _SAID_OF.search(sentence) or _SAID_OF_HAN.search(sentence)
        lasting = _LASTING.search(sentence) is not None
        if named is not None and (tag := _tag(named[1])):
            yield Pin(tag, _clean(named[2]), _LASTING_PRIORITY if lasting else _SAID_PRIORITY, at)
        elif lasting and not asks:
            words = _WORD.findall(_LASTING.sub(" ", sentence).casefold())[:4]
            if words:
                yield Pin(f"{LASTING}{' '.join(words)}"[:48], _clean(sentence), _LASTING_PRIORITY, at)


def _tag(words: str) -> str | None:
    left = [word for word in words.casefold().split() if word not in _ARTICLES]
    if not left or left[-1] in _VAGUE or left[0] in _VAGUE:
        return None
    return " ".join(left)[:48]


def _clean(value: str) -> str:
    """One line, no longer than a value may be; brackets of the notes' own cannot stand in it."""
    value = " ".join(value.split()).strip(" ,，:：\"'“”")
    value = unmarked(value)
    return value if len(value) <= _VALUE_CHARS else f"{value[:_VALUE_CHARS].rstrip()}…"
