"""`when`: facts a route asks for.

Every key has to hold, one of its values suffices. Knows facts; does not know keywords, patterns or scores.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from gateway.config.models import When
from gateway.routing.facts import Facts
from gateway.routing.scripts import LANGUAGES, language


def holds(when: When | None, facts: Facts, text: str) -> bool:
    """Whether every condition is met. `text` is the normalised text, which `language` is read from."""
    if when is None:
        return True
    if when.tags and facts.tags.isdisjoint(when.tags):
        return False
    if when.has_tools is not None and when.has_tools != facts.has_tools:
        return False
    if when.has_image is not None and when.has_image != facts.has_image:
        return False
    if when.min_tokens is not None and facts.tokens < when.min_tokens:
        return False
    if when.max_tokens is not None and facts.tokens > when.max_tokens:
        return False
    if when.models and facts.model not in when.models:
        return False
    return not when.language or language(text) in when.language


def allowed(route: str, model: str, facts: Facts) -> bool:
    """Whether the key may use this route and the model behind it; a route that it may not use is no candidate."""
    if facts.allowed_routes is not None and route not in facts.allowed_routes:
        return False
    return facts.allowed_models is None or model in facts.allowed_models


def mistakes(when: When | None) -> list[str]:
    """What is wrong with a condition although its shape is right."""
    if when is None:
        return []
    found = [
        f"`when.language`: {code!r} is not told apart; known are {', '.join(LANGUAGES)} (`en` is any Latin text)"
        for code in when.language
        if code not in LANGUAGES
    ]
    if when.min_tokens is not None and when.max_tokens is not None and when.min_tokens > when.max_tokens:
        found.append(f"`when`: min_tokens {when.min_tokens} is larger than max_tokens {when.max_tokens}: never holds")
    return found


# The key of any facts, where no condition tells any apart.
_ALIKE: Final[tuple[object, ...]] = ()


class UsedFacts:
    """The facts that the conditions of a set of routes can tell apart: one part of a cache key.

    Attributes:
        tokens: whether any asks for the size of a request.
        image: whether any asks for pictures.
    """

    def __init__(self, conditions: Iterable[When | None]) -> None:
        used = [when for when in conditions if when is not None]
        self._tags = frozenset(tag for when in used for tag in when.tags)
        self._models = frozenset(model for when in used for model in when.models)
        self._has_tools = any(when.has_tools is not None for when in used)
        self.image = any(when.has_image is not None for when in used)
        # Two token counts between the same limits meet the same conditions.
        limits = {when.min_tokens for when in used if when.min_tokens is not None}
        limits |= {when.max_tokens + 1 for when in used if when.max_tokens is not None}
        self._limits = sorted(limits)
        self.tokens = bool(limits)
        self._any = bool(self._tags or self._models or self._has_tools or self.image or limits)

    def key(self, facts: Facts) -> tuple[object, ...]:
        """Equal for two sets of facts that no condition tells apart."""
        if not self._any and facts.allowed_routes is None and facts.allowed_models is None:
            return _ALIKE
        return (
            facts.allowed_routes,
            facts.allowed_models,
            facts.tags & self._tags if self._tags else None,
            facts.model if facts.model in self._models else None,
            facts.has_tools if self._has_tools else None,
            facts.has_image if self.image else None,
            bisect_right(self._limits, facts.tokens) if self._limits else 0,
        )
