"""`auto`: the packaged encoders side by side, one chosen for each text by its script.

Each is a space of its own; vectors of different spaces are never compared. Knows which encoder a text goes to; does not
know routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.routing.encoder import Encoder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class AutoEncoder:
    """Several encoders, the first that reads a text first.

    Attributes:
        spaces: the encoders. Whoever compares a query with utterances does so inside one of them.
    """

    name = "auto"

    def __init__(self, spaces: Sequence[Encoder]) -> None:
        """`spaces` in the order of preference; they are owned, and closed, by whoever made them."""
        self.spaces = tuple(spaces)

    @property
    def dimensions(self) -> int:
        """Length of the vectors that `encode` gives: all spaces side by side."""
        return sum(space.dimensions for space in self.spaces)

    async def load(self) -> None:
        """Load every space. Raises `EncoderFailed` if one of them does."""
        await asyncio.gather(*(space.load() for space in self.spaces))

    def reads(self, text: str) -> bool:
        """Whether one of the spaces does."""
        return any(space.reads(text) for space in self.spaces)

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors with zeros in the places of every space but the text's own: likeness across spaces is 0."""
        import numpy as np

        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        offset = 0
        chosen = [self._space(text) for text in texts]
        for number, space in enumerate(self.spaces):
            rows = [row for row, choice in enumerate(chosen) if choice == number]
            if rows:
                part = await space.encode([texts[row] for row in rows])
                vectors[rows, offset : offset + space.dimensions] = part
            offset += space.dimensions
        return vectors

    def _space(self, text: str) -> int:
        return next((number for number, space in enumerate(self.spaces) if space.reads(text)), len(self.spaces) - 1)

    async def close(self) -> None:
        """Close every space."""
        await asyncio.gather(*(space.close() for space in self.spaces))
