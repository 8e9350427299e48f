"""An encoder that needs no weights: hashed pieces of words. Texts that share words are alike, others are not."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.routing.encoder import EncoderFailed


class HashingEncoder:
    """Implements `Encoder`, and can be told to be slow, to fail, or to return rubbish.

    Attributes:
        loads, closes: how often they were called.
        encoded: every text it was asked for, in order.
        gate: loading and encoding wait for it; closed by `gate.clear()`.
        failing: raised by `encode`, when set.
        rubbish: returned by `encode` instead of vectors, when set.
    """

    def __init__(self, name: str = "hashing", dimensions: int = 64, scripts: str = "any") -> None:
        self.name = name
        self.dimensions = dimensions
        self.loads = 0
        self.closes = 0
        self.encoded: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing: Exception | None = None
        self.rubbish: NDArray[np.float32] | None = None
        self._scripts = scripts
        self._loaded = False

    async def load(self) -> None:
        self.loads += 1
        await self.gate.wait()
        self._loaded = True

    def reads(self, text: str) -> bool:
        return self._scripts == "any" or text.isascii()

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.encoded += texts
        await self.gate.wait()
        if self.failing is not None:
            raise self.failing
        if not self._loaded:
            raise EncoderFailed(f"encoder {self.name!r} is not loaded")
        if self.rubbish is not None:
            return self.rubbish
        return np.stack([self._vector(text) for text in texts]) if texts else np.empty((0, self.dimensions), np.float32)

    def _vector(self, text: str) -> NDArray[np.float32]:
        vector = np.zeros(self.dimensions, dtype=np.float32)
        # The text's own mark keeps a text without words from having no direction.
        for piece in [f"<{len(text) % 7}>", *text.lower().split(), *text.lower().split()]:
            digest = hashlib.blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=4).digest()
            number = int.from_bytes(digest, "big")
            vector[number % self.dimensions] += 1 if number & 0x80000000 else -1
        length = float(np.linalg.norm(vector))
        if length == 0:
            vector[0] = length = 1
        unit: NDArray[np.float32] = (vector / np.float32(length)).astype(np.float32)
        return unit

    async def close(self) -> None:
        self.closes += 1
        self._loaded = False
