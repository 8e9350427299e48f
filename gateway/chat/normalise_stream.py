"""A loosely compatible server's stream, turned into what OpenAI's schemas require.

Pure. The counterpart of `normalise.py` for chunks; chunks that only bring more text are recognised by `scanner.py` and not
decoded again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec

from gateway.chat.chunk import Chunk, ChunkChoice, ChunkFields, Delta, TextName, ToolCallDelta, decode_chunk
from gateway.chat.deltas import CallPiece, CallTracker, calls_of, content_text, content_thought, encode_piece
from gateway.chat.normalise import KEPT, failure_of, finish_reason, logprobs, marks, said_usage, whole
from gateway.chat.scanner import RunScanner

_TEXTS: Final[dict[str, TextName]] = {name: name for name in get_args(TextName)}

_encode = msgspec.json.Encoder().encode


class StreamNormaliser:
    """Turns one stream's chunks into well-formed ones.

    One id and model, role once per choice, indexes from 0, ids and names once, arguments as text, one finish reason per
    choice, usage never inside a chunk's `data` (it stays in `fields`).

    Args:
        new_id: makes a call id.

    Attributes:
        runs: recognises the chunks that only bring more text.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._trackers: dict[int, CallTracker] = {}
        self._role: set[int] = set()
        self._finished: set[int] = set()
        # A chunk that says nothing is left out, and so belongs to no run.
        self.runs = RunScanner(blank=False)
        self._created = 0
        self._id = ""
        self._model = ""

    def feed(self, chunk: Chunk) -> Chunk:
        """The chunk as OpenAI's schema wants it; one without choices keeps only its usage.

        Raises:
            UpstreamBroken: it says that the answer failed, or asks for too many calls.
        """
        raw = msgspec.json.decode(chunk.data)
        if any(choice.delta is None for choice in chunk.choices) and _moved(raw):
            chunk = decode_chunk(_encode(raw))
        self._created = self._created or whole(raw.get("created"))
        self._id = self._id or chunk.fields.id or "chatcmpl-0"
        self._model = self._model or chunk.fields.model or "-"
        sources = raw.get("choices") or []
        choices: list[dict[str, Any]] = []
        fields: list[ChunkChoice] = []
        for position, choice in enumerate(chunk.choices):
            index = choice.index if choice.index is not None else position
            source = sources[position] if isinstance(sources[position], dict) else {}
            built = self._choice(index, choice, source)
            if built is not None:
                choices.append(built[0])
                fields.append(built[1])
        out: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        out |= marks(raw)
        usage = said_usage(raw)
        made = Chunk(_encode(out), ChunkFields(self._id, self._model, fields, usage, None, self._created))
        if (
            chunk.fields.usage is None
            and usage is None
            and len(choices) == 1
            and len(choices[0]["delta"]) == 1
            and (name := _TEXTS.get(*choices[0]["delta"])) is not None
        ):
            self._learn(chunk, made, name)
        return made

    def _learn(self, came: Chunk, made: Chunk, name: TextName) -> None:
        choice = made.choices[0]
        source = came.choices[0].delta
        if (
            choice.index == 0
            and choice.finish_reason is None
            and source is not None
            and isinstance(getattr(source, name), str)
        ):
            self.runs.learn_as(came.data, made, name)

    def _choice(
        self, index: int, choice: ChunkChoice, source: dict[str, Any]
    ) -> tuple[dict[str, Any], ChunkChoice] | None:
        if failed := failure_of(choice.finish_reason, source):
            raise failed
        delta = choice.delta or Delta()
        fragments = calls_of(delta)
        out, seen = _said(delta, source.get("delta"))
        if index not in self._role:
            self._role.add(index)
            seen.role = "assistant"
            out = {"role": "assistant", **({} if fragments else {"content": ""}), **out}
        pieces: list[CallPiece] = []
        if fragments:
            tracker = self._trackers.setdefault(index, CallTracker(self._new_id, holding=True))
            pieces = [piece for each in fragments if (piece := tracker.add(each)) is not None]
        reason: str | None = None
        if choice.finish_reason and index not in self._finished:
            self._finished.add(index)
            made = self._trackers.get(index)
            if made is not None:
                pieces += made.filled()
            reason = finish_reason(choice.finish_reason, has_calls=bool(made and made.calls()))
        if pieces:
            out["tool_calls"] = [encode_piece(piece) for piece in pieces]
            seen.tool_calls = [_delta(piece) for piece in pieces]
        likely = logprobs(source)
        # A token may have no text of its own: a character's first bytes have none.
        if not out and reason is None and not (likely and any(likely.values())):
            return None
        built = {"index": index, "delta": out, "logprobs": likely, "finish_reason": reason}
        return built, ChunkChoice(index, seen, reason)


def _moved(raw: dict[str, Any]) -> bool:
    """Put what a choice says in the place of a delta into one: a whole message, or the text of the older API."""
    moved = False
    for choice in raw["choices"]:
        if not isinstance(choice, dict) or isinstance(choice.get("delta"), dict):
            continue
        if isinstance(choice.get("message"), dict):
            choice["delta"], moved = choice.pop("message"), True
        elif isinstance(choice.get("text"), str):
            choice["delta"], moved = {"content": choice.pop("text")}, True
    return moved


def _said(delta: Delta, raw: Any) -> tuple[dict[str, Any], Delta]:
    """What a delta says besides role and calls: as it is written, and as it is read."""
    out: dict[str, Any] = {}
    parts = delta.content if isinstance(delta.content, list) else None
    text = content_text(parts) if parts is not None else delta.content
    thought = delta.reasoning_content
    seen = Delta(content=text or None, reasoning=delta.reasoning, refusal=delta.refusal)
    if text:
        out["content"] = text
    if delta.refusal:
        out["refusal"] = delta.refusal
    for name in KEPT:
        if isinstance(raw, dict) and raw.get(name):
            out[name] = raw[name]
    if parts and not (thought or delta.reasoning) and (thought := content_thought(parts)):
        out["reasoning_content"] = thought
    seen.reasoning_content = thought
    return out, seen


def _delta(piece: CallPiece) -> ToolCallDelta:
    return msgspec.convert(encode_piece(piece), ToolCallDelta)
