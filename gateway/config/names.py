"""Which model a name means: its own, an alias's, or a wildcard's.

Pure. Knows `*` and the order of fallbacks; does not know who may use a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gateway.config.models import ModelConfig

WILDCARD: Final = "*"
# What a client may put in the place of `*`: it becomes part of a model's name at an upstream, there perhaps of a URL.
_WANTED: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_/:@-]|\.(?!\.)){0,127}")


class Meant(NamedTuple):
    """A model's name in the configuration, and what stood in the place of its `*` (empty without one)."""

    model: str
    wanted: str = ""


class ModelNames:
    """The names of one configuration.

    Args:
        models: names of models, with or without `*`.
        aliases: other names for them; an alias may name what a wildcard matches.
    """

    def __init__(self, models: Iterable[str], aliases: Mapping[str, str]) -> None:
        self._models = frozenset(models)
        self._aliases = aliases
        self._plain = {name: Meant(name) for name in self._models if WILDCARD not in name and name not in aliases}
        # What says most of a name is asked first.
        self._wildcards = sorted((name for name in self._models if WILDCARD in name), key=lambda n: (-len(n), n))

    def find(self, name: str) -> Meant | None:
        """The model that a name means: itself, else by its alias, else by the wildcard that says most of it."""
        meant = self._plain.get(name)
        if meant is not None:
            return meant
        name = self._aliases.get(name, name)
        if WILDCARD in name:
            return None
        if name in self._models:
            return Meant(name)
        for wildcard in self._wildcards:
            wanted = matched(wildcard, name)
            if wanted is not None and _WANTED.fullmatch(wanted):
                return Meant(wildcard, wanted)
        return None


def matched(wildcard: str, name: str) -> str | None:
    """What of `name` stands where `wildcard` has its `*`; None where it does not match."""
    head, _, tail = wildcard.partition(WILDCARD)
    if len(name) <= len(head) + len(tail) or not name.startswith(head) or not name.endswith(tail):
        return None
    return name[len(head) : len(name) - len(tail)]


def fallback_order(name: str, models: Mapping[str, ModelConfig], aliases: Mapping[str, str]) -> tuple[str, ...]:
    """The model and everything that stands in for it, in the order it is asked: depth first, each once."""
    order: dict[str, None] = {}

    def add(model: str) -> None:
        model = aliases.get(model, model)
        if model in models and model not in order:
            order[model] = None
            for fallback in models[model].fallbacks:
                add(fallback)

    add(name)
    return tuple(order)


def fallback_circle(name: str, models: Mapping[str, ModelConfig], aliases: Mapping[str, str]) -> tuple[str, ...] | None:
    """The way on which a model's fallbacks lead back to it, both ends included; None where they do not."""
    dead: set[str] = set()

    def search(way: tuple[str, ...]) -> tuple[str, ...] | None:
        for written in models[way[-1]].fallbacks:
            model = aliases.get(written, written)
            if model == name:
                return (*way, model)
            if model in models and model not in dead and model not in way:
                found = search((*way, model))
                if found is not None:
                    return found
                dead.add(model)
        return None

    return search((name,))
