"""Encoders by name, each made once: weights are far too expensive to be read again at a reload.

Owned by the app, which closes it last.
"""

from __future__ import annotations

import asyncio

from gateway.routing.encoder import Encoder
from gateway.routing.encoders.auto import AutoEncoder
from gateway.routing.encoders.batching import BatchingEncoder
from gateway.routing.encoders.minilm_onnx import MiniLMEncoder
from gateway.routing.encoders.remembering import RememberingEncoder
from gateway.routing.encoders.sentence_transformers import SentenceTransformersEncoder
from gateway.routing.encoders.use_multilingual import MultilingualEncoder


class Encoders:
    """Makes encoders and keeps them until `close`."""

    def __init__(self) -> None:
        self._made: dict[str, Encoder] = {}

    def get(self, name: str) -> Encoder:
        """The encoder that `router.semantic.encoder` calls `name`; the same object every time. Loads nothing.

        `auto`, `minilm` and `multilingual` are packaged. Any other name is one of sentence-transformers, or a path.
        """
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Encoder:
        match name:
            case "auto":
                return AutoEncoder([self.get("minilm"), self.get("multilingual")])
            case "minilm":
                return RememberingEncoder(BatchingEncoder(MiniLMEncoder()))
            case "multilingual":
                return RememberingEncoder(BatchingEncoder(MultilingualEncoder()))
            case _:
                return RememberingEncoder(BatchingEncoder(SentenceTransformersEncoder(name)))

    async def close(self) -> None:
        """Close every encoder that was made."""
        made, self._made = self._made, {}
        await asyncio.gather(*(encoder.close() for encoder in made.values() if not isinstance(encoder, AutoEncoder)))
