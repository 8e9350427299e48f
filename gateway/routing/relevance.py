"""Which of many described things a text is about: the router's encoder, and where it cannot be asked, shared words.

Knows texts and their names. Does not know tools, nor how many are wanted.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.late import late
from gateway.routing.encoder import Encoder
from gateway.routing.encoders.auto import AutoEncoder
from gateway.routing.normalise import normalise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

# Of what describes a thing; the beginning says what it is for, and encoders read no more than some hundred words.
_MOST_CHARS: Final = 600
_WORD: Final = late(r"[^\W\d_]{3,}|\d+")
_IDEOGRAPHS: Final = late(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


class Ranked(NamedTuple):
    """Names, the most relevant first, and what told so: `encoder` or `words`."""

    names: tuple[str, ...]
    by: str


class Relevance:
    """The descriptions of one version.

    Args:
        described: what describes each thing, by its name.
        encoder: the router's, or None where likeness is not asked.
        timeout_s: seconds a ranking may wait for the encoder.
    """

    def __init__(self, described: Mapping[str, str], encoder: Encoder | None, timeout_s: float) -> None:
        self._described = {name: normalise(text[:_MOST_CHARS]) for name, text in described.items()}
        self._words = {name: _words(text) for name, text in self._described.items()}
        self._rarity = _rarity(self._words.values())
        self._spaces = encoder.spaces if isinstance(encoder, AutoEncoder) else () if encoder is None else (encoder,)
        self._timeout_s = timeout_s
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._preparing: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Encode the descriptions; what fails is logged, and words are compared instead."""
        if self._preparing is None:
            self._preparing = asyncio.get_running_loop().create_task(self._prepare(), name="relevance")
        await asyncio.wait([self._preparing])

    async def rank(self, text: str, names: Sequence[str]) -> Ranked:
        """These names, the most relevant to a text first; equal ones stay in their order. Never raises."""
        wanted = normalise(text)
        likeness = await self._by_meaning(wanted) if wanted else None
        if likeness is not None:
            return Ranked(tuple(sorted(names, key=lambda name: -likeness[name])), "encoder")
        asked = _words(wanted)
        shared = {name: sum(self._rarity.get(word, 0) for word in asked & self._words[name]) for name in names}
        return Ranked(tuple(sorted(names, key=lambda name: -shared[name])), "words")

    async def close(self) -> None:
        """Stop what still computes; the encoder belongs to whoever made it."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.wait([self._preparing])

    async def _prepare(self) -> None:
        for space in self._spaces:
            try:
                await space.load()
                self._vectors[space.name] = await space.encode(list(self._described.values()))
            except Exception as error:  # noqa: BLE001 - a foreign model may raise anything; words are compared then
                _log.warning(
                    "tools are chosen by words: encoder %r: %s", space.name, str(error) or type(error).__name__
                )

    async def _by_meaning(self, text: str) -> dict[str, float] | None:
        if self._preparing is None:
            # The first to ask does not wait for weights.
            self._preparing = asyncio.get_running_loop().create_task(self._prepare(), name="relevance")
        space = next((space for space in self._spaces if space.reads(text)), None)
        known = self._vectors.get(space.name) if space is not None else None
        if space is None or known is None:
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                vector = (await space.encode([text]))[0]
        except TimeoutError:
            return None
        except Exception as error:  # noqa: BLE001 - a foreign model may raise anything; words are compared then
            _log.warning("tools are chosen by words: encoder %r: %s", space.name, type(error).__name__)
            return None
        return dict(zip(self._described, (known @ vector).tolist(), strict=True))


def _words(text: str) -> frozenset[str]:
    """Words of three letters or more, and pairs of neighbours where a script writes without spaces."""
    found = {word.lower() for word in _WORD.findall(text)}
    for run in _IDEOGRAPHS.findall(text):
        found |= {run[start : start + 2] for start in range(max(1, len(run) - 1))}
    return frozenset(found)


def _rarity(texts: Collection[frozenset[str]]) -> dict[str, float]:
    """How much a shared word says: little where many descriptions have it."""
    counts = Counter(word for words in texts for word in words)
    return {word: math.log(1 + len(texts) / count) for word, count in counts.items()}
