"""Arithmetic in words: finds it in a sentence and writes it with signs.

Pure. Knows numbers, percentages and the words for the four operations and powers, in English and Chinese; does not
compute. Roots and logarithms are not read: a sentence that asks for one yields nothing instead of a wrong expression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gateway.backends.demo.arithmetic import Token, tokenise


@dataclass(frozen=True, slots=True)
class Expression:
    """`value` is what a calculator takes; `source` is how the text put it, from `start` to `end`."""

    value: str
    source: str
    start: int
    end: int


_UNREADABLE: Final = re.compile(
    r"square root|cube root|\broot of\b|\bsqrt|\blog(?:arithm)?\b|\bsine?\b|\bcosine?\b|factorial|平方根|立方根|开方|根号|阶乘",
    re.IGNORECASE,
)
# A sign without blanks may be a range, a fraction or a phone number: it counts where somebody asks for a value.
_CUE: Final = re.compile(
    r"what(?:'s| is| are)|how much|calculat|comput|evaluat|work out|equal|=|result|sum|多少|几|等于|算|结果",
    re.IGNORECASE,
)
_TIGHT: Final = re.compile(r"^\d+(?:\.\d+)?[-/–]\d+(?:\.\d+)?$")


# Brackets inside brackets: nobody who asks in words goes deeper.
_DEEPEST: Final = 12
_LONGEST_LIST: Final = 40


class _NoMatch(Exception):
    pass


class _Parser:
    """Reads one expression from a position; raises `_NoMatch` where there is none."""

    def __init__(self, tokens: list[Token], position: int) -> None:
        self.tokens = tokens
        self.position = self.start = position
        self.operators = 0
        self.depth = 0

    def _kind(self, ahead: int = 0) -> str:
        index = self.position + ahead
        return self.tokens[index].kind if index < len(self.tokens) else "end"

    def _take(self, *kinds: str) -> Token:
        if self._kind() not in kinds:
            raise _NoMatch
        token = self.tokens[self.position]
        self.position += 1
        return token

    def _skip(self, *kinds: str) -> bool:
        if self._kind() in kinds:
            self.position += 1
            return True
        return False

    def sum(self) -> str:
        """Terms joined by plus and minus; `X + P%` means P percent of X more."""
        left = self.term()
        while self._kind() in ("plus", "minus"):
            mark = self.position
            sign = "+" if self._take("plus", "minus").kind == "plus" else "-"
            try:
                percent = self._bare_percent()
                left = f"{_group(left)}*(1{sign}{percent}/100)" if percent is not None else f"{left}{sign}{self.term()}"
            except _NoMatch:
                self.position = mark
                break
            self.operators += 1
        return left

    def _bare_percent(self) -> str | None:
        if self._kind() == "num" and self._kind(1) == "pct" and self._kind(2) not in ("of", "off", "tip", "from"):
            number = self._number()
            self._take("pct")
            return number
        return None

    def term(self) -> str:
        """Factors joined by times and over."""
        left = self.factor()
        while self._kind() in ("times", "over") or (self._kind() == "of" and re.fullmatch(r"\d+/\d+", left)):
            mark = self.position
            sign = "/" if self._take("times", "over", "of").kind == "over" else "*"
            try:
                right = self.factor()
                left = f"{left}{sign}{_group(right) if sign == '/' else right}"
            except _NoMatch:
                self.position = mark
                break
            self.operators += 1
        return left

    def factor(self) -> str:
        """A number, a bracket or one of the forms with words, and powers of them."""
        base = self.primary()
        while True:
            if self._skip("squared"):
                base = f"{_group(base)}**2"
            elif self._skip("cubed"):
                base = f"{_group(base)}**3"
            elif self._kind() == "power" and self._kind(1) in ("num", "open", "minus"):
                self._take("power")
                base = f"{_group(base)}**{self.primary()}"
            elif self._kind() == "de" and self._kind(1) == "num" and self._kind(2) == "powerend":
                self._take("de")
                base = f"{_group(base)}**{self._number()}"
                self._take("powerend")
            elif self._kind() == "de" and self._kind(1) == "num" and self._kind(2) == "pct":
                self._take("de")
                base = f"{self._number()}/100*{_group(base)}"
                self._take("pct")
            elif self._kind() == "de" and self._kind(1) == "pctof" and self._kind(2) == "num":
                self.position += 2
                base = f"{self._number()}/100*{_group(base)}"
            else:
                return base
            self.operators += 1

    def primary(self) -> str:
        """What binds tightest."""
        kind = self._kind()
        if kind == "open":
            self._take("open")
            self.depth += 1
            if self.depth > _DEEPEST:
                raise _NoMatch
            inner = self.sum()
            self._take("close")
            self.depth -= 1
            return f"({inner})"
        if kind == "minus" and self._kind(1) in ("num", "open") and self.tokens[self.position].text in "-−–":
            first = self.position == self.start
            self._take("minus")
            return f"-{self.primary()}" if first else f"(-{self.primary()})"
        if kind in _AGGREGATES:
            self._take(kind)
            return self._aggregate(kind)
        if kind in ("subtract", "multiply", "divide"):
            return self._verb(self._take(kind).kind)
        if kind in ("halfof", "doubleof", "squareof"):
            self._take(kind)
            value = self.primary()
            self.operators += 1
            return {"halfof": f"{value}/2", "doubleof": f"2*{value}", "squareof": f"{_group(value)}**2"}[kind]
        if kind == "num":
            return self._number_form()
        raise _NoMatch

    def _number_form(self) -> str:
        listed = self._chinese_list()
        if listed is not None:
            return listed
        number = self._number()
        if not self._skip("pct"):
            return number
        self.operators += 1
        if self._skip("off"):
            self._skip("of")
            return f"{self.primary()}*(1-{number}/100)"
        mark = self.position
        if self._skip("tip"):
            pass
        if self._skip("of", "from"):
            return f"{number}/100*{self.primary()}"
        self.position = mark
        return f"({number}/100)"

    def _chinese_list(self) -> str | None:
        mark = self.position
        try:
            items = self._list()
            ends = {"sumend": "sumof", "productend": "productof", "differenceend": "differenceof"}
            end = {**ends, "averageend": "averageof"}.get(self._kind())
            if end is None or len(items) < 2:
                raise _NoMatch
            self.position += 1
            self.operators += 1
            return _joined(end, items)
        except _NoMatch:
            self.position = mark
            return None

    def _list(self) -> list[str]:
        items = [self._signed()]
        while self._kind() == "and" and len(items) < _LONGEST_LIST:
            mark = self.position
            while self._skip("and"):
                pass
            if self._kind() != "num":
                self.position = mark
                break
            items.append(self._signed())
        return items

    def _signed(self) -> str:
        negative = self._kind() == "minus" and self._kind(1) == "num"
        if negative:
            self._take("minus")
        number = self._number()
        return f"(-{number})" if negative else number

    def _aggregate(self, kind: str) -> str:
        items = self._list()
        if kind == "sumof" and len(items) == 1 and self._skip("by"):
            items.append(self._number())
        if len(items) < 2:
            raise _NoMatch
        self.operators += 1
        return _joined(kind, items)

    def _verb(self, verb: str) -> str:
        first = self._number()
        if verb == "subtract":
            self._take("from")
            return self._counted(f"({self._number()}-{first})")
        self._take("by", "and")
        return self._counted(f"({first}{'*' if verb == 'multiply' else '/'}{self._number()})")

    def _counted(self, text: str) -> str:
        self.operators += 1
        return text

    def _number(self) -> str:
        text = self._take("num").text.replace(",", "")
        if text.startswith("."):
            text = "0" + text
        if self._kind() == "wan":
            return f"({text}*{'10000' if self._take('wan').text == '万' else '100000000'})"
        return text


_AGGREGATES: Final = frozenset({"sumof", "productof", "averageof", "differenceof"})


def _group(text: str) -> str:
    return text if re.fullmatch(r"[\d.]+|\([^()]*\)", text) else f"({text})"


def _joined(kind: str, items: list[str]) -> str:
    sign = {"sumof": "+", "productof": "*", "differenceof": "-", "averageof": "+"}[kind]
    inner = f"({sign.join(items)})"
    return f"{inner}/{len(items)}" if kind == "averageof" else inner


def _bare(value: str) -> str:
    """Without one pair of brackets that holds everything."""
    if not (value.startswith("(") and value.endswith(")")):
        return value
    depth = 0
    for index, char in enumerate(value):
        depth += (char == "(") - (char == ")")
        if depth == 0 and index < len(value) - 1:
            return value
    return value[1:-1]


def find_expressions(text: str, taken: tuple[tuple[int, int], ...] = ()) -> list[Expression]:
    """Every expression in a normalised text, in order. What lies in the `taken` spans (dates, ids, URLs) is not read."""
    if _UNREADABLE.search(text):
        return []
    masked = list(text)
    for start, end in taken:
        masked[start:end] = "\x00" * (end - start)
    tokens = tokenise("".join(masked).replace("\n", ";"))
    found: list[Expression] = []
    position = 0
    while position < len(tokens):
        parser = _Parser(tokens, position)
        try:
            value = parser.sum()
        except _NoMatch:
            position += 1
            continue
        if parser.operators == 0:
            position = max(parser.position, position + 1)
            continue
        start, end = tokens[position].start, tokens[parser.position - 1].end
        source = text[start:end].strip()
        if _is_meant(text, source):
            found.append(Expression(_bare(value), source, start, end))
        position = parser.position
    return found


def _is_meant(text: str, source: str) -> bool:
    if source == "24/7":
        return False
    if _TIGHT.match(source):
        return text.strip(" ?=.!") == source or _CUE.search(text) is not None
    return re.fullmatch(r"[\d.,]+\s*(?:%|percent|per cent)", source, re.IGNORECASE) is None
