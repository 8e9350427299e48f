"""The Scribe at work: which window a turn gets.

Knows the objects behind it, which live as long as the process. What a window does is `windowing.py`'s.
"""

from __future__ import annotations

from typing import Final

from cachetools import LRUCache

from gateway.config.context import PinConfig
from gateway.scribe.conversations import Conversations
from gateway.scribe.pins import PinPatterns
from gateway.turn.context import Turn
from gateway.turn.windowing import TurnWindow, Windowing, windowing

# Versions whose patterns are kept compiled.
_VERSIONS: Final = 8


class Scribe:
    """Keeps conversations short."""

    def __init__(self) -> None:
        self.conversations = Conversations()
        self._patterns: LRUCache[tuple[PinConfig, ...], PinPatterns] = LRUCache(_VERSIONS)
        self._settings: LRUCache[tuple[str, str | None], Windowing] = LRUCache(_VERSIONS * 100)

    def window(self, turn: Turn) -> TurnWindow | None:
        """The window of a turn; None where its conversation is sent as it is."""
        snapshot = turn.snapshot
        settings = self._settings_of(turn)
        if settings.strategy == "none":
            return None
        return TurnWindow(
            self.conversations,
            self._patterns_of(snapshot.config.context.pins),
            settings,
            turn.principal.owner,
            turn.session,
            turn.record,
            kept=False,
        )

    def _settings_of(self, turn: Turn) -> Windowing:
        place = (turn.decision.version, turn.decision.route)
        found = self._settings.get(place)
        if found is None:
            route = turn.snapshot.routes.get(turn.decision.route) if turn.decision.route else None
            found = windowing(turn.snapshot.config.context, route.context if route is not None else None)
            self._settings[place] = found
        return found

    def _patterns_of(self, pins: tuple[PinConfig, ...]) -> PinPatterns:
        found = self._patterns.get(pins)
        if found is None:
            found = self._patterns[pins] = PinPatterns(pins)
        return found
