"""One chunk of a streamed answer, as upstreams send it and as the gateway passes it on.

Pure values and one decoder. Lenient: what one server or another gets wrong (null choices, calls without index, arguments
as objects) is read, not refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from gateway.chat.usage import WireUsage


class FunctionDelta(msgspec.Struct, gc=False):
    """A fragment of a call. `arguments` may come whole, as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None


class CustomDelta(msgspec.Struct, gc=False):
    """A fragment of a call of a custom tool, whose input is free text."""

    name: str | None = None
    input: str | None = None


class ToolCallDelta(msgspec.Struct, gc=False):
    """A fragment of one of the calls of an answer; `index` says of which, where the server says it."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None


class Delta(msgspec.Struct, gc=False):
    """What is new. Fields the gateway does not act upon stay in the chunk's `data`."""

    role: str | None = None
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChunkChoice(msgspec.Struct, gc=False):
    """One of the answers being streamed; `n > 1` makes several."""

    index: int | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class ChunkFields(msgspec.Struct, gc=False):
    """What the gateway reads of a chunk."""

    id: str | None = None
    model: str | None = None
    choices: list[ChunkChoice] | None = None
    usage: WireUsage | None = None
    error: Any = None
    created: float | None = None
    # An error that is a whole event of its own, as vLLM and others write it.
    message: Any = None
    detail: Any = None
    errors: Any = None
    type: Any = None

    @property
    def failed(self) -> bool:
        """Whether this is an error instead of a chunk, in whichever form; what it says stands in its JSON."""
        if self.choices is not None:
            return bool(self.error)  # beside choices an empty one says that there is none
        if self.error is not None or self.errors or self.type == "error":
            return True
        return isinstance(self.message, str) or isinstance(self.detail, (str, list))


TextName = Literal["content", "reasoning_content", "reasoning"]


class Form(msgspec.Struct, frozen=True):
    """What chunks have in common that bring nothing but more text of the only choice, or more of its thoughts: the bytes around it.

    Some servers pad each chunk, so that its size does not tell the text's; what stands between text and padding is common too.

    Attributes:
        before: up to the text, its quotation mark included.
        after: what stands behind text and padding.
        inner: from the text's other quotation mark on up to the padding; empty where there is none.
        name: the delta's field that the text is in.
    """

    before: bytes
    after: bytes
    inner: bytes = b""
    name: TextName = "content"


class Run(msgspec.Struct, frozen=True, gc=False):
    """Chunks of one form that arrived together: what each has of its own, as it stands there, and all their texts read and joined."""

    form: Form
    spelled: list[bytes]
    text: str


class Chunk(msgspec.Struct, gc=False):
    """One chunk: the JSON as it came, and what was read of it.

    Or a run of chunks as if it were one that says all their texts: so it is read, and so it stands in `data`. `singles` and
    `payloads` are the chunks as they came.
    """

    data: bytes
    fields: ChunkFields
    run: Run | None = None

    @property
    def choices(self) -> list[ChunkChoice]:
        """The choices; empty where the server sent none or null."""
        return self.fields.choices or []

    @property
    def singles(self) -> Sequence[Chunk]:
        """The chunks of a run, each by itself; any other chunk alone."""
        return (self,) if self.run is None else decode_chunks(self.payloads)

    @property
    def payloads(self) -> list[bytes]:
        """The JSON of each chunk of a run; of any other chunk its own."""
        if self.run is None:
            return [self.data]
        form = self.run.form
        return [form.before + spelled + form.after for spelled in self.run.spelled]


_decode = msgspec.json.Decoder(ChunkFields).decode
_decode_all = msgspec.json.Decoder(list[ChunkFields]).decode


def decode_chunk(data: bytes) -> Chunk:
    """Read one chunk's JSON.

    Raises:
        msgspec.DecodeError: it is not JSON, or nothing like a chunk.
    """
    try:
        return Chunk(data, _decode(data))
    except RecursionError as error:
        raise msgspec.DecodeError("an event is nested too deeply") from error


def decode_chunks(payloads: Sequence[bytes]) -> list[Chunk]:
    """Read chunks that arrived together, as one JSON list: a third of what it costs one by one.

    Raises:
        msgspec.DecodeError: one of them is not JSON, or nothing like a chunk; `decode_chunk` says which.
    """
    if len(payloads) == 1:
        return [decode_chunk(payloads[0])]
    try:
        fields = _decode_all(b"[" + b",".join(payloads) + b"]")
    except RecursionError as error:
        raise msgspec.DecodeError("an event is nested too deeply") from error
    if len(fields) != len(payloads):
        raise msgspec.DecodeError("an event is not exactly one JSON object")
    return list(map(Chunk, payloads, fields))
