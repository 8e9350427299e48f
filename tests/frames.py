"""What a scripted upstream says in a stream: chunks in a short notation, and the ways to frame them as SSE.

Pure bytes. Does not know sockets, timing or requests: that is `upstream.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

STREAM_ID: Final = "chatcmpl-upstream"
MODEL: Final = "upstream-model"
CREATED: Final = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream. `payload` is a JSON object, or text that is not JSON such as `[DONE]`."""

    payload: dict[str, Any] | str


DONE: Final = Frame("[DONE]")


def chunk(**fields: Any) -> Frame:
    """A chunk with the usual id, model and time, each replaceable by name."""
    usual = {"id": STREAM_ID, "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}
    return Frame(usual | fields)


def d(delta: dict[str, Any], *, index: int = 0) -> Frame:
    """A chunk that carries this delta, its finish reason null."""
    return chunk(choices=[{"index": index, "delta": delta, "finish_reason": None}])


def f(reason: str, *, index: int = 0) -> Frame:
    """A chunk with an empty delta and this finish reason."""
    return chunk(choices=[{"index": index, "delta": {}, "finish_reason": reason}])


def u(prompt: int, completion: int) -> Frame:
    """A chunk without choices that carries usage, in tokens."""
    return chunk(choices=[], usage=usage(prompt, completion))


def tc(index: int, *, id: str | None = None, name: str | None = None, arguments: str | None = None) -> Frame:  # noqa: A002
    """A chunk with a fragment of the tool call at `index`; what isn't named is absent."""
    call: dict[str, Any] = {"index": index}
    if id is not None:
        call |= {"id": id, "type": "function"}
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    if function:
        call["function"] = function
    return d({"tool_calls": [call]})


def words(text: str) -> list[Frame]:
    """A role chunk, then one content chunk a word, spaces kept."""
    parts = [part + " " for part in text.split(" ")]
    parts[-1] = parts[-1][:-1]
    return [d({"role": "assistant", "content": ""}), *(d({"content": part}) for part in parts)]


def usage(prompt: int, completion: int) -> dict[str, int]:
    """The usage object of an answer, in tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


@dataclass(frozen=True, slots=True)
class Framing:
    """How events are written as Server-Sent Events; every combination is valid by the standard.

    Attributes:
        newline: what ends a line: LF, CRLF or CR.
        space: whether a space follows `data:`.
        bom: whether a byte order mark precedes the first event.
        comments: whether a comment line precedes each event.
        fields: whether each event has `event`, `id` and `retry` fields beside its data.
        multi_line: whether a JSON object spans several `data` lines.
    """

    newline: bytes = b"\n"
    space: bool = True
    bom: bool = False
    comments: bool = False
    fields: bool = False
    multi_line: bool = False

    def event(self, frame: Frame, *, first: bool = False) -> bytes:
        """The bytes of one event, its closing empty line included."""
        if isinstance(frame.payload, str):
            text = frame.payload
        else:
            text = json.dumps(frame.payload, ensure_ascii=False, indent=1 if self.multi_line else None)
        field = b"data: " if self.space else b"data:"
        lines = [field + line for line in text.encode().split(b"\n")]
        if self.fields:
            lines = [b"event: message", b"id: 1", b"retry: 1000", *lines]
        if self.comments:
            lines = [b": keep-alive", *lines]
        bom = b"\xef\xbb\xbf" if self.bom and first else b""
        return bom + self.newline.join([*lines, b"", b""])


LF: Final = Framing()
CRLF: Final = Framing(newline=b"\r\n")
CR: Final = Framing(newline=b"\r")
NO_SPACE: Final = Framing(space=False)
MULTI_LINE: Final = Framing(multi_line=True)
BOM: Final = Framing(bom=True)
COMMENTS: Final = Framing(comments=True)
FIELDS: Final = Framing(fields=True)

FRAMINGS: Final[dict[str, Framing]] = {
    "LF": LF,
    "CRLF": CRLF,
    "CR": CR,
    "no space": NO_SPACE,
    "multi-line data": MULTI_LINE,
    "BOM": BOM,
    "comments": COMMENTS,
    "fields": FIELDS,
}
