"""Users' regular expressions: RE2 over normalised text.

Linear in the text whatever the expression. Knows how an expression is made to fit normalised text: case does not count,
and its own characters go through the same forms as the text does.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Protocol

import re2

from gateway.routing.normalise import fold

_ASCII_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")


class Pattern(Protocol):
    """A compiled expression."""

    def search(self, text: str) -> Found | None:
        """The first place where it matches."""
        ...


class Found(Protocol):
    """A place where an expression matched."""

    def start(self) -> int:
        """Its first character's position."""
        ...

    def end(self) -> int:
        """The position behind its last character."""
        ...


class PatternInvalid(ValueError):
    """An expression that RE2 does not take; the message says why."""


def compile_pattern(expression: str) -> Pattern:
    """Compile for use on normalised text.

    Raises:
        PatternInvalid: RE2 refuses it (look-around and back references are not linear, so it has none).
    """
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    try:
        compiled: Pattern = re2.compile(_fitted(expression), options)
    except re2.error as error:
        raise PatternInvalid(_message(error)) from error
    except UnicodeEncodeError as error:
        raise PatternInvalid("it contains half of a surrogate pair") from error
    return compiled


def _fitted(expression: str) -> str:
    """Characters beyond ASCII in their normalised form; what is ASCII already may be syntax and stays."""
    return "".join(
        char if char.isascii() else _ASCII_PUNCTUATION.sub(r"\\\1", fold(char))
        for char in unicodedata.normalize("NFC", expression)
    )


def _message(error: Exception) -> str:
    reason = error.args[0] if error.args else "invalid"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
