"""Whether a text says no to something: encoders hear that poorly, so the router listens for it itself.

Knows negating words of a few languages. Does not know what is negated.
"""

from __future__ import annotations

import re

_NEGATION = re.compile(
    r"\b(?:not|never|no longer|without|neither|nor|cannot|[a-z]+n['’]t|dont|doesnt|didnt|isnt|wasnt|cant|wont)\b"
    r"|\b(?:не|нет|без|nicht|kein\w*|pas|jamais|sans|nunca|sin|não)\b"
    # 不错 (not bad), 不过 (but), 要不要 and 是不是 (whether or not) negate nothing; nor do 特别, 区别, 别的, 别人.
    r"|(?<![特区差类级性])别(?![的人名墅])|(?<![要是能会好对可有行])不(?![错过同如仅但管论久少])|没|勿|未(?!来)"
    r"|안 |않|못|ない|ません"
)


def negates(text: str) -> bool:
    """Whether a normalised text holds a negating word."""
    return _NEGATION.search(text) is not None
