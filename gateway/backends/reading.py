"""What is read of an upstream's answer: the bytes as they come, or inflated, or what was read already.

Compressed answers are read in pieces that never hold the event loop for long and never grow past what their reader takes. Knows
gzip and deflate: nobody is asked for either, and some servers compress all the same.
"""

from __future__ import annotations

import asyncio
import zlib
from contextlib import suppress
from typing import Final, Protocol

from gateway.backends.http1 import CutOff, HttpFailed, Response

# Room for an answer with images or sound in it.
ANSWER_BYTES: Final = 64 * 1024 * 1024
# A server that was asked for a stream and says that it sends one of these does not stream.
NO_STREAM: Final = frozenset({"application/json", "text/html"})
_REFUSAL_BYTES = 64 * 1024
# What the status says does not wait for words that do not come.
_REFUSAL_S = 5.0
# A fifth of a millisecond's work.
_PIECE_BYTES = 64 * 1024
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class Reader(Protocol):
    """What is read of an answer: a connection's answer, or one that inflates it."""

    async def readany(self, until: float) -> bytes:
        """What there is, at least a byte; empty at the end. Raises TimeoutError at that time of the loop."""
        ...

    def at_eof(self) -> bool:
        """Whether everything was read."""
        ...


class Said:
    """What was read already, as something to read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def readany(self, until: float) -> bytes:  # noqa: ARG002 - nothing is waited for
        """All of it, then nothing."""
        data, self._data = self._data, b""
        return data

    def at_eof(self) -> bool:
        """Whether it was read."""
        return not self._data


class AnswerTooLarge(CutOff):
    """The answer is more than a gateway can hold of many at once."""


class UnknownEncoding(ValueError):
    """The answer is encoded in a way that is not read here."""


def reader_of(response: Response) -> Reader:
    """The answer's body as it was before it was compressed.

    Raises:
        UnknownEncoding: it is compressed otherwise than by gzip or deflate.
    """
    encoding = response.header(b"content-encoding")
    if encoding is None or encoding.lower() in ("", "identity"):
        return response
    if encoding.lower().removeprefix("x-") not in ("gzip", "deflate"):
        raise UnknownEncoding(f"content-encoding {encoding[:40]!r}")
    return _Inflated(response)


async def read_whole(content: Reader, until: float) -> bytes:
    """A body.

    Raises:
        AnswerTooLarge: it is more than `ANSWER_BYTES`.
        TimeoutError: nothing came until that time of the loop.
        HttpFailed: it is cut off.
    """
    parts: list[bytes] = []
    size = 0
    while size <= ANSWER_BYTES and (data := await content.readany(until)):
        parts.append(data)
        size += len(data)
        if content.at_eof():
            break
    if size > ANSWER_BYTES:
        raise AnswerTooLarge(f"an answer of more than {ANSWER_BYTES} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_refusal(response: Response, until: float) -> bytes:
    """What can be read of why a request was refused, up to 64 KB: as far as it comes in 5 s, or until that time of the loop.

    Nothing where it cannot be read.
    """
    parts: list[bytes] = []
    size = 0
    until = min(until, asyncio.get_running_loop().time() + _REFUSAL_S)
    with suppress(UnknownEncoding, HttpFailed, OSError):
        reader = reader_of(response)
        while size < _REFUSAL_BYTES and (data := await reader.readany(until)):
            parts.append(data)
            size += len(data)
    return b"".join(parts)[:_REFUSAL_BYTES]


class _Inflated:
    def __init__(self, source: Response) -> None:
        self._source = source
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._begun = False
        self._pending = b""

    async def readany(self, until: float) -> bytes:
        while True:
            if not self._pending:
                self._pending = await self._source.readany(until)
                if not self._pending:
                    if self._begun and not self._inflate.eof:
                        raise CutOff("the compressed answer is incomplete")
                    return b""
            piece = self._next()
            if piece:
                await asyncio.sleep(0)
                return piece

    def at_eof(self) -> bool:
        return not self._pending and self._source.at_eof()

    def _next(self) -> bytes:
        if not self._begun:
            self._begun = True
            if (
                self._pending[0] & 0x0F != 8 and self._pending[0] != 0x1F
            ):  # deflate without zlib's head, as some send it
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        elif self._inflate.eof:  # another gzip member
            self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        try:
            piece = self._inflate.decompress(self._pending, _PIECE_BYTES)
        except zlib.error as error:
            raise CutOff("the compressed answer cannot be read") from error
        self._pending = self._inflate.unconsumed_tail or self._inflate.unused_data
        return piece
