"""What was learnt from utterances, kept so that a reload that changes none of them learns nothing anew.

Knows digests; does not know how anything is learnt. Owned by the app, like the encoders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cachetools import LRUCache

if TYPE_CHECKING:
    from gateway.routing.calibration import Calibration
    from gateway.routing.scoring import Scorer

# Two encoders' spaces of this version, of the one before it, and of one that is tried and refused.
_KEPT = 6


class Fits:
    """Scorers and calibrations by the digest of encoder and utterances."""

    def __init__(self) -> None:
        self._kept: LRUCache[str, tuple[Scorer, Calibration | None]] = LRUCache(_KEPT)

    def get(self, key: str) -> tuple[Scorer, Calibration | None] | None:
        """What was learnt under this key; no calibration where one was given and none had to be learnt."""
        return self._kept.get(key)

    def put(self, key: str, scorer: Scorer, calibration: Calibration | None) -> None:
        """Keep it; the least recently used goes when there are too many."""
        self._kept[key] = scorer, calibration


def fit_key(encoder: str, utterances: Iterable[tuple[str, str]]) -> str:
    """Digest of an encoder's name and (route, normalised utterance) pairs, in whatever order they come."""
    digest = hashlib.blake2b(encoder.encode(), digest_size=16)
    for route, text in sorted(utterances):
        digest.update(f"\0{route}\n{text}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
