"""What is private in one turn: the values that were found, and what stands for them.

Knows texts alone. A value that was found anywhere is replaced everywhere, also where the words around it would not have given it
away. Which parts of a request are texts is `messages.py`'s.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, Protocol

from ahocorasick_rs import AhoCorasick, Implementation, MatchKind

from gateway.security.masking.found import Found, apart, blanked
from gateway.security.masking.placeholders import COPIED, LOOKALIKE, OPENING, PLACEHOLDER, Mint, name_of
from gateway.security.masking.plain import encodable

Mode = Literal["none", "mask", "block"]

# A value shorter than this is no word that could be looked for in other texts; where it was found it is replaced all the same.
_SHORTEST: Final = 4
_SHORTEST_WIDE: Final = 2
# Longer ones cannot stand by chance within something else.
_LONG: Final = 8
# What the library would take for a few words needs time by the square of their lengths.
_AUTOMATON: Final = Implementation.ContiguousNFA
_WORD_ENDS: Final = re.compile(r"[A-Za-z0-9_]")
_MOST_REMEMBERED: Final = 4096


class Detects(Protocol):
    """Finds private values."""

    def suspects(self, encoded: bytes) -> bool:
        """Whether something may be found in a JSON text; False is certain."""
        ...

    def find(self, text: str) -> list[Found]:
        """What is private in a text, in order, never overlapping."""
        ...


class Masking:
    """One turn's private values.

    Args:
        detector: finds them; None where only declared fields are private.
        mint: makes the owner's placeholders.
        mode: `block` refuses what a client says that holds any.
        exempt: backends that are asked with the values themselves.
        fields: kinds by names of fields, in lower case, whose whole values are private.
        secrets_of: paths of a tool's parameters and result fields whose values are private, by the tool's name.
        confide: told each value that is private because of the field it stands in, and its kind.

    Attributes:
        values: what each placeholder stands for.
        kinds: how many values of each kind were found.
        declared: the kinds that fields make private, by their names in placeholders.
    """

    def __init__(
        self,
        detector: Detects | None,
        mint: Mint,
        *,
        mode: Mode = "mask",
        exempt: Collection[str] = (),
        fields: Mapping[str, str] | None = None,
        secrets_of: Callable[[str], Collection[str]] | None = None,
        confide: Callable[[str, str], None] | None = None,
    ) -> None:
        self.detector = detector
        self.mode = mode
        self.fields = fields or {}
        self.secrets_of = secrets_of
        self.values: dict[str, str] = {}
        self.kinds: Counter[str] = Counter()
        kinds = {*self.fields.values(), *(("private",) if secrets_of is not None else ())}
        self.declared = {name_of(kind): kind for kind in kinds}
        self._confide = confide
        self._exempt = frozenset(exempt)
        self._mint = mint
        self._minted: dict[str, str] = {}
        self._known: dict[str, str] = {}
        # Both at once: a trace is written in a thread, while a summary may still be asked for.
        self._finder: tuple[AhoCorasick, list[str]] | None = None
        self._found: dict[str, list[Found]] = {}
        self._noted: set[str] = set()

    @contextmanager
    def noting(self) -> Iterator[set[str]]:
        """The kinds of what is replaced meanwhile."""
        self._noted = set()
        yield self._noted
        self._noted = set()

    def exempts(self, backend: str) -> bool:
        """Whether this backend sees values as they are."""
        return backend in self._exempt

    @property
    def known(self) -> int:
        """How many values were found; it only grows."""
        return len(self._known)

    def learn(self, text: str, label: str = "") -> list[Found]:
        """What is private in a text, from now on known wherever it stands. `label` is the name of the field it stands in."""
        found = self._find(text, label)
        for each in found:
            self.know(text[each.start : each.end], each.kind)
        return found

    def know(self, value: str, kind: str) -> None:
        """A value is private, whatever it looks like."""
        value = encodable(value)
        if value and value not in self._known:
            self._known[value] = kind
            self._finder = None
            self.kinds[kind] += 1

    def know_field(self, value: str, kind: str) -> None:
        """A value is private because of the field it stands in: no detector would know it again."""
        if value not in self._known:
            self.know(value, kind)
            if self._confide is not None and _is_word(value):
                self._confide(value, kind)

    def masked(self, text: str, label: str = "", *, escape: bool = True) -> str:
        """The text with placeholders for what is private. With `escape`, what looks like one gets one of its own, so that
        `unmasked` gives the text back as it was.
        """
        spans: list[Found] = []
        if escape and OPENING[0] in text:
            spans = [Found(match.start(), match.end(), LOOKALIKE) for match in COPIED.finditer(text)]
        spans += self._find(text, label)
        spans += self._seen_before(text)
        if not spans:
            return text
        spans = apart(spans)
        while len(more := apart([*spans, *self._left(blanked(text, spans))])) > len(spans):
            spans = more
        out: list[str] = []
        place = 0
        for start, end, kind in spans:
            out += (text[place:start], self.placeholder(text[start:end], kind))
            place = end
        return "".join([*out, text[place:]])

    def placeholder(self, value: str, kind: str) -> str:
        """What stands for a value."""
        self._noted.add(self._known.get(value, kind))
        made = self._minted.get(value)
        attempt = 0
        while made is None:
            candidate = self._mint.placeholder(value, self._known.get(value, kind), attempt)
            # Eleven letters are enough for billions of values; should two of them meet, each is still itself.
            if self.values.setdefault(candidate, value) == value:
                made = self._minted[value] = candidate
            attempt += 1
        return made

    def unmasked(self, text: str) -> str:
        """The text with the values in their places; placeholders that are not this turn's stay."""
        if OPENING not in text:
            return text
        return PLACEHOLDER.sub(lambda match: self.values.get(match.group(), match.group()), text)

    def _find(self, text: str, label: str) -> list[Found]:
        if self.detector is None:
            return []
        if label and text[:1] in _STARTS:
            # A field's name says as much of a number as the words of a sentence do.
            before = f"{_spaced(label)}: "
            found = self.detector.find(before + text)
            shift = len(before)
            return [Found(one.start - shift, one.end - shift, one.kind) for one in found if one.start >= shift]
        found_before = self._found.get(text)
        if found_before is None:
            found_before = self.detector.find(text)
            if len(self._found) < _MOST_REMEMBERED:
                self._found[text] = found_before
        return found_before

    def _left(self, text: str) -> list[Found]:
        """What is private in the rest of a text: values that stood too close to others to be taken for such."""
        if self.detector is None:
            return []
        found = self.detector.find(text)
        for each in found:
            self.know(text[each.start : each.end], each.kind)
        return [*found, *self._seen_before(text)]

    def _seen_before(self, text: str) -> list[Found]:
        if not self._known:
            return []
        finder = self._finder
        if finder is None:
            words = [value for value in [*self._known] if _is_word(value)]
            finder = self._finder = (AhoCorasick(words, MatchKind.LeftmostLongest, implementation=_AUTOMATON), words)
        look, words = finder
        if not words:
            return []
        return [
            Found(start, end, self._known[words[number]])
            for number, start, end in look.find_matches_as_indexes(encodable(text))
            if end - start >= _LONG or _stands_alone(text, start, end)
        ]


_STARTS: Final = frozenset("0123456789+(")


def _is_word(value: str) -> bool:
    return len(value) >= (_SHORTEST if value.isascii() else _SHORTEST_WIDE)


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether what begins or ends with a letter or digit is not a part of a longer word."""
    before, after = text[start - 1 : start], text[end : end + 1]
    return not (_WORD_ENDS.match(text[start]) and _WORD_ENDS.match(before)) and not (
        _WORD_ENDS.match(text[end - 1]) and _WORD_ENDS.match(after)
    )


def _spaced(label: str) -> str:
    """A field's name as words: `orderId`, `order_id`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[_.-]+", " ", label)
