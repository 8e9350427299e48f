"""The seam every sentence encoder fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Encoder(Protocol):
    """Texts in, unit vectors out. A vector never depends on the other texts of its batch.

    Attributes:
        name: what `router.semantic.encoder` calls it; part of the version.
        dimensions: length of a vector.
    """

    @property
    def name(self) -> str:
        """See above."""
        ...

    @property
    def dimensions(self) -> int:
        """See above."""
        ...

    async def load(self) -> None:
        """Read the weights, off the event loop. Raises `EncoderFailed` where they are missing or damaged."""
        ...

    def reads(self, text: str) -> bool:
        """Whether the encoder knows the script of this text well enough to be asked."""
        ...

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of shape (len(texts), dimensions), float32, length 1 each. Runs off the event loop.

        Raises `EncoderFailed`.
        """
        ...

    async def close(self) -> None:
        """Free threads and weights."""
        ...


class EncoderFailed(Exception):
    """The encoder cannot load or cannot encode; routing falls through."""
