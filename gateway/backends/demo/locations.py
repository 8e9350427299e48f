"""Finds places, and the names of cities, currencies and languages that are known by heart.

Pure. A place that nobody listed is read from its place in the sentence: "in Ulm", "Ulm weather", "乌尔姆的天气".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gateway.backends.demo.lexicon import STOP_WORDS
from gateway.backends.demo.places import CURRENCIES, LANGUAGES, TIME_ZONES
from gateway.backends.demo.value import Value
from gateway.backends.demo.words import HAN, concepts, stem

_CAPITALISED: Final = r"[A-ZÀ-Þ][\wÀ-ÿ'’.-]*[\wÀ-ÿ](?:\s+(?:[A-ZÀ-Þ][\wÀ-ÿ'’-]*|de|la|del|do)(?=\s|\W|$))*"
_PREPOSED: Final = re.compile(
    rf"\b(?:[Ii]n|[Aa]t|[Ff]or|[Oo]f|[Nn]ear|[Aa]round|[Ff]rom|[Tt]o)\s+(?:the\s+city\s+of\s+)?({_CAPITALISED}(?:(?:\s*,\s*(?:and\s+|or\s+)?|\s+and\s+|\s+or\s+|\s*&\s*){_CAPITALISED})*)"
)
_LOWER: Final = re.compile(
    r"\b(?:in|at|for|near|from|to)\s+(?:the\s+city\s+of\s+)?([a-zà-ÿ'-]+(?:\s+[a-zà-ÿ'-]+){0,2})"
)
_LIST: Final = re.compile(r"\s*,\s*(?:and\s+|or\s+)?|\s+and\s+|\s+or\s+|\s*&\s*")
_ZH_NOISE: Final = "请问|请|帮我|帮忙|麻烦|查一下|查查|查询|查|看一下|看看|看|告诉我|我想知道|想知道|知道|我想|我要|一下|今天|明天|后天|昨天|现在|目前|当前|此刻|这会儿|在|那么|那|呢|的|是|你|我|问"
_ZH_PLACE: Final = re.compile(
    rf"([{HAN}A-Za-z 、,]{{1,40}}?)(?:的|今天|明天|后天|昨天|现在|目前|当前|此刻|本周|周末|这周|未来|\s)*(?:天气|气温|温度|几点|时间|会不会下|下雨|下雪|热不热|冷不冷|空气|多少度|几度|湿度|预报|市的)"
)
_NOT_PLACES: Final = STOP_WORDS | frozenset(
    "today tomorrow yesterday now monday tuesday wednesday thursday friday saturday sunday january february march april june july "
    "august september october november december celsius fahrenheit kelvin general total order status weather time date morning "
    "afternoon evening night noon moment week weekend month year day days hours minutes short detail case fact right next last english chinese french "
    "german spanish japanese what where when who why how is are the please tell show find search look check get give calculate compute "
    "convert translate read list open fetch can could would i".split()
)  # fmt: skip
_ABOUT: Final = frozenset(
    {"weather", "time", "order", "price", "status", "calculate", "date", "search", "note", "file"}
)
_NAME: Final = re.compile(rf"(?<![\w.]){_CAPITALISED}")


def find_known(text: str) -> Iterator[Value]:
    """Cities (as a place and as a time zone), currencies and languages from the tables."""
    for name, start, end in _named(text, TIME_ZONES):
        source = text[start:end]
        yield Value("timezone", TIME_ZONES[name], source, start, end)
        if name not in {"utc", "gmt"}:
            yield Value("place", source.title() if source.islower() else source, source, start, end)
    for name, start, end in _named(text, CURRENCIES):
        yield Value("currency", CURRENCIES[name], text[start:end], start, end)
    for name, start, end in _named(text, LANGUAGES):
        yield Value("language", LANGUAGES[name][0], text[start:end], start, end)


def find_places(text: str) -> Iterator[Value]:
    """Places that no table has."""
    covered = [(start, end) for _, start, end in _named(text, TIME_ZONES)]
    for name, start in (*_after_preposition(text), *_in_lower_case(text), *_in_chinese(text), *_before_topic(text)):
        end = start + len(name)
        if name.strip() and all(end <= left or start >= right for left, right in covered):
            yield Value("place", name, name, start, end)


def _named(text: str, table: Mapping[str, object]) -> Iterator[tuple[str, int, int]]:
    """Names of a table that stand in the text as whole words, with where."""
    lowered = text.lower()
    if len(lowered) != len(text):
        # A few letters grow when they lose their case; positions would be wrong then.
        lowered = text
    for name in table:
        start = lowered.find(name)
        end = start + len(name)
        if start < 0:
            continue
        inside_word = lowered[max(0, start - 1) : start].isalnum() or lowered[end : end + 1].isalnum()
        if not (name.isascii() and inside_word):
            yield name, start, end


def _after_preposition(text: str) -> Iterator[tuple[str, int]]:
    for match in _PREPOSED.finditer(text):
        position = match.start(1)
        for part in _LIST.split(match.group(1)):
            start = text.index(part, position)
            position = start + len(part)
            name = part.removesuffix("'s")
            # "San Francisco, CA" is one place; "to EUR" is none.
            other = name.lower() in _NOT_PLACES or name.lower() in CURRENCIES or re.fullmatch("[A-Z]{2}", name)
            if not other:
                yield name, start


def _in_lower_case(text: str) -> Iterator[tuple[str, int]]:
    for match in _LOWER.finditer(text):
        words: list[str] = []
        for word in match.group(1).split():
            if word in _NOT_PLACES or stem(word) in STOP_WORDS or concepts(word) & _ABOUT:
                break
            words.append(word)
        yield " ".join(words), match.start(1)


def _in_chinese(text: str) -> Iterator[tuple[str, int]]:
    for match in _ZH_PLACE.finditer(text):
        position = match.start(1)
        for part in re.split(r"[、, ]+|和|与|跟|以及|还有", match.group(1)):
            start = text.index(part, position)
            position = start + len(part)
            name = re.sub(f"^(?:{_ZH_NOISE})+|(?:{_ZH_NOISE})+$", "", part)
            if re.fullmatch(f"[{HAN}]{{2,8}}", name) and not concepts(name) & _ABOUT:
                yield name, text.index(name, start)


def _before_topic(text: str) -> Iterator[tuple[str, int]]:
    """A name before what is asked about it: "Ulm weather"."""
    for match in _NAME.finditer(text):
        name = match.group().removesuffix("'s").removesuffix("’s")
        follows = text[match.end() : match.end() + 16].lstrip(" '’s").lower()
        known_word = {word.lower() for word in name.split()} & _NOT_PLACES
        if follows.startswith(("weather", "forecast", "temperature", "time")) and not known_word:
            yield name, match.start()
