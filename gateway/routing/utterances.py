"""The routes' utterances as each encoder reads them.

Pure, and without numpy. Does not know vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.config.models import RouteConfig
from gateway.routing.encoder import Encoder
from gateway.routing.fits import fit_key
from gateway.routing.likeness import NO_ROUTE
from gateway.routing.normalise import normalise

# Utterances a route needs in a space to be found there.
_FEW = 3


@dataclass(frozen=True, slots=True)
class Utterances:
    """What one encoder reads of them.

    Attributes:
        pairs: route and utterance as it stands in the file, ordered by route.
        texts: the utterances, normalised.
        complete: whether every route has something to be found by. A space in which some route has next to nothing would
            hand its texts to the others.
        key: digest of the encoder's name, the routes and the texts.
    """

    pairs: tuple[tuple[str, str], ...]
    texts: tuple[str, ...]
    complete: bool
    key: str


def utterances_by_encoder(
    routes: Sequence[RouteConfig], encoders: Sequence[Encoder], none: Sequence[str] = ()
) -> dict[str, Utterances]:
    """What each encoder reads; of a route's utterances that are one when normalised, the first.

    `none` are utterances that belong to no route: they stand under `NO_ROUTE`.
    """
    routes = sorted(routes, key=lambda route: route.route)
    normal = {
        route.route: {normalise(text): text for text in sorted(route.utterances, reverse=True)} for route in routes
    }
    taken = {text for known in normal.values() for text in known}
    # What is said to be a route's too is that route's.
    nowhere = {normalise(text): text for text in sorted(none, reverse=True)}
    nowhere = {text: written for text, written in nowhere.items() if text not in taken}
    return {encoder.name: _read_by(encoder, routes, normal, nowhere) for encoder in encoders}


def _read_by(
    encoder: Encoder, routes: Sequence[RouteConfig], normal: dict[str, dict[str, str]], nowhere: dict[str, str]
) -> Utterances:
    pairs: list[tuple[str, str]] = []
    texts: list[str] = []
    complete = True
    for route in routes:
        known = normal[route.route]
        readable = [text for text in sorted(known) if text and encoder.reads(text)]
        complete &= len(readable) >= min(_FEW, len(route.utterances))
        pairs += [(route.route, known[text]) for text in readable]
        texts += readable
    if pairs:
        readable = [text for text in sorted(nowhere) if text and encoder.reads(text)]
        pairs += [(NO_ROUTE, nowhere[text]) for text in readable]
        texts += readable
    key = fit_key(encoder.name, zip((route for route, _ in pairs), texts, strict=True))
    return Utterances(tuple(pairs), tuple(texts), complete, key)
