"""Chunks that differ from one before them in nothing but their text, recognised by their bytes: one by one, or whole runs.

Pure. Most of a stream says everything around each token anew, byte for byte. What was found out about one such chunk holds for
all of them, so that only the text has to be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.chat.chunk import Chunk, ChunkChoice, ChunkFields, Delta, Form, Run

_TEXT = re.compile(rb'"content":\s*"((?:[^"\\]|\\.)*+)"')
_PADDING = re.compile(rb'"obfuscation":\s*"([A-Za-z0-9]*)"')

# Chunks that are looked at as one run: of many with something else between them, each look would go through all that follow.
_MOST: Final = 128

decode_text = msgspec.json.Decoder(str).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_encode = msgspec.json.Encoder().encode


class RunScanner:
    """Knows one form of chunk and what stands for it on the other side; reads a run of such chunks as one.

    A JSON string holds no unescaped quotation mark, so `"content":` is a name wherever it stands; it has to stand once.

    Args:
        blank: whether a chunk that says nothing belongs to a run too.

    Attributes:
        blank: as above.
        settled: whether it is known by now how such chunks look here, or that it will not be.
    """

    __slots__ = ("_came", "_known", "_made", "blank", "settled")

    def __init__(self, *, blank: bool = True) -> None:
        self.blank = blank
        self._came: Form | None = None
        self._made: Form  # known where the other is
        self._known = ChunkFields()
        self.settled = False

    @property
    def forms(self) -> tuple[Form, Form] | None:
        """How a chunk that says text comes, and what stands for it on the other side; None where unknown, or where it is padded."""
        came = self._came
        return None if came is None or came.inner else (came, self._made)

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
        form = form_of(came)
        shown = form if came is made.data else form_of(made.data)
        self._came = None
        if form is not None and shown is not None and (shown is form or not shown.inner):
            self._came, self._made = form, shown
        self._known = made.fields

    def read(self, events: bytes) -> Run | None:
        """The run that these bytes are; None where they are anything but whole events of the form, one line each."""
        form = self._came
        if form is None or not events.startswith(form.first) or not events.endswith(form.last):
            return None
        if form.inner:
            return self._read_padded(form, events[form.varies].split(form.between))
        # Strings hold neither line breaks nor quotation marks: what can be read as one text each is one event each.
        try:
            if form.between not in events:
                # One, as most come. Of one that is shorter than the form, whose two halves overlap in it, no string is left.
                text = decode_text(events[form.quoted])
                return Run(self._made, [events[form.varies]], text) if text or self.blank else None
            spelled = events[form.varies].split(form.between)
            texts = _texts(spelled)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if len(texts) != len(spelled) or not (self.blank or all(texts)):
            return None
        return Run(self._made, spelled, "".join(texts))

    def _read_padded(self, form: Form, spelled: list[bytes]) -> Run | None:
        inner = form.inner
        said: list[bytes] = []
        for each in spelled:
            text, found, padding = each.partition(inner)
            if not found or (padding and not padding.isalnum()):
                return None
            said.append(text)
        # Of a text that holds what stands behind texts, half would be left here, and the quotation mark behind it is no end.
        try:
            texts = _texts(said)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if len(texts) != len(said) or not (self.blank or all(texts)):
            return None
        return Run(self._made, spelled if self._made is form else said, "".join(texts))

    def scan(self, payloads: Sequence[bytes], start: int) -> tuple[Chunk, int] | None:
        """The run that begins at `start`, of one chunk or more, and where it ends; None where none begins there."""
        form = self._came
        if form is None or not payloads[start].startswith(form.before):
            return None
        before, after = form.before, form.after
        end = min(len(payloads), start + _MOST)
        while not ((last := payloads[end - 1]).startswith(before) and last.endswith(after)):
            end -= 1
            if end == start:
                return None
        run = self.read(b"data: %b\n\n" % b"\n\ndata: ".join(payloads[start:end]))
        if run is None and end > start + 1:
            # Something else stands between them; before it stands at least this one.
            end = start + 1
            run = self.read(b"data: %b\n\n" % payloads[start])
        if run is None or len(run.spelled) != end - start:
            return None
        known, made = self._known, run.form
        said = [ChunkChoice(0, Delta(content=run.text))]
        # For whoever looks at one chunk after the other, a run is one chunk that says all of it.
        spelled = run.spelled[0]
        if end > start + 1:
            padding = spelled[spelled.index(made.inner) :] if made.inner else b""
            spelled = _encode(run.text)[1:-1] + padding
        fields = ChunkFields(known.id, known.model, said, created=known.created)
        return Chunk(made.before + spelled + made.after, fields, run), end


def _texts(spelled: list[bytes]) -> list[str]:
    """Texts as they stand between quotation marks, read; as many as there are, or else they were not one each.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: something else stands there.
    """
    joined = b'","'.join(spelled)
    if b'\\","' in joined:
        # A quotation mark that seems to end a text and does not would let half a text pass as one.
        return [decode_text(b'"%b"' % each) for each in spelled]
    return _decode_texts(b'["%b"]' % joined)


def form_of(data: bytes) -> Form | None:
    """What stands around the text of a chunk that says it in one place; None where that cannot be told."""
    found = _TEXT.search(data)
    if found is None or data.count(b'"content":') != 1 or b"\n" in data or b"\r" in data:
        return None
    begin, end = found.span(1)
    padding = _PADDING.search(data, end)
    if padding is None:
        return Form(data[:begin], data[end:])
    return Form(data[:begin], data[padding.end(1) :], data[end : padding.start(1)])
