"""What stands between a turn that has private data and a backend: the call with placeholders, the answer with the values.

Knows calls, answers and chunks. What is private, `security/masking/` knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.backends.backend import ModelCall
from gateway.chat.answer import Answer
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.normalise import read_answer
from gateway.errors import InvalidRequest
from gateway.ids import new_call_id
from gateway.security.masking.messages import Conversation
from gateway.security.masking.placeholders import COPIED_BYTES, OPENING
from gateway.security.masking.unmasking import Unmasker, unmask

_decode = msgspec.json.decode
_encode = msgspec.json.encode
_MARK: Final = OPENING[0]
# A call with more than this is looked through in a thread.
_HEAVY_BYTES: Final = 16_000
# Fields of a message or delta that are texts.
_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")


async def veiled(call: ModelCall, backend: str) -> tuple[ModelCall, Veil | None]:
    """The call as this backend may see it, and what puts the values back into its answer; None where it sees everything.

    Raises:
        InvalidRequest: the client's words hold what no such backend may see.
    """
    private = call.private
    if private is None or private.masking.exempts(backend):
        return call, None
    if _size(call) > _HEAVY_BYTES:
        return await asyncio.to_thread(masked_call, call, private)
    return masked_call(call, private)


def masked_call(call: ModelCall, private: Conversation) -> tuple[ModelCall, Veil | None]:
    """The same for a backend that may see nothing; takes its time.

    Raises:
        InvalidRequest: as `veiled`.
    """
    try:
        return _masked(call, private)
    except RecursionError as error:
        raise InvalidRequest("The request is nested too deeply to be looked through for private data.") from error


def _masked(call: ModelCall, private: Conversation) -> tuple[ModelCall, Veil | None]:
    if not private.learn(call.messages, call.fields):
        return call, None
    masking = private.masking
    if masking.mode == "block" and (kinds := private.refused(call.messages, call.fields)):
        raise InvalidRequest(
            f"The request holds private data ({', '.join(sorted(kinds))}), which may not be sent to this model.",
            param="messages",
        )
    masked = msgspec.structs.replace(
        call, messages=private.masked(call.messages), fields=private.masked_fields(call.fields)
    )
    return masked, Veil(masking.values, in_json=_asks_for_json(call)) if masking.values else None


def _asks_for_json(call: ModelCall) -> bool:
    """Whether the answer's text is to be JSON: then values are written as they stand there."""
    asked = call.fields.get("response_format")
    return asked is not None and b'"json_' in bytes(asked)


def _size(call: ModelCall) -> int:
    return sum(len(message.wire or b"") for message in call.messages)


class Veil:
    """Puts values back into one answer.

    Args:
        values: by placeholder.
        in_json: whether the answer's text is JSON; arguments always are.
    """

    def __init__(self, values: Mapping[str, str], *, in_json: bool = False) -> None:
        self._values = values
        self._in_json = in_json
        self._texts: dict[tuple[int, str, int], Unmasker] = {}
        self._holding = False

    def answer(self, answer: Answer) -> Answer:
        """A whole answer."""
        if COPIED_BYTES.search(answer.body) is None and b"u005" not in answer.body:
            return answer
        top = _decode(answer.body)
        for choice in top.get("choices") or ():
            if isinstance(choice.get("message"), dict):
                choice["message"] = self._value(choice["message"])
        return read_answer(_encode(top), new_call_id)

    def feed(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """What arrived together, with what was held back before it and without what is held back now; may be empty."""
        if not self._holding and not any(map(_is_marked, chunks)):
            return chunks
        out: list[Chunk] = []
        for chunk in chunks:
            if self._holding or _is_marked(chunk):
                for one in chunk.singles:
                    out += self._shown(one) if self._holding or _is_marked(one) else [one]
            else:
                out.append(chunk)
        return out

    def _shown(self, chunk: Chunk) -> list[Chunk]:
        top = _decode(chunk.data)
        before: list[Chunk] = []
        says = bool(top.get("usage"))
        for position, choice in enumerate(top.get("choices") or ()):
            index = choice.get("index") or position
            delta = choice.get("delta") or {}
            ends = bool(choice.get("finish_reason"))
            fed: set[tuple[int, str, int]] = set()
            for name in _TEXTS:
                if isinstance(delta.get(name), str) and delta[name]:
                    in_json = self._in_json and name == "content"
                    delta[name] = self._feed(fed, (index, name, 0), delta[name], in_json=in_json, last=ends)
                elif isinstance(delta.get(name), list):
                    delta[name] = self._value(delta[name])
            for place, call in enumerate(delta.get("tool_calls") or ()):
                self._call(fed, index, call, place, last=ends)
            if isinstance(function := delta.get("function_call"), dict) and isinstance(function.get("arguments"), str):
                function["arguments"] = self._feed(
                    fed, (index, "function_call", 0), function["arguments"], in_json=True, last=ends
                )
            for key, text in self._texts.items():
                # What was held back of another part comes before what follows it.
                if key[0] == index and text.held and (ends or (fed and key not in fed)):
                    before.append(_piece(top, key, text.end()))
            says = says or ends or any(value not in (None, "", []) for value in delta.values())
        self._holding = any(text.held for text in self._texts.values())
        if not says:
            return before
        return [*before, decode_chunk(_encode(top))]

    def _call(self, fed: set[tuple[int, str, int]], index: int, call: Any, place: int, *, last: bool) -> None:
        if not isinstance(call, dict):
            return
        said = call.get("index")
        number = said if isinstance(said, int) else place
        for name, field, in_json in (("function", "arguments", True), ("custom", "input", False)):
            part = call.get(name)
            if not isinstance(part, dict):
                continue
            if isinstance(part.get(field), str):
                part[field] = self._feed(fed, (index, name, number), part[field], in_json=in_json, last=last)
            elif part.get(field) is not None:
                part[field] = self._value(part[field])

    def _feed(
        self,
        fed: set[tuple[int, str, int]],
        key: tuple[int, str, int],
        piece: str,
        *,
        in_json: bool = False,
        last: bool = False,
    ) -> str:
        fed.add(key)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = Unmasker(self._values, in_json=in_json)
        shown = text.feed(piece)
        return shown + text.end() if last else shown

    def _value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return unmask(value, self._values, in_json=key == "arguments" or (self._in_json and key == "content"))
        if isinstance(value, dict):
            return {name: self._value(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self._value(item) for item in value]
        return value


def _is_marked(chunk: Chunk) -> bool:
    """Whether a placeholder may begin in it."""
    for choice in chunk.fields.choices or ():
        delta = choice.delta
        if delta is None:
            continue
        if delta.content and (not isinstance(delta.content, str) or _MARK in delta.content):
            return True
        if delta.tool_calls is not None or delta.function_call is not None:
            return True
        for text in (delta.reasoning_content, delta.reasoning, delta.refusal):
            if text and _MARK in text:
                return True
    return False


def _piece(top: Mapping[str, Any], key: tuple[int, str, int], text: str) -> Chunk:
    """A chunk like that one with a piece of one text alone."""
    index, name, number = key
    delta: dict[str, Any]
    if name == "function_call":
        delta = {"function_call": {"arguments": text}}
    elif name in {"function", "custom"}:
        field = "arguments" if name == "function" else "input"
        delta = {"tool_calls": [{"index": number, name: {field: text}}]}
    else:
        delta = {name: text}
    made = {name: value for name, value in top.items() if name not in {"choices", "usage"}}
    made["choices"] = [{"index": index, "delta": delta, "finish_reason": None}]
    return decode_chunk(_encode(made))
