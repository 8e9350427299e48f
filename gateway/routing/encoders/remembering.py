"""An encoder that keeps the vectors of utterances, so that a reload encodes only what is new.

Wraps any `Encoder`. Keeps what comes in batches (utterances); a single text is a query and passes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cachetools import LRUCache

from gateway.routing.encoder import Encoder
from gateway.routing.encoders.wrapped import WrappedEncoder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# At 512 numbers of 4 bytes each, 40 MB at most.
_KEPT = 20_000


class RememberingEncoder(WrappedEncoder):
    """The same vectors as the wrapped encoder, sooner."""

    def __init__(self, inner: Encoder) -> None:
        super().__init__(inner)
        self._kept: LRUCache[str, NDArray[np.float32]] = LRUCache(_KEPT)

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors, from memory where they are there. Raises `EncoderFailed`."""
        if len(texts) <= 1:
            return await self._inner.encode(texts)
        import numpy as np

        known = {text: vector for text in texts if (vector := self._kept.get(text)) is not None}
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            vectors = await self._inner.encode(new)
            known.update(zip(new, vectors, strict=True))
            for text in new:
                self._kept[text] = known[text]
        return np.stack([known[text] for text in texts])

    async def close(self) -> None:
        """Forget, and close the wrapped encoder."""
        self._kept.clear()
        await self._inner.close()
