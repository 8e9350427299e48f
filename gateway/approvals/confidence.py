"""How sure a model is of a call: from the log-probabilities of its tokens, or from what it says itself.

Pure. Knows OpenAI's form of log-probabilities. What is missing, or cannot be read, is None, which counts as not sure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

# A token and the logarithm of its probability.
Token = tuple[str, float]


class _Token(msgspec.Struct):
    token: str
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] = []


_read_body = msgspec.json.Decoder(_Body).decode


def tokens_in(body: bytes) -> list[Token]:
    """The tokens of a whole answer's, or of a chunk's, first choice; none where it has none."""
    try:
        choices = _read_body(body).choices
    except msgspec.MsgspecError:
        return []
    logprobs = choices[0].logprobs if choices else None
    return [(each.token, each.logprob) for each in (logprobs.content if logprobs is not None else None) or ()]


def by_tokens(tokens: Sequence[Token], name: str, arguments: str) -> float | None:
    """The geometric mean of the probabilities of a call's tokens: its name's and its arguments'.

    Where the call cannot be found among the tokens, for servers write calls in ways of their own, all of them count.
    """
    if not tokens:
        return None
    text = "".join(token for token, _ in tokens)
    end = text.find(arguments)
    span: Sequence[Token] = tokens
    if arguments and end >= 0:
        begin = text.rfind(name, 0, end)
        span = _between(tokens, begin if begin >= 0 else end, end + len(arguments))
    logprobs = [logprob for _, logprob in span if math.isfinite(logprob)]
    return math.exp(sum(logprobs) / len(logprobs)) if logprobs else None


def said(value: Any) -> float | None:
    """What a model says of itself, where it is a number from 0 to 1."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return None
    return float(value)


def _between(tokens: Sequence[Token], begin: int, end: int) -> list[Token]:
    """The tokens that have a character of this part of the text."""
    found: list[Token] = []
    place = 0
    for token, logprob in tokens:
        if place < end and place + len(token) > begin:
            found.append((token, logprob))
        place += len(token)
    return found
