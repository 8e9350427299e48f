"""Any sentence-transformers model, by its name in the local cache or by a path.

The only importer of sentence-transformers, and so of torch: 4 s and 350 MB, paid by those who ask for a named model.
Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.routing.encoder import EncoderFailed
from gateway.routing.encoders.thread import EncoderThread
from gateway.routing.encoders.window import both_ends, ends_of_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A token has rarely more than eight characters; a longer text is cut before it is tokenised.
_CHARS_PER_TOKEN = 8


class SentenceTransformersEncoder:
    """A model that sentence-transformers loads. `dimensions` is 0 until it has."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = EncoderThread(name.replace("/", "-"))
        self._model: Any = None
        self._dimensions = 0

    @property
    def dimensions(self) -> int:
        """Length of a vector, known once loaded."""
        return self._dimensions

    async def load(self) -> None:
        """Import the library and read the weights, once. Raises `EncoderFailed`."""
        await self._thread.run(self._load)

    def _load(self) -> None:
        if self._model is not None:
            return
        # Read by the hub's client when it is imported: a missing model must be an error, not a download.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise EncoderFailed(
                f"encoder {self.name!r} needs sentence-transformers and torch, which are not installed; "
                "`router.semantic.encoder: auto` needs neither"
            ) from error
        path = Path(self.name).expanduser()
        try:
            model = SentenceTransformer(str(path) if path.exists() else self.name, device="cpu", local_files_only=True)
            dimensions = model.get_embedding_dimension()
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            raise EncoderFailed(f"encoder {self.name!r} does not load: {error}") from error
        if not dimensions:
            raise EncoderFailed(f"encoder {self.name!r} does not say how long its vectors are")
        self._model, self._dimensions = model, dimensions

    def reads(self, text: str) -> bool:  # noqa: ARG002 - the seam asks; of a named model nothing is known
        """Always: whoever names a model has chosen it for the scripts at hand."""
        return True

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, one row a text. Raises `EncoderFailed`, also before `load`."""
        return await self._thread.run(self._encode, list(texts))

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        import numpy as np

        if self._model is None:
            raise EncoderFailed(f"encoder {self.name!r} is not loaded")
        vectors = np.empty((len(texts), self._dimensions), dtype=np.float32)
        # One at a time: padding and batched products change the last digits of a vector.
        for row, text in enumerate(texts):
            vectors[row] = self._model.encode(
                self._cut(text), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
            )
        return vectors

    def _cut(self, text: str) -> str:
        """Beginning and end of what does not fit the model's window."""
        window = self._model.max_seq_length
        if not window or len(text) < window:
            return text
        text = ends_of_text(text, window * _CHARS_PER_TOKEN)
        tokenizer = self._model.tokenizer
        ids = tokenizer.encode(text, add_special_tokens=False, verbose=False)
        # Some tokens are the model's own marks at both ends; eight is more than any model adds.
        limit = max(8, window - 8)
        return text if len(ids) <= limit else str(tokenizer.decode(both_ends(ids, limit)))

    async def close(self) -> None:
        """End the thread and let go of the weights."""
        await self._thread.close()
        self._model = None
