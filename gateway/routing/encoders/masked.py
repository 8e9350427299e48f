"""An encoder that never sees private data: its server is somebody else's.

Wraps any `Encoder`. Kinds stand for values, the same for everybody: a decision does not depend on who asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.routing.encoder import Encoder
from gateway.routing.encoders.wrapped import WrappedEncoder
from gateway.security.masking.scrubbing import Scrub

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class MaskedEncoder(WrappedEncoder):
    """The wrapped encoder's vectors of texts without private data.

    Args:
        inner: the wrapped encoder.
        scrub: takes it out.
    """

    def __init__(self, inner: Encoder, scrub: Scrub) -> None:
        super().__init__(inner)
        self._scrub = scrub

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The wrapped encoder's vectors. Raises `EncoderFailed`."""
        return await self._inner.encode([self._scrub(text) for text in texts])
