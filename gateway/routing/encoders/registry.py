"""Encoders by name, each made once: weights are far too expensive to be read again at a reload.

Owned by the app, which closes it last.
"""

from __future__ import annotations

import asyncio

from gateway.clock import Clock, SystemClock
from gateway.config.models import RemoteEncoderConfig
from gateway.routing.encoder import Encoder
from gateway.routing.encoders.auto import AutoEncoder
from gateway.routing.encoders.batching import BatchingEncoder
from gateway.routing.encoders.minilm_onnx import MiniLMEncoder
from gateway.routing.encoders.remembering import RememberingEncoder
from gateway.routing.encoders.sentence_transformers import SentenceTransformersEncoder
from gateway.routing.encoders.use_multilingual import MultilingualEncoder


class Encoders:
    """Makes encoders and keeps them until `close`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._made: dict[str, Encoder] = {}
        self._packaged: dict[str, MiniLMEncoder | MultilingualEncoder] = {}

    def get(self, encoder: str | RemoteEncoderConfig) -> Encoder:
        """The encoder that `router.semantic.encoder` says; the same object every time. Loads nothing.

        `auto`, `minilm` and `multilingual` are packaged. Any other name is one of sentence-transformers, or a path; what is
        no name is a server.
        """
        name = encoder if isinstance(encoder, str) else encoder.model_dump_json()
        if name not in self._made:
            self._made[name] = self._make(encoder)
        return self._made[name]

    def read(self, name: str) -> None:
        """Load a packaged encoder before it is asked, in this thread, which it blocks. Starts no thread that lives on: the
        process may fork afterwards.

        Raises:
            EncoderFailed: its weights are missing or damaged.
        """
        self.get(name)
        for each in self._packaged.values():
            each.read()

    def _make(self, name: str | RemoteEncoderConfig) -> Encoder:
        match name:
            case RemoteEncoderConfig():
                # It is not the only importer of aiohttp, but the gateway's other parts may do without.
                from gateway.routing.encoders.remote import RemoteEncoder

                return RememberingEncoder(RemoteEncoder(name, self._clock))
            case "auto":
                return AutoEncoder([self.get("minilm"), self.get("multilingual")])
            case "minilm":
                return self._wrapped("minilm", MiniLMEncoder())
            case "multilingual":
                return self._wrapped("multilingual", MultilingualEncoder())
            case _:
                return RememberingEncoder(BatchingEncoder(SentenceTransformersEncoder(name)))

    def _wrapped(self, name: str, encoder: MiniLMEncoder | MultilingualEncoder) -> Encoder:
        self._packaged[name] = encoder
        return RememberingEncoder(BatchingEncoder(encoder))

    async def close(self) -> None:
        """Close every encoder that was made."""
        made, self._made = self._made, {}
        self._packaged.clear()
        await asyncio.gather(*(encoder.close() for encoder in made.values() if not isinstance(encoder, AutoEncoder)))
