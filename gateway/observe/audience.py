"""Who is told of traces that are over.

Knows who wants which: most want all of them, some none of turns that were answered. Does not know what becomes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gateway.observe.events import Subscriber


@runtime_checkable
class Choosy(Protocol):
    """A subscriber that does not always care for turns that were answered, which are nearly all."""

    @property
    def wants_answered(self) -> bool:
        """Whether it does, as the active version has it."""
        ...


class Audience:
    """Everybody who is told, in order.

    Args:
        subscribers: get every trace; those that are `Choosy` none of answered turns unless they want them.

    Attributes:
        of_all: whom to tell of a trace, whatever is in it.
        of_answered: whom to tell of a turn that was answered.
    """

    def __init__(self, subscribers: Sequence[Subscriber]) -> None:
        self._subscribers = tuple(subscribers)
        self.of_all = tuple([each.finished for each in self._subscribers])
        self.of_answered = self.of_all
        self.settle()

    def settle(self) -> None:
        """Ask who wants what, once for each version: asked at each turn, most say no to nearly every one."""
        told = [each for each in self._subscribers if not isinstance(each, Choosy) or each.wants_answered]
        self.of_answered = tuple([each.finished for each in told])
