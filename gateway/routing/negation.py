"""Whether a text says no to something: encoders hear that poorly, so the router listens for it itself.

Knows negating words of a few languages. Does not know what is negated.
"""

from __future__ import annotations

import re

_NEGATION = re.compile(
    r"\b(?:not|no|never|without|neither|nor|cannot|[a-z]+n['’]t"
    r"|(?:do|does|did|is|was|are|were|ca|wo|have|has|had|should|could|would|must|need|ai)nt)\b"
    r"|\b(?:не|ни|нет|нельзя|без|nicht|kein\w*|niet|geen|pas|jamais|sans|nunca|sin|non|não|değil)\b"
    # 不错 (not bad), 不过 (but), 要不要 and 是不是 (whether or not) negate nothing; nor do 特别, 区别, 别的, 别人.
    r"|(?<![特区差类级性])别(?![的人名墅])|(?<![要是能会好对可有行])不(?![错过同如仅但管论久少])|没|勿|未(?!来)|无(?:需|须|意|法)"
    r"|안 |않|못|지 ?마|ない|ません|\b(?:لا|لن|لم|ليس|بدون)\b|नहीं|(?:^| )मत "
)
# Whether or not: 开不开, 是不是, 有没有. It asks, and negates nothing.
_EITHER = re.compile(r"(.)[不没]\1")
_END_CHARS = 2000


def negates(text: str) -> bool:
    """Whether a normalised text holds a negating word."""
    if len(text) > 2 * _END_CHARS:
        text = f"{text[:_END_CHARS]} {text[-_END_CHARS:]}"
    return _NEGATION.search(_EITHER.sub("", text)) is not None
