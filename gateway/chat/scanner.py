"""Chunks that differ from one before them in nothing but their text, recognised by their bytes: one by one, or whole runs.

Pure. Most of a stream says everything around each token anew, byte for byte. What was found out about one such chunk holds for
all of them, so that only the text has to be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import and_, itemgetter
from typing import Final

import msgspec

from gateway.chat.chunk import Chunk, ChunkChoice, ChunkFields, Delta, Form, Run

_TEXT = re.compile(rb'"content":\s*"((?:[^"\\]|\\.)*+)"')
_PADDING = re.compile(rb'"obfuscation":\s*"([A-Za-z0-9]*)"')

# How many chunks are looked at as one run, and twice as many behind each run that was as long: of many with something else between
# them, each look would go through all that follow.
_REACH: Final = 128

decode_text = msgspec.json.Decoder(str).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_starts, _ends = bytes.startswith, bytes.endswith
_encode = msgspec.json.Encoder().encode


class Events:
    """How whole events of one line each stand in what arrives, each a chunk of one form.

    Attributes:
        first: what stands before the text of the first.
        between: what stands between two.
        last: what stands behind the last.
        least: the size of one without a text.
        varies: where everything stands that differs.
        quoted: the same with a quotation mark on both sides, where nothing is padded.
    """

    __slots__ = ("between", "first", "last", "least", "quoted", "varies")

    def __init__(self, form: Form) -> None:
        self.first = b"data: " + form.before
        self.last = form.after + b"\n\n"
        self.between = self.last + self.first
        begins, ends = len(self.first), len(self.last)
        self.least = begins + len(form.inner) + ends
        self.varies = slice(begins, -ends)
        self.quoted = slice(begins - 1, 1 - ends)


class RunScanner:
    """Knows one form of chunk and what stands for it on the other side; reads a run of such chunks as one.

    A JSON string holds no unescaped quotation mark, so `"content":` is a name wherever it stands; it has to stand once.

    Args:
        blank: whether a chunk that says nothing belongs to a run too.

    Attributes:
        blank: as above.
        settled: whether it is known by now how such chunks look here, or that it will not be.
    """

    __slots__ = ("_came", "_cut", "_events", "_known", "_least", "_made", "_reach", "blank", "settled")

    def __init__(self, *, blank: bool = True) -> None:
        self.blank = blank
        self._came: Form | None = None
        # Known where that is: what stands for it, how large it is without a text, what takes of a chunk what it has of its own.
        self._made: Form
        self._least: int
        self._cut: Callable[[bytes], bytes]
        # Found out once it is asked for.
        self._events: Events | None = None
        self._known = ChunkFields()
        self._reach = _REACH
        self.settled = False

    @property
    def alone(self) -> tuple[Events, Form] | None:
        """How a chunk that says text comes, and what stands for it on the other side; None where unknown, or where it is padded."""
        came = self._came
        return None if came is None or came.inner else (self._events_of(came), self._made)

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
            self._came, self._made, self._events = form, shown, None
            begins, ends = len(form.before), len(form.after)
            self._least = begins + len(form.inner) + ends
            self._cut = itemgetter(slice(begins, -ends))
        self._known = made.fields

    def read(self, events: bytes) -> Run | None:
        """The run that these bytes are; None where they are anything but whole events of the form, one line each."""
        if self._came is None:
            return None
        known = self._events_of(self._came)
        if not events.startswith(known.first) or not events.endswith(known.last) or len(events) < known.least:
            return None
        return self._run(self._came, events[known.varies].split(known.between))

    def _events_of(self, form: Form) -> Events:
        if self._events is None:
            self._events = Events(form)
        return self._events

    def scan(self, payloads: Sequence[bytes], start: int) -> tuple[Chunk, int] | None:
        """The run that begins at `start`, of one chunk or more, and where it ends; None where none begins there."""
        form = self._came
        if form is None or not payloads[start].startswith(form.before):
            return None
        looked = payloads[start : start + self._reach]
        fits = [*map(and_, map(_starts, looked, repeat(form.before)), map(_ends, looked, repeat(form.after)))]
        if not all(fits):
            looked = looked[: fits.index(False)]
        run = self._of(form, looked)
        reach, self._reach = self._reach, _REACH
        if run is None and len(looked) > 1:
            # Something else stands between them; before it stands at least this one.
            run = self._of(form, looked[:1])
        if run is None:
            return None
        known, made = self._known, run.form
        said = [ChunkChoice(0, Delta(content=run.text))]
        # For whoever looks at one chunk after the other, a run is one chunk that says all of it.
        spelled, count = run.spelled[0], len(run.spelled)
        if count == reach:
            self._reach = 2 * reach
        if count > 1:
            padding = spelled[spelled.index(made.inner) :] if made.inner else b""
            spelled = _encode(run.text)[1:-1] + padding
        fields = ChunkFields(known.id, known.model, said, created=known.created)
        return Chunk(made.before + spelled + made.after, fields, run), start + count

    def _of(self, form: Form, payloads: Sequence[bytes]) -> Run | None:
        """The run that chunks are which begin and end as the form does."""
        # Where the two halves of one that is shorter overlap, nothing is between them.
        if not payloads or min(map(len, payloads)) < self._least:
            return None
        return self._run(form, [*map(self._cut, payloads)])

    def _run(self, form: Form, spelled: list[bytes]) -> Run | None:
        """The run of chunks of which this is what they have of their own: a text each, and what it is padded with."""
        said = spelled
        if form.inner:
            said = []
            for each in spelled:
                text, found, padding = each.partition(form.inner)
                if not found or (padding and not padding.isalnum()):
                    return None
                said.append(text)
        # Strings hold neither line breaks nor quotation marks: what can be read as one text each is one chunk each. Of a text that
        # holds what stands before the padding, half would be left here, and the quotation mark behind it is no end.
        try:
            texts = _texts(said)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if len(texts) != len(said) or not (self.blank or all(texts)):
            return None
        return Run(self._made, spelled if self._made is form else said, "".join(texts))


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
