"""Chunks that differ from one before them in nothing but their text, recognised by their bytes: one by one, or whole runs.

Pure. Most of a stream says everything around each token anew, byte for byte. What was found out about one such chunk holds for
all of them, so that only the text has to be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from gateway.chat.chunk import Chunk, ChunkChoice, ChunkFields, Delta, Form, Run

# Not to be found in JSON that stands on one line.
_BETWEEN = b"\n"
_TEXT = re.compile(rb'"content":\s*("(?:[^"\\]|\\.)*+")')

_decode_text = msgspec.json.Decoder(str).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode


class TextScanner:
    """Knows one form of chunk and what stands for it on the other side.

    A JSON string holds no unescaped quotation mark, so `"content":` is a name wherever it stands; it has to stand once.
    """

    __slots__ = ("_after", "_before", "_made_after", "_made_before")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self._made_before = b""
        self._made_after = b""

    def learn(self, came: bytes, made: bytes) -> None:
        """Take a chunk that says text and nothing else, and what was made of it, as the form to recognise."""
        self._before = b""
        if came.count(b'"content":') != 1 or made.count(b'"content":') != 1:
            return
        before, after = _TEXT.search(came), _TEXT.search(made)
        if before is not None and after is not None:
            self._before, self._after = came[: before.start(1)], came[before.end(1) :]
            self._made_before, self._made_after = made[: after.start(1)], made[after.end(1) :]

    def scan(self, payload: bytes) -> tuple[str, bytes] | None:
        """The text of a chunk of the known form and what is made of the chunk; None where it has another form."""
        if not self._before or not payload.startswith(self._before) or not payload.endswith(self._after):
            return None
        spelled = payload[len(self._before) : len(payload) - len(self._after)]
        try:
            text = _decode_text(spelled)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # not exactly one string
        return (text, self._made_before + spelled + self._made_after) if text else None


class RunScanner:
    """Reads a run of chunks that only bring text as one, in a fifth of the time that reading each of them takes.

    Attributes:
        settled: whether it is known by now how such chunks look here, or that it will not be.
    """

    __slots__ = ("_form", "_joint", "_known", "settled")

    def __init__(self) -> None:
        self._form: Form | None = None
        self._joint = b""
        self._known = ChunkFields()
        self.settled = False

    def learn(self, chunk: Chunk) -> None:
        """Take a chunk as the form to recognise, if it says text and nothing else."""
        fields = chunk.fields
        if fields.choices is None or len(fields.choices) != 1 or fields.usage is not None:
            return
        choice = fields.choices[0]
        delta = choice.delta
        if delta is None or not isinstance(delta.content, str) or delta != Delta(content=delta.content):
            return
        if choice.index or choice.finish_reason is not None:
            return
        self.settled = True
        found = _TEXT.search(chunk.data)
        if found is None or chunk.data.count(b'"content":') != 1:
            return
        self._form = form = Form(chunk.data[: found.start(1)], chunk.data[found.end(1) :])
        self._joint = form.after + _BETWEEN + form.before
        self._known = fields

    def scan(self, payloads: Sequence[bytes], start: int) -> tuple[Chunk, int] | None:
        """The run that begins at `start`, and where it ends; None where none of at least two chunks begins there."""
        form = self._form
        if form is None or not _is_of(form, payloads[start]):
            return None
        end = len(payloads)
        while end > start + 1 and not _is_of(form, payloads[end - 1]):
            end -= 1
        size = end - start
        if size < 2:
            return None
        joined = _BETWEEN.join(payloads[start:end])
        spelled = joined[len(form.before) : len(joined) - len(form.after)].split(self._joint)
        if len(spelled) != size or joined.count(b"\n") != size - 1:
            return None
        try:
            texts = _decode_texts(b"[" + b",".join(spelled) + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if len(texts) != size:
            return None
        known = self._known
        said = [ChunkChoice(0, Delta(content="".join(texts)))]
        return Chunk(b"", ChunkFields(known.id, known.model, said, created=known.created), Run(form, spelled)), end


def _is_of(form: Form, payload: bytes) -> bool:
    return payload.startswith(form.before) and payload.endswith(form.after)
