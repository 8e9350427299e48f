"""Chunks that differ from one before them in nothing but their text, recognised by their bytes: one by one, or whole runs.

Pure. Most of a stream says everything around each token anew, byte for byte. What was found out about one such chunk holds for
all of them, so that only the text has to be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from gateway.chat.chunk import Chunk, ChunkChoice, ChunkFields, Delta, Form, Run

_TEXT = re.compile(rb'"content":\s*("(?:[^"\\]|\\.)*+")')

_decode_text = msgspec.json.Decoder(str).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_encode = msgspec.json.Encoder().encode


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

    __slots__ = ("_came", "_joint", "_known", "_made", "settled")

    def __init__(self) -> None:
        self._came: Form | None = None
        self._made: Form | None = None
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
        self.learn_as(chunk.data, chunk)

    def learn_as(self, came: bytes, made: Chunk) -> None:
        """Take a chunk that says text and nothing else as the form to recognise, and what was made of it."""
        self.settled = True
        self._came = form_of(came)
        self._made = self._came if came is made.data else form_of(made.data)
        if self._came is not None:
            self._joint = self._came.after + self._came.before
        self._known = made.fields

    def scan(self, payloads: Sequence[bytes], start: int, *, blank: bool = True) -> tuple[Chunk, int] | None:
        """The run that begins at `start`, of one chunk or more, and where it ends; None where none begins there.

        Without `blank` there is none where a text is empty.
        """
        form, made = self._came, self._made
        if form is None or made is None or not _is_of(form, payloads[start]):
            return None
        end = len(payloads)
        while end > start + 1 and not _is_of(form, payloads[end - 1]):
            end -= 1
        some = payloads[start:end]
        first, last = len(form.before), -len(form.after)
        spelled = [payload[first:last] for payload in some]
        joined = b"".join(some)
        if b"\n" in joined or form.before + self._joint.join(spelled) + form.after != joined:
            return None
        try:
            texts = _decode_texts(b"[" + b",".join(spelled) + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if len(texts) != len(some) or not (blank or all(texts)):
            return None
        known = self._known
        text = "".join(texts)
        said = [ChunkChoice(0, Delta(content=text))]
        # For whoever looks at one chunk after the other, a run is one chunk that says all of it.
        data = made.before + (spelled[0] if len(spelled) == 1 else _encode(text)) + made.after
        fields = ChunkFields(known.id, known.model, said, created=known.created)
        return Chunk(data, fields, Run(made, spelled, text)), end


def form_of(data: bytes) -> Form | None:
    """What stands around the text of a chunk that says it in one place; None where that cannot be told."""
    found = _TEXT.search(data)
    if found is None or data.count(b'"content":') != 1:
        return None
    return Form(data[: found.start(1)], data[found.end(1) :])


def _is_of(form: Form, payload: bytes) -> bool:
    return payload.startswith(form.before) and payload.endswith(form.after)
