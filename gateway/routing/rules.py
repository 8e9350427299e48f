"""Keyword rules: which routes a text's words speak for.

One Aho-Corasick automaton holds every keyword of every route, so a text is read once however many there are. Knows
normalised text and facts; does not know similarity, and nothing of what happens when no rule matches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec
from ahocorasick_rs import BytesAhoCorasick
from msgspec.structs import replace

from gateway.config.models import RouteConfig, When
from gateway.errors import Problem
from gateway.routing.conditions import allowed, holds, mistakes
from gateway.routing.decision import Match
from gateway.routing.facts import Facts
from gateway.routing.normalise import Positions, normalise
from gateway.routing.patterns import Pattern, PatternInvalid, compile_pattern
from gateway.routing.scripts import bounds_words
from gateway.routing.text import as_sent, both_ends

_ANY, _ALL, _NONE = 0, 1, 2
# What most texts hold; nobody writes into it.
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})
_KINDS: Final[tuple[Literal["keyword", "all_of", "none_of"], ...]] = ("keyword", "all_of", "none_of")


# The ASCII characters that bound words.
_ASCII_WORDS = frozenset(char for char in map(chr, range(128)) if bounds_words(char))


@dataclass(frozen=True, slots=True)
class Rule:
    """What one route asks of a text. `rank` orders rules: the lowest that matches wins."""

    rank: int
    route: str
    model: str
    when: When | None
    when_suffices: bool
    patterns: tuple[tuple[str, Pattern], ...]
    all_of: int


@dataclass(slots=True)
class _Word:
    """One keyword in the automaton: where it needs a word boundary, and which rules use it for what."""

    bound_left: bool
    bound_right: bool
    uses: list[tuple[int, int, int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Use:
    """A keyword of a rule: its rank, the list it stands in, its bit among the rule's `all_of`, and how it is written."""

    rank: int
    kind: Literal["keyword", "all_of", "none_of"]
    bit: int
    keyword: str


class Scan(msgspec.Struct):
    """What one pass over a text found, by the rules' ranks."""

    text: str
    any_of: Mapping[int, str] = _NOTHING
    all_of: Mapping[int, int] = _NOTHING
    barred: AbstractSet[int] = frozenset()


def rule_mistakes(route: RouteConfig) -> list[tuple[tuple[str | int, ...], str]]:
    """What is wrong in a route's rules although its shape is right: each place within the route, and the words for it."""
    found: list[tuple[tuple[str | int, ...], str]] = [(("when",), text) for text in mistakes(route.when)]
    for key, words in (("keywords", route.keywords), ("all_of", route.all_of), ("none_of", route.none_of)):
        found += [((key, index), _blank(word)) for index, word in enumerate(words) if not normalise(word)]
    for index, expression in enumerate(route.patterns):
        try:
            compile_pattern(expression)
        except PatternInvalid as error:
            found.append((("patterns", index), _invalid(expression, error)))
    return found


def _blank(keyword: str) -> str:
    return f"keyword {keyword!r} holds nothing that can be compared"


def _invalid(expression: str, error: PatternInvalid) -> str:
    return f"pattern {expression!r} is not valid RE2: {error}"


class RuleTable:
    """The rules of one version."""

    def __init__(self, routes: Sequence[RouteConfig], files: Mapping[str, str] | None = None) -> None:
        """Build the automaton. `problems` afterwards holds what is wrong; a table with problems must not decide.

        `files` names each route's file, for the problems.
        """
        self.problems: list[Problem] = []
        self._files = files or {}
        self._words: list[_Word] = []
        self._bound_left, self._bound_right = bytearray(), bytearray()
        self._index: dict[str, int] = {}
        ordered = sorted(routes, key=lambda route: (-route.priority, route.route))
        self.rules = [self._rule(rank, route) for rank, route in enumerate(ordered)]
        self.rank = {rule.route: rule.rank for rule in self.rules}
        # These may match without any keyword, so every text has to ask them.
        self._always = [rule.rank for rule in self.rules if rule.patterns or rule.when_suffices]
        words = [word.encode() for word in self._index]
        # Of text, the library would count every character to say where words stand, found or not.
        self._find = BytesAhoCorasick(words).find_matches_as_indexes if words else None

    def _rule(self, rank: int, route: RouteConfig) -> Rule:
        file = self._files.get(route.route, f"routes/{route.route}.yaml")
        self.problems += [Problem(file, 0, text) for text in mistakes(route.when)]
        for keyword in route.keywords:
            self._use(file, keyword, rank, _ANY, 0)
        for bit, keyword in enumerate(route.all_of):
            self._use(file, keyword, rank, _ALL, 1 << bit)
        for keyword in route.none_of:
            self._use(file, keyword, rank, _NONE, 0)
        patterns: list[tuple[str, Pattern]] = []
        for expression in route.patterns:
            try:
                patterns.append((expression, compile_pattern(expression)))
            except PatternInvalid as error:
                self.problems.append(Problem(file, 0, _invalid(expression, error)))
        return Rule(
            rank,
            route.route,
            route.model,
            route.when,
            route.match == "when",
            tuple(patterns),
            (1 << len(route.all_of)) - 1,
        )

    def _use(self, file: str, keyword: str, rank: int, kind: int, bit: int) -> None:
        word = normalise(keyword)
        if not word:
            self.problems.append(Problem(file, 0, _blank(keyword)))
            return
        if word not in self._index:
            self._index[word] = len(self._words)
            self._words.append(_Word(bounds_words(word[0]), bounds_words(word[-1])))
            self._bound_left.append(self._words[-1].bound_left)
            self._bound_right.append(self._words[-1].bound_right)
        self._words[self._index[word]].uses.append((kind, rank, bit, keyword))

    def scan(self, text: str) -> Scan:
        """Read a normalised text once."""
        if self._find is None:
            return Scan(text)
        encoded = text.encode()
        found = self._find(encoded, True)
        if not found:
            return Scan(text)
        any_of: dict[int, str] = {}
        all_of: dict[int, int] = {}
        barred: set[int] = set()
        if len(encoded) != len(text):
            found = _in_characters(found, encoded)
        bound_left, bound_right, size = self._bound_left, self._bound_right, len(text)
        for number, start, end in found:
            # Most of what is found in a long text is the inside of a longer word. It is told without a call, and without
            # the keyword's own record: one of a hundred thousand is never in the processor's cache.
            if start and bound_left[number] and text[start - 1] in _ASCII_WORDS:
                continue
            if end < size and bound_right[number] and text[end] in _ASCII_WORDS:
                continue
            word = self._words[number]
            if not _stands_alone(word, text, start, end):
                continue
            for kind, rank, bit, keyword in word.uses:
                if kind == _ANY:
                    any_of.setdefault(rank, keyword)
                elif kind == _ALL:
                    all_of[rank] = all_of.get(rank, 0) | bit
                else:
                    barred.add(rank)
        return Scan(text, any_of, all_of, barred)

    def within(self, text: str) -> list[Use]:
        """Every keyword that stands in a normalised text, those of one spelling in the order of ranks."""
        uses = []
        for number, start, end in self._found_in(text):
            word = self._words[number]
            if _stands_alone(word, text, start, end):
                uses += [Use(rank, _KINDS[kind], bit, keyword) for kind, rank, bit, keyword in word.uses]
        return uses

    def winner(self, scan: Scan, facts: Facts) -> tuple[Rule, str] | None:
        """The first rule in order that matches, and a sentence saying by what."""
        if not scan.any_of and not self._always:
            return None
        for rank in self.asked(scan):
            rule = self.rules[rank]
            if (why := self.why(rule, scan, facts)) is not None:
                return rule, why
        return None

    def asked(self, scan: Scan) -> list[int]:
        """The rules that may match, in order."""
        return sorted({*scan.any_of, *self._always}) if self._always else sorted(scan.any_of)

    def matches(self, rule: Rule, scan: Scan, facts: Facts) -> bool:
        """Whether this rule on its own matches."""
        return self.why(rule, scan, facts) is not None

    def bars(self, rule: Rule, scan: Scan, facts: Facts) -> bool:
        """Whether the route is no candidate for this text at all, by rule or by meaning."""
        return (
            rule.rank in scan.barred
            or not allowed(rule.route, rule.model, facts)
            or not holds(rule.when, facts, scan.text)
        )

    def why(self, rule: Rule, scan: Scan, facts: Facts) -> str | None:
        """By what this rule on its own matches; None where it does not."""
        if rule.all_of and scan.all_of.get(rule.rank, 0) != rule.all_of:
            return None
        if self.bars(rule, scan, facts):
            return None
        if (keyword := scan.any_of.get(rule.rank)) is not None:
            return f"keyword {keyword!r}"
        for expression, pattern in rule.patterns:
            if pattern.search(scan.text) is not None:
                return f"pattern {expression!r}"
        return "its conditions hold" if rule.when_suffices else None

    def found(self, scan: Scan, original: str) -> dict[int, list[Match]]:
        """Every keyword and pattern found, by rank, with positions in the text as it was sent. Not for the hot path."""
        positions = Positions(both_ends(original))
        matches: dict[int, list[Match]] = {}
        for number, start, end in self._found_in(scan.text):
            word = self._words[number]
            if _stands_alone(word, scan.text, start, end):
                for kind, rank, _, keyword in word.uses:
                    span = positions.span(start, end)
                    matches.setdefault(rank, []).append(Match(_KINDS[kind], keyword, *span))
        for rank, match in self._found_patterns(scan.text, positions):
            matches.setdefault(rank, []).append(match)
        size = len(original)
        return {
            rank: [replace(m, start=as_sent(m.start, size), end=as_sent(m.end, size)) for m in found]
            for rank, found in matches.items()
        }

    def _found_in(self, text: str) -> list[tuple[int, int, int]]:
        """Each keyword's number and where it stands, within longer words too."""
        encoded = text.encode()
        return _in_characters(self._find(encoded, True), encoded) if self._find else []

    def _found_patterns(self, text: str, positions: Positions) -> Iterator[tuple[int, Match]]:
        for rule in self.rules:
            for expression, pattern in rule.patterns:
                if (found := pattern.search(text)) is not None:
                    yield rule.rank, Match("pattern", expression, *positions.span(found.start(), found.end()))


def _in_characters(found: list[tuple[int, int, int]], encoded: bytes) -> list[tuple[int, int, int]]:
    """Places in UTF-8 as places in the text; they come by their ends."""
    placed: list[tuple[int, int, int]] = []
    read = size = 0
    for number, start, end in found:
        size += len(encoded[read:end].decode())
        placed.append((number, size - len(encoded[start:end].decode()), size))
        read = end
    return placed


def _stands_alone(word: _Word, text: str, start: int, end: int) -> bool:
    """Whether no letter of the same kind of script touches the keyword: `c` is not in `cat`, `订单` is in `我的订单号`."""
    if word.bound_left and start > 0 and bounds_words(text[start - 1]):
        return False
    if not word.bound_right or end == len(text):
        return True
    return not bounds_words(text[end]) and not (text[end] in "+#" and _is_signed(text, end))


def _is_signed(text: str, end: int) -> bool:
    """Whether a single letter and the signs behind it are one name: C# and C++ are not C. A whole word with a `#` is its number."""
    alone = end < 2 or not bounds_words(text[end - 2])
    return alone and (text[end] == "#" or text.startswith("++", end))
