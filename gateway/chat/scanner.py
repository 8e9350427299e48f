"""Chunks that differ from one before them in nothing but their text, recognised by their bytes: one by one, or whole runs.

Pure. Most of a stream says everything around each token anew, byte for byte. What was found out about one such chunk holds for
all of them, so that only the text has to be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import and_, itemgetter
from typing import Final, get_args

import msgspec

from gateway.chat.chunk import Chunk, ChunkChoice, ChunkFields, Delta, Form, Run, TextName

# Where each text stands, and by what it is looked for.
_TEXTS: Final[dict[TextName, tuple[bytes, re.Pattern[bytes]]]] = {
    name: (b'"%b":' % name.encode(), re.compile(rb'"%b":\s*"((?:[^"\\]|\\.)*+)"' % name.encode()))
    for name in get_args(TextName)
}
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

    A model that thinks aloud says its thoughts in one form, and then its text in another: the form is what it was last. A JSON
    string holds no unescaped quotation mark, so `"content":` is a name wherever it stands; it has to stand once.

    Args:
        blank: whether a chunk that says nothing belongs to a run too.

    Attributes:
        blank: as above.
    """

    __slots__ = ("_came", "_cut", "_events", "_known", "_least", "_made", "_reach", "blank")

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

    @property
    def alone(self) -> tuple[Events, Form] | None:
        """How a chunk that says text comes, and what stands for it on the other side; None where unknown, or where it is padded."""
        came = self._came
        return None if came is None or came.inner else (self._events_of(came), self._made)

    @property
    def name(self) -> TextName:
        """The field that a chunk of the form says its text in."""
        return "content" if self._came is None else self._came.name

    def learn(self, chunk: Chunk) -> bool:
        """Take a chunk as the form to recognise, if it says text and nothing else; whether more such chunks will be recognised."""
        fields = chunk.fields
        if fields.choices is None or len(fields.choices) != 1 or fields.usage is not None:
            return False
        choice = fields.choices[0]
        if choice.delta is None or choice.index or choice.finish_reason is not None:
            return False
        name = _only_text(choice.delta)
        return name is not None and self.learn_as(chunk.data, chunk, name)

    def learn_as(self, came: bytes, made: Chunk, name: TextName = "content") -> bool:
        """Take a chunk that says text and nothing else as the form to recognise, and what was made of it. See `learn`."""
        form = form_of(came, name)
        shown = form if came is made.data else form_of(made.data, name)
        self._came = None
        if form is not None and shown is not None and (shown is form or not shown.inner):
            self._came, self._made, self._events = form, shown, None
            begins, ends = len(form.before), len(form.after)
            self._least = begins + len(form.inner) + ends
            self._cut = itemgetter(slice(begins, -ends))
        self._known = made.fields
        return self._came is not None

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
        said = Delta()
        setattr(said, made.name, run.text)
        # For whoever looks at one chunk after the other, a run is one chunk that says all of it.
        spelled, count = run.spelled[0], len(run.spelled)
        if count == reach:
            self._reach = 2 * reach
        if count > 1:
            padding = spelled[spelled.index(made.inner) :] if made.inner else b""
            spelled = _encode(run.text)[1:-1] + padding
        fields = ChunkFields(known.id, known.model, [ChunkChoice(0, said)], created=known.created)
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


def _only_text(delta: Delta) -> TextName | None:
    """The field of a delta that holds text, where all others hold nothing."""
    if isinstance(delta.content, str):
        return "content" if delta == Delta(content=delta.content) else None
    if delta.reasoning_content is not None:
        return "reasoning_content" if delta == Delta(reasoning_content=delta.reasoning_content) else None
    return "reasoning" if delta.reasoning is not None and delta == Delta(reasoning=delta.reasoning) else None


def form_of(data: bytes, name: TextName = "content") -> Form | None:
    """What stands around the text of a chunk that says it in one place; None where that cannot be told."""
    key, text = _TEXTS[name]
    found = text.search(data)
    if found is None or data.count(key) != 1 or b"\n" in data or b"\r" in data:
        return None
    begin, end = found.span(1)
    padding = _PADDING.search(data, end)
    if padding is None:
        return Form(data[:begin], data[end:], name=name)
    return Form(data[:begin], data[padding.end(1) :], data[end : padding.start(1)], name)
