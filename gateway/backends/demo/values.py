"""Finds typed values in a text: URLs, addresses, ids, dates, files, numbers, places, quoted words.

Pure. Says what stands where; does not know which tool could use it (`arguments.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gateway.backends.demo.expressions import find_expressions
from gateway.backends.demo.locations import find_known, find_places
from gateway.backends.demo.value import Kind, Value
from gateway.backends.demo.words import HAN

_URL: Final = re.compile(rf"https?://[^\s<>\"'“”‘’{HAN}，。；！？]+", re.IGNORECASE)
_BARE_URL: Final = re.compile(
    r"(?<![\w@./-])(?:www\.[a-z0-9-]+(?:\.[a-z0-9-]+)+|(?:[a-z0-9-]+\.)+(?:com|org|net|io|dev|cn|edu|gov))(?:/[^\s<>\"']*)?(?![\w@])",
    re.IGNORECASE,
)
_EMAIL: Final = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_PATH: Final = re.compile(
    r"(?<![\w@.-])(?:~?/|\.{1,2}/)?(?:[\w-]+/)*[\w-]*[A-Za-z_][\w-]*\.(?=[A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]{1,8}(?![\w@/])|(?<![\w@.:/-])(?:~?/|\./)[\w./-]+|(?<![\w@.:/-])[A-Za-z_][\w-]+/(?:[\w.-]+/?)*",
    re.ASCII,
)
_QUOTED: Final = re.compile(
    r"\"([^\"\n]+)\"|“([^”\n]+)”|「([^」\n]+)」|《([^》\n]+)》|`([^`\n]+)`|(?<!\w)'([^'\n]+)'(?!\w)|‘([^’\n]+)’"
)
_DATE: Final = re.compile(
    r"(?<![\w-])\d{4}-\d{1,2}-\d{1,2}(?![\w-])|(?<![\w/])\d{4}/\d{1,2}/\d{1,2}(?![\w/])|(?<![\w/])\d{1,2}/\d{1,2}/\d{4}(?![\w/])"
    r"|\d{4}\s*年\s*\d{1,2}\s*月(?:\s*\d{1,2}\s*[日号])?|(?<!\d)\d{1,2}\s*月\s*\d{1,2}\s*[日号]"
    r"|\b(?:January|February|March|April|May|June|July|August|September|October|November|December)\s+\d{1,2}(?:st|nd|rd|th)?(?:,?\s+\d{4})?\b"
    r"|\b(?:today|tomorrow|yesterday|day after tomorrow)\b|今天|明天|后天|昨天",
    re.IGNORECASE,
)
_CLOCK: Final = re.compile(r"(?<![\d:])\d{1,2}:\d{2}(?::\d{2})?(?:\s*[ap]m\b)?|\b\d{1,2}\s*[ap]m\b", re.IGNORECASE)
_ID: Final = re.compile(
    r"(?<![A-Za-z0-9_.@/-])[#]?([A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*)(?![A-Za-z0-9_@]|[.-][A-Za-z0-9])", re.ASCII
)
_DIGITS_NAMED: Final = re.compile(
    r"(?:#|\bno\.?\s*|\bnumber\s+|\bid\s+|\border\s+|号\s*|订单\s*|编号[是为:]?\s*)(\d{3,})(?![\d.,%-])", re.IGNORECASE
)
_NUMBER: Final = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?![A-Za-z_]*\d)")
_ZONE: Final = re.compile(
    r"\b(?:Africa|America|Antarctica|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc)/[A-Za-z_+-]+(?:/[A-Za-z_]+)?\d*"
)
_NAMED: Final = re.compile(
    r"\b(?:named|called|titled|name is)\s+([A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)*|\w+)|(?:叫|名为|名叫)\s*([^\s,.;?!的]+)"
)

_SYMBOL: Final = re.compile(r"(?<![\w-])[A-Z]{2,6}(?![\w-])", re.ASCII)
# A text with more than this is a table, not a question.
_MOST_VALUES: Final = 100


def find_values(text: str) -> tuple[Value, ...]:
    """Every value in a normalised text, by position.

    A stretch of text is one value of one kind, except that quoted words and the numbers of an expression are found as well.
    """
    found: list[Value] = []
    taken: list[tuple[int, int]] = []

    def free(start: int, end: int) -> bool:
        return all(end <= left or start >= right for left, right in taken)

    def add(values: Iterator[Value], *, claims: bool = True) -> None:
        for value in values:
            if free(value.start, value.end):
                found.append(value)
                if claims:
                    taken.append((value.start, value.end))

    add(_urls(text))
    add(_plain("email", _EMAIL, text))
    add(_plain("timezone", _ZONE, text))
    add(_paths(text))
    add(_dates(text))
    add(_plain("clock", _CLOCK, text))
    add(_ids(text))
    found += (
        Value("expression", expression.value, expression.source, expression.start, expression.end)
        for expression in find_expressions(text, tuple(taken))
    )
    add(_numbers(text))
    add(_quoted(text), claims=False)
    add(find_known(text), claims=False)
    add(find_places(text), claims=False)
    add(_names(text), claims=False)
    add(_plain("symbol", _SYMBOL, text), claims=False)
    return tuple(sorted(_unique(found), key=lambda value: (value.start, value.end))[:_MOST_VALUES])


def _unique(values: list[Value]) -> Iterator[Value]:
    seen: set[tuple[str, str]] = set()
    for value in values:
        # Numbers may repeat ("3 plus 3"); asking twice for the same id may not.
        key = (value.kind, value.value)
        if value.kind == "number" or key not in seen:
            seen.add(key)
            yield value


def _plain(kind: Kind, pattern: re.Pattern[str], text: str) -> Iterator[Value]:
    for match in pattern.finditer(text):
        yield Value(kind, match.group(), match.group(), match.start(), match.end())


def _urls(text: str) -> Iterator[Value]:
    for match in _URL.finditer(text):
        url = match.group().rstrip(".,;:!?")
        while url.endswith(")") and url.count(")") > url.count("("):
            url = url[:-1].rstrip(".,;:!?")
        yield Value("url", url, url, match.start(), match.start() + len(url))
    for match in _BARE_URL.finditer(text):
        url = match.group().rstrip(".,;:!?)")
        yield Value("url", "https://" + url, url, match.start(), match.start() + len(url))


def _paths(text: str) -> Iterator[Value]:
    for match in _PATH.finditer(text):
        path = match.group().rstrip(".")
        if path.lower() in {"e.g", "i.e", "and/or", "a.m", "p.m"} or not {"/", "."} & set(path.strip("/")):
            continue
        if "." not in path and path.count("/") == 1 and not path.startswith(("/", "~", ".")) and not path.endswith("/"):
            # "yes/no", "km/h": two words and a stroke are no folder.
            continue
        yield Value("path", path, path, match.start(), match.start() + len(path))


def _dates(text: str) -> Iterator[Value]:
    for match in _DATE.finditer(text):
        source = match.group()
        digits = re.findall(r"\d+", source)
        value = source
        if len(digits) == 3:
            year, month, day = (digits[2], digits[0], digits[1]) if len(digits[2]) == 4 else digits
            value = f"{int(year):04d}-{int(month):02d}-{int(day):02d}"
        yield Value("date", value, source, match.start(), match.end())


def _ids(text: str) -> Iterator[Value]:
    for match in _ID.finditer(text):
        token = match.group(1)
        digits, letters = sum(c.isdigit() for c in token), sum(c.isalpha() for c in token)
        if not digits or len(token) < 3:
            continue
        if letters:
            joined = re.search(r"[-_]", token) is not None and (digits >= 2 or token.isupper())
            code = digits >= 2 and len(token) >= 4 and re.match(r"^[A-Za-z]", token) is not None
            hexadecimal = digits >= 2 and len(token) >= 6
            amount = re.fullmatch(r"\d+(?:[.,]\d+)*-?[A-Za-z]{1,9}|\d+(?:x\d+)+", token) is not None
            if amount or not (joined or code or hexadecimal):
                continue
        elif token.count("-") < 2 and not (match.group().startswith("#")):
            continue
        yield Value("id", token, token, match.start(1), match.end(1))
    for match in _DIGITS_NAMED.finditer(text):
        yield Value("id", match.group(1), match.group(1), match.start(1), match.end(1))


def _numbers(text: str) -> Iterator[Value]:
    for match in _NUMBER.finditer(text):
        source = match.group()
        before = text[: match.start()].rstrip()
        if source.startswith("-") and before and (before[-1].isalnum() or before[-1] == ")"):
            source = source[1:]
        yield Value("number", source.replace(",", ""), source, match.end() - len(source), match.end())


def _quoted(text: str) -> Iterator[Value]:
    for match in _QUOTED.finditer(text):
        inner = next(group for group in match.groups() if group)
        yield Value("quoted", inner.strip(), match.group(), match.start(), match.end())


def _names(text: str) -> Iterator[Value]:
    for match in _NAMED.finditer(text):
        group = 1 if match.group(1) else 2
        yield Value("name", match.group(group), match.group(group), match.start(group), match.end(group))
