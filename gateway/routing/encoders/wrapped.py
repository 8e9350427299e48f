"""An encoder around another one: everything passes through until a child says otherwise.

Knows the seam only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.routing.encoder import Encoder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class WrappedEncoder:
    """The wrapped encoder's name, vectors and errors."""

    def __init__(self, inner: Encoder) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """The wrapped encoder's."""
        return self._inner.name

    @property
    def dimensions(self) -> int:
        """The wrapped encoder's."""
        return self._inner.dimensions

    async def load(self) -> None:
        """Load the wrapped encoder. Raises `EncoderFailed`."""
        await self._inner.load()

    def reads(self, text: str) -> bool:
        """What the wrapped encoder says."""
        return self._inner.reads(text)

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The wrapped encoder's vectors. Raises `EncoderFailed`."""
        return await self._inner.encode(texts)

    async def close(self) -> None:
        """Close the wrapped encoder."""
        await self._inner.close()
