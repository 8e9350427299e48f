"""`POST /v1/embeddings` as bytes: what is asked, and what an answer has to be.

Pure. Knows OpenAI's form and how servers depart from it; does not know HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.routing.encoder import EncoderFailed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NO_LENGTH = 1e-9
_encode = msgspec.json.Encoder().encode


class _Vector(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Vector]


_decode = msgspec.json.Decoder(_Answer).decode


def request_body(model: str, texts: Sequence[str], dimensions: int | None) -> bytes:
    """The request for these texts' vectors."""
    body: dict[str, object] = {"model": model, "input": list(texts), "encoding_format": "float"}
    if dimensions is not None:
        body["dimensions"] = dimensions
    return _encode(body)


def read_vectors(body: bytes, count: int, dimensions: int | None) -> NDArray[np.float32]:
    """`count` unit vectors in the order of the request. `dimensions` is their length where it is known. Blocks.

    Raises:
        EncoderFailed: the answer is no list of vectors, or not of so many, so long or finite ones.
    """
    import numpy as np

    try:
        found = _decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EncoderFailed("its answer is not a list of embeddings") from error
    places = [item.index for item in found]
    if any(place is not None for place in places):
        # Servers that work in parallel may answer in any order.
        if sorted(place if place is not None else -1 for place in places) != list(range(count)):
            raise EncoderFailed(f"it answered {len(found)} embeddings, numbered wrongly, to {count} texts")
        found.sort(key=lambda item: item.index or 0)
    elif len(found) != count:
        raise EncoderFailed(f"it answered {len(found)} embeddings to {count} texts")
    length = len(found[0].embedding) if dimensions is None else dimensions
    for item in found:
        if not item.embedding or len(item.embedding) != length:
            raise EncoderFailed(f"it answered an embedding of {len(item.embedding)} numbers, expected {length}")
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = np.asarray([item.embedding for item in found], dtype=np.float64)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or (lengths < _NO_LENGTH).any():
            raise EncoderFailed("it answered an embedding that is not finite or has no direction")
        return np.asarray(vectors / lengths, dtype=np.float32)
