"""What utterances say about a text. Pure values; knows nothing of vectors."""

from __future__ import annotations

from typing import Final

import msgspec

# Stands where a route's name would, for utterances that belong to none; no route can be called that.
NO_ROUTE: Final = "-"


class View(msgspec.Struct, frozen=True):
    """One route as likeness saw it; fields as in `Candidate`."""

    route: str
    score: float
    threshold: float | None
    margin: float | None
    nearest: str
    verdict: str


class Outcome(msgspec.Struct, frozen=True):
    """A route with score and margin, or None and the reason why not.

    `views` holds every route that was compared, best first, where they were asked for.
    """

    route: str | None = None
    score: float | None = None
    margin: float | None = None
    reason: str = "no_match"
    views: tuple[View, ...] = ()
