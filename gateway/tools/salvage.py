"""Arguments as models write them, read as the JSON object they mean.

Knows strict JSON, and complete values in code fences, in surrounding text, in JSON5's or Python's spelling. Never closes
a bracket or a string: whatever was cut off is an error. Does not know schemas.

One pass, one grammar that contains JSON's. On the beginning of a valid JSON text it is therefore in the state a strict
parser would be in, and can't take it for a whole one.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, NoReturn

from gateway.late import late
from gateway.tools.spec import InvalidArguments

MAX_ARGUMENT_CHARS = 1_000_000
MAX_DEPTH = 64

_SPACE = late(r"(?:[\s\ufeff]+|//[^\n]*|/\*[\s\S]*?\*/)*")
_NUMBER = late(r"[+-]?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])", re.ASCII)
_HEX = late(r"[0-9a-fA-F]+")
_WORD = late(r"[A-Za-z_$][\w$]*")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", "'": "'", '"': '"'}


def read_arguments(text: str | None) -> tuple[dict[str, Any], bool]:
    """The object a model meant, and whether it had to be salvaged.

    Nothing, white space and `null` mean no arguments. Of a key written twice the last one counts, as in Python's and
    JavaScript's own parsers.

    Raises:
        InvalidArguments: the text is cut off, ambiguous, or no object.
    """
    if text is None or not text.strip():
        return {}, False
    if len(text) > MAX_ARGUMENT_CHARS:
        raise InvalidArguments(f"the arguments are longer than {MAX_ARGUMENT_CHARS} characters")
    try:
        value, salvaged = _strict(text), False
        if isinstance(value, str):
            # Encoded twice. Both encodings have to be complete by themselves.
            value, salvaged = (_strict(value) if value.strip() else None), True
    except ValueError:
        value, salvaged = _lenient(text), True
    except RecursionError:
        raise InvalidArguments("the arguments are nested too deeply") from None
    if value is None:
        return {}, salvaged
    if not isinstance(value, dict):
        raise InvalidArguments(f"the arguments must be a JSON object, got {_kind(value)}")
    _refuse_untold(value)
    return value, salvaged


def strict_value(text: str) -> Any:
    """What strict JSON says, of any kind.

    Raises:
        ValueError: it is not JSON, or holds what JSON cannot say again (NaN, 1e999, half a character).
        RecursionError: it is nested too deeply.
    """
    value = _strict(text)
    _dumped(value)
    return value


def replayable(text: str | None) -> str:
    """The arguments as they may stand in a later request: JSON text of an object, the same text wherever it already is.

    What can't be read stands as `{}`; the result beside it tells the model what was wrong.
    """
    try:
        value, salvaged = read_arguments(text)
    except InvalidArguments:
        return "{}"
    if salvaged or not text or not text.strip().startswith("{"):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Made once: with settings, `json.loads` and `json.dumps` make one for each text.
_strict = json.JSONDecoder(parse_constant=_no_constant).decode
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _dumped(value: Any) -> bytes:
    return _dump(value).encode()


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), type(value).__name__)


def _refuse_untold(value: Any) -> None:
    """What JSON cannot say again: half characters, and numbers that became infinite when they were read."""
    try:
        _dumped(value)
    except UnicodeEncodeError:
        raise InvalidArguments("the arguments contain half of a surrogate pair (\\ud800 to \\udfff)") from None
    except ValueError:
        raise InvalidArguments("the arguments contain a number that is too large (beyond 1.8e308)") from None


def _lenient(text: str) -> dict[str, Any]:
    start = text.find("{")
    before = text[:start].strip() if start >= 0 else text
    if start < 0 or "[" in before or '"' in before or before.startswith(("'", "(")):
        raise InvalidArguments("the arguments are not a JSON object, or are cut off")
    reader = _Reader(text, start)
    value: dict[str, Any] = reader.value(0)
    after = text[reader.at :].strip()
    # Anything that could go on (a second object, a list around this one) makes the object a part of something cut off.
    if any(mark in after for mark in "{}[]\"'") or after.startswith((",", ":")):
        raise InvalidArguments("something follows the JSON object of the arguments; send one object and nothing else")
    return value


class _Reader:
    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def fail(self, expected: str) -> NoReturn:
        if self.at >= len(self.text):
            raise InvalidArguments("the arguments are cut off: the text ends before the JSON object does")
        seen = self.text[self.at : self.at + 20]
        raise InvalidArguments(
            f"the arguments are not JSON: expected {expected} at character {self.at + 1}, got {seen!r}"
        )

    def space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def take(self, mark: str) -> bool:
        self.space()
        if self.text.startswith(mark, self.at):
            self.at += len(mark)
            return True
        return False

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise InvalidArguments("the arguments are nested too deeply")
        if self.take("{"):
            return self.members(depth)
        if self.take("["):
            return self.items(depth)
        if self.text[self.at : self.at + 1] in {'"', "'"}:
            return self.string()
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            digits = number[0].removeprefix("+")
            try:
                return json.loads(digits)
            except ValueError:
                self.fail("a shorter number")
        word = _WORD.match(self.text, self.at)
        if word and word[0] in _WORDS:
            self.at = word.end()
            return _WORDS[word[0]]
        return self.fail("a value")

    def members(self, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while not self.take("}"):
            if self.text[self.at : self.at + 1] in {'"', "'"}:
                key = self.string()
            elif word := _WORD.match(self.text, self.at):
                key, self.at = word[0], word.end()
            else:
                self.fail("a name in quotes")
            if not self.take(":"):
                self.fail("`:`")
            out[key] = self.value(depth + 1)
            if not self.take(","):
                if self.take("}"):
                    return out
                self.fail("`,` or `}`")
        return out

    def items(self, depth: int) -> list[Any]:
        out: list[Any] = []
        while not self.take("]"):
            out.append(self.value(depth + 1))
            if not self.take(","):
                if self.take("]"):
                    return out
                self.fail("`,` or `]`")
        return out

    def string(self) -> str:
        quote = self.text[self.at]
        out: list[str] = []
        self.at += 1
        plain = re.compile(r"[^\\" + quote + "]*")
        while True:
            run = plain.match(self.text, self.at)
            assert run is not None
            out.append(run[0])
            self.at = run.end()
            mark = self.text[self.at : self.at + 1]
            if mark == quote:
                self.at += 1
                # Halves of a pair that were escaped one by one become the character they are.
                return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
            if not mark:
                self.fail("the end of the string")
            out.append(self.escape())

    def escape(self) -> str:
        letter = self.text[self.at + 1 : self.at + 2]
        if letter in _ESCAPES and letter:
            self.at += 2
            return _ESCAPES[letter]
        length = {"U": 8, "u": 4, "x": 2}.get(letter, 0)
        digits = self.text[self.at + 2 : self.at + 2 + length]
        if length and len(digits) == length and _HEX.fullmatch(digits) and int(digits, 16) <= sys.maxunicode:
            self.at += 2 + length
            return chr(int(digits, 16))
        return self.fail("an escape JSON knows")
