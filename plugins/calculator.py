"""An exact calculator: fractions inside, no floating point, and nothing that could take long."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NoReturn

from gateway.tools import Tools, tool

MAX_CHARS = 500
MAX_DEPTH = 40
# Some 4,000 decimal digits: Python itself refuses to print longer whole numbers.
MAX_BITS = 13_000
ROUNDED_DIGITS = 28

_TOKEN = re.compile(
    r"\s*(?:(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE]([+-]?\d{1,4}))?|(\*\*|//|of\b|[-+*/%^()]))"
)
_SIGNS = {"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "的": " of ", "，": ","}


def check() -> None:
    """Raise where it miscalculates."""
    if calculator("12.5% of 18,640")["result"] != "2330":
        raise ArithmeticError("12.5% of 18,640 is 2330")


@tool(check=check)
def calculator(expression: str) -> dict[str, Any]:
    """Calculate exactly when the user asks for arithmetic, a sum, a percentage (计算, 算, 百分之, 多少).

    Takes + - * / // % ** ^ and brackets, decimals, thousands separators and "12.5% of 18640". A percent sign before a
    number or bracket is the remainder, everywhere else a percentage. The result is exact; one that never ends is
    rounded to 28 digits and given as a fraction too.

    expression: the arithmetic to do, for example 12.5% of 18640 or (3 + 4) * 2.5
    """
    value = _Reader(expression).whole()
    text, ends = _decimal(value)
    answer: dict[str, Any] = {"expression": expression.strip(), "result": text}
    number = _number(value)
    if number is not None:
        answer["number"] = number
    if not ends:
        answer["fraction"] = f"{value.numerator}/{value.denominator}"
    return answer


def register(registry: Tools) -> None:
    """Add the calculator."""
    registry.add(calculator)


class _Reader:
    """Recursive descent: sums of products of signed powers."""

    def __init__(self, expression: str) -> None:
        if len(expression) > MAX_CHARS:
            raise ValueError(f"the expression is longer than {MAX_CHARS} characters")
        text = "".join(_SIGNS.get(char, unicodedata.normalize("NFKC", char)) for char in expression)
        text = text.strip().rstrip("=?").strip()
        self.tokens = _tokens(text)
        self.at = 0

    def whole(self) -> Fraction:
        if not self.tokens:
            raise ValueError("the expression is empty")
        value = self.sum(0)
        if self.at < len(self.tokens):
            self.fail()
        return value

    def fail(self) -> NoReturn:
        seen = f"{self.tokens[self.at]!s}" if self.at < len(self.tokens) else "the end"
        raise ValueError(f"the expression is not arithmetic: {seen!r} was not expected as part {self.at + 1}")

    def peek(self) -> Fraction | str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while (sign := self.peek()) in {"+", "-"}:
            self.at += 1
            other = self.product(depth)
            value = _bounded(value + other if sign == "+" else value - other)
        return value

    def product(self, depth: int) -> Fraction:
        value = self.signed(depth)
        while isinstance(sign := self.peek(), str) and sign in _PRODUCTS:
            self.at += 1
            value = _bounded(_PRODUCTS[sign](value, self.signed(depth)))
        return value

    def signed(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise ValueError("the expression is nested too deeply")
        if (sign := self.peek()) in {"+", "-"}:
            self.at += 1
            value = self.signed(depth + 1)
            return -value if sign == "-" else value
        return self.power(depth)

    def power(self, depth: int) -> Fraction:
        value = self.percent(self.atom(depth))
        if self.peek() in {"**", "^"}:
            self.at += 1
            return _power(value, self.signed(depth + 1))
        return value

    def percent(self, value: Fraction) -> Fraction:
        """`%` is the remainder where a number or bracket follows it, a percentage everywhere else."""
        while self.peek() == "%":
            following = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else None
            if isinstance(following, Fraction) or following == "(":
                break
            self.at += 1
            value /= 100
        return value

    def atom(self, depth: int) -> Fraction:
        part = self.peek()
        self.at += 1
        if isinstance(part, Fraction):
            return part
        if part == "(":
            value = self.sum(depth + 1)
            if self.peek() == ")":
                self.at += 1
                return value
            self.fail()
        self.at -= 1
        return self.fail()


def _tokens(text: str) -> list[Fraction | str]:
    found: list[Fraction | str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"the expression is not arithmetic: {text[at : at + 20]!r} can't be read")
        number, exponent, mark = match.groups()
        if mark is None:
            found.append(_bounded(Fraction(number.replace(",", "")) * _power(Fraction(10), Fraction(exponent or 0))))
        else:
            found.append(mark)
        at = match.end()
    return found


def _divide(left: Fraction, right: Fraction) -> Fraction:
    _nonzero(right)
    return left / right


def _floor(left: Fraction, right: Fraction) -> Fraction:
    _nonzero(right)
    return Fraction(left // right)


def _remainder(left: Fraction, right: Fraction) -> Fraction:
    _nonzero(right)
    return left % right


def _times(left: Fraction, right: Fraction) -> Fraction:
    return left * right


_PRODUCTS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "*": _times,
    "of": _times,
    "/": _divide,
    "//": _floor,
    "%": _remainder,
}


def _nonzero(value: Fraction) -> None:
    if value == 0:
        raise ValueError("division by zero")


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError("the result is too large: more than some 4,000 digits")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    """The exact power, sized before it is computed."""
    if exponent.denominator != 1:
        return _power(_root(base, exponent.denominator), Fraction(exponent.numerator))
    if base == 0 and exponent < 0:
        raise ValueError("division by zero")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and bits * abs(exponent.numerator) > MAX_BITS + bits:
        raise ValueError("the result is too large: more than some 4,000 digits")
    if abs(base) == 1:
        return base if exponent.numerator % 2 else Fraction(1)
    return base**exponent.numerator


def _root(base: Fraction, degree: int) -> Fraction:
    """The exact root of a number that has one."""
    if base >= 0 and degree <= 64:
        root = Fraction(_whole_root(base.numerator, degree), _whole_root(base.denominator, degree))
        if root**degree == base:
            return root
    raise ValueError("the result can't be written exactly: it is an irrational or complex number")


def _whole_root(number: int, degree: int) -> int:
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= number:
            low = middle
        else:
            high = middle - 1
    return max(low, 1) if number else 0


def _decimal(value: Fraction) -> tuple[str, bool]:
    """Decimal text, and whether it ends there."""
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest == 1:
        return _placed(value.numerator * 10 ** max(twos, fives) // value.denominator, max(twos, fives)), True
    whole = len(str(abs(value.numerator) // value.denominator))
    places = ROUNDED_DIGITS - whole if abs(value) >= 1 else ROUNDED_DIGITS + _leading_zeros(value)
    places = max(places, 0)
    return _placed(round(value * 10**places), places), False


def _leading_zeros(value: Fraction) -> int:
    return len(str(value.denominator // abs(value.numerator))) - 1


def _placed(number: int, places: int) -> str:
    digits = str(abs(number)).rjust(places + 1, "0")
    text = digits if not places else f"{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".")
    return f"-{text}" if number < 0 and text != "0" else text


def _number(value: Fraction) -> int | float | None:
    """The result as a JSON number, where one can hold it."""
    if value.denominator == 1:
        return value.numerator if abs(value.numerator) <= 2**53 else None
    try:
        return float(value)
    except OverflowError:
        return None
