"""How far a stream of chunks has been read, and what its events say.

Knows events and chunks. Does not know connections, nor what becomes of a stream that breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.chat.chunk import Chunk, ChunkChoice, decode_chunks
from gateway.chat.normalise_stream import StreamNormaliser
from gateway.chat.scanner import RunScanner
from gateway.chat.sse import SseParser
from gateway.chat.surrogates import SurrogateJoiner

# Chunks that are read one by one before it is looked how they look.
_FEW: Final = 2
_END: Final = (
    b'{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}'
)


class StreamReading:
    """How far one stream has been read.

    Args:
        normaliser: mends what servers say loosely; None where they vouch for every byte.
        wanted: how many choices the answer is to have.

    Attributes:
        said: whether anything but comments came.
        begun: whether anything of an answer did.
        finished: whether all of the answer did, but for usage.
        over: whether nothing more is to come.
    """

    __slots__ = (
        "_ended",
        "_wanted",
        "begun",
        "finished",
        "joiner",
        "normaliser",
        "over",
        "parser",
        "runs",
        "said",
    )

    def __init__(self, normaliser: StreamNormaliser | None, wanted: int) -> None:
        self.parser = SseParser()
        self.normaliser = normaliser
        self.runs = RunScanner() if normaliser is None else normaliser.runs
        self.joiner = SurrogateJoiner()
        self._wanted = wanted
        self._ended: set[int | None] = set()
        self.said = False
        self.begun = False
        self.finished = False
        self.over = False

    def exact(self, payloads: Sequence[bytes]) -> list[Chunk]:
        """Take in chunks, and return them, runs of text as one; none where one of them is odd: one by one, then, which says why."""
        runs = self.runs
        chunks: list[Chunk] = []
        ends: list[ChunkChoice] = []
        start, size = 0, len(payloads)
        few = _FEW
        while start < size:
            if (found := runs.scan(payloads, start)) is not None:
                run, start = found
                chunks.append(run)
                few = _FEW
                continue
            # What comes next may show how text looks here: most begin with a role and a text. Where it does not, ever more are read at once.
            read = _sound(payloads[start : start + few], ends)
            if not read:
                return []
            chunks += read
            start += len(read)
            few *= 4
            # Of servers that tell each second apart, the form is what it was last. The one it was learned from begins a run.
            if runs.learn(read[-1]) and start < size and (found := runs.scan(payloads, start - 1)) is not None:
                if found[1] > start:
                    few = _FEW
                chunks[-1], start = found
        if not self.begun:
            self.begun = any(chunk.fields.choices for chunk in chunks)
        if ends:
            self._end(ends)
        return chunks

    def note(self, chunk: Chunk) -> None:
        """Take in one chunk."""
        if choices := chunk.fields.choices:
            self.begun = True
            self._end(choices)

    def missing_end(self) -> list[bytes]:
        """The chunk that would have ended the answer; none where it has several choices: some servers give fewer than were wanted."""
        return [_END] if self._wanted == 1 else []

    def _end(self, choices: Sequence[ChunkChoice]) -> None:
        """The answer is complete when each of its choices has ended."""
        self._ended.update([choice.index for choice in choices if choice.finish_reason])
        self.finished = self.finished or len(self._ended) >= self._wanted


def _sound(payloads: Sequence[bytes], ends: list[ChunkChoice]) -> list[Chunk]:
    """The chunks; none where one of them is odd. What they end is added to `ends`."""
    try:
        read = decode_chunks(payloads)
    except msgspec.DecodeError:
        return []  # it may be a pair that was split
    for chunk in read:
        fields = chunk.fields
        if fields.choices is None or fields.error is not None or b"\n" in chunk.data:
            return []
        for choice in fields.choices:
            if choice.finish_reason is not None:
                if choice.finish_reason == "error":
                    return []
                ends.append(choice)
    return read
