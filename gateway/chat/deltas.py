"""Pieces of a streamed answer put together again.

Pure. Knows the ways servers cut tool calls (by index, by order, whole, name repeated, id missing); does not know who runs
the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from gateway.chat.blocks import Block, Message, Reasoning, Refusal, Text, ToolCall
from gateway.chat.chunk import Delta, TextName, ToolCallDelta
from gateway.errors import UpstreamBroken

_encode = msgspec.json.Encoder().encode


# Nobody runs as many at once; a model that has lost itself writes them without end.
MOST_CALLS = 128


class CallPiece(msgspec.Struct):
    """What one delta added to a call. `first` marks the piece that carries id and name, once per call."""

    position: int
    first: bool
    id: str
    name: str
    fragment: str
    custom: bool = False


class _OpenCall:
    __slots__ = ("arguments", "custom", "id", "index", "name", "position", "said_id", "told")

    def __init__(self, index: int | None, call_id: str, said_id: str) -> None:
        self.index = index
        self.id = call_id
        self.said_id = said_id
        self.name = ""
        self.custom = False
        self.arguments: list[str] = []
        self.position: int | None = None
        self.told = False


class CallTracker:
    """Sorts fragments into calls.

    A fragment belongs to the call of its index; without index, to the call of its id; without both, to the latest call,
    unless it names a function while the latest call is complete. An index whose fragment brings another id and a name
    starts another call: some servers send every call as index 0. Names are taken once, ids made where none came.

    Args:
        new_id: makes a call id.
        taken: ids that name another call already; a call that comes under one gets a new id.
        holding: keep back arguments that may come to nothing (blank, `null`) until more is known; `filled` then says them.
    """

    __slots__ = ("_calls", "_holding", "_ids", "_named", "_new_id", "_taken")

    def __init__(self, new_id: Callable[[], str], taken: Collection[str] = (), *, holding: bool = False) -> None:
        self._calls: list[_OpenCall] = []
        self._named: list[_OpenCall] = []
        self._ids: set[str] = set()
        self._new_id = new_id
        self._taken = taken
        self._holding = holding

    def add(self, delta: ToolCallDelta) -> CallPiece | None:
        """Take one fragment in; None while the call's name is not known yet.

        Raises:
            UpstreamBroken: it begins a call more than an answer may have.
        """
        raw: Any
        if delta.custom is not None:
            name, raw = delta.custom.name or "", delta.custom.input
        else:
            function = delta.function
            name, raw = ((function.name or "") if function else "", function.arguments if function else None)
        call = self._find(delta, name)
        if call.position is None:  # once somebody was told whose call it is, that does not change
            call.custom = call.custom or delta.custom is not None
        if not call.name:
            call.name = name
        fragment = raw if isinstance(raw, str) else "" if raw is None else _encode(raw).decode()
        call.arguments.append(fragment)
        if not call.name:
            return None
        first = call.position is None
        if call.position is None:
            call.position = len(self._named)
            self._named.append(call)
            fragment = "".join(call.arguments)
        if self._holding and not call.told and not call.custom:
            fragment = "".join(call.arguments)
            if "null".startswith(fragment.strip()):
                fragment = ""
            else:
                call.told = True
        return CallPiece(call.position, first, call.id, call.name, fragment, call.custom)

    def filled(self) -> list[CallPiece]:
        """What was kept back of arguments, now that no more will come: `{}` where the model wrote none, as whole answers have it."""
        late = [call for call in self._named if not call.told and not call.custom]
        pieces: list[CallPiece] = []
        for call in late:
            call.told = True
            text = _arguments("".join(call.arguments))
            call.arguments[:] = [text]
            pieces.append(CallPiece(call.position or 0, False, call.id, call.name, text, call.custom))
        return pieces

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, in the order their names came; blank arguments and `null` read `{}`."""
        return tuple(made_call(call.id, call.name, "".join(call.arguments), custom=call.custom) for call in self._named)

    def _find(self, delta: ToolCallDelta, name: str) -> _OpenCall:
        if delta.index is not None:
            known = next((call for call in reversed(self._calls) if call.index == delta.index), None)
            if known is None or (name and known.name and self._is_another(known, delta)):
                return self._open(delta)
            known.said_id = known.said_id or delta.id or ""
            return known
        if delta.id:
            return next((call for call in self._calls if call.said_id == delta.id), None) or self._open(delta)
        if self._calls:
            last = self._calls[-1]
            if not name or not last.name or (name == last.name and not _complete("".join(last.arguments))):
                return last
        return self._open(delta)

    def _is_another(self, known: _OpenCall, delta: ToolCallDelta) -> bool:
        """Whether a named fragment under a known index begins another call: by its id, or by being whole after a whole one."""
        if delta.id and known.said_id:
            return known.said_id != delta.id
        whole = delta.function.arguments if delta.function is not None else None
        return (
            isinstance(whole, str)
            and whole.startswith("{")
            and _complete(whole)
            and _complete("".join(known.arguments))
        )

    def _open(self, delta: ToolCallDelta) -> _OpenCall:
        if len(self._calls) == MOST_CALLS:
            raise UpstreamBroken(f"The model asked for more than {MOST_CALLS} tool calls in one answer.")
        said_id = delta.id or ""
        unusable = not said_id or said_id in self._ids or said_id in self._taken
        call_id = self._new_id() if unusable else said_id
        self._ids.add(call_id)
        call = _OpenCall(delta.index, call_id, said_id)
        self._calls.append(call)
        return call


class Assembly:
    """One choice of a streamed answer, put together. Takes what a `CallTracker` takes, for its calls."""

    __slots__ = ("_holding", "_new_id", "_taken", "_tracker", "finish_reason", "reasoning", "refusal", "text")

    def __init__(self, new_id: Callable[[], str], taken: Collection[str] = (), *, holding: bool = False) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        # Most answers call nothing.
        self._tracker: CallTracker | None = None
        self._new_id = new_id
        self._taken = taken
        self._holding = holding
        self.finish_reason: str | None = None

    def add(self, delta: Delta, finish_reason: str | None) -> list[CallPiece]:
        """Take one delta in; the pieces of tool calls it brought."""
        content = delta.content
        if content:
            self.text.append(content if isinstance(content, str) else content_text(content))
        if thought := delta.reasoning_content or delta.reasoning:
            self.reasoning.append(thought)
        if delta.refusal:
            self.refusal.append(delta.refusal)
        if finish_reason and self.finish_reason is None:
            self.finish_reason = finish_reason
        if delta.tool_calls is None and delta.function_call is None:
            return []
        tracker = self._tracker
        if tracker is None:
            tracker = self._tracker = CallTracker(self._new_id, self._taken, holding=self._holding)
        return [piece for call in calls_of(delta) if (piece := tracker.add(call)) is not None]

    def filled(self) -> list[CallPiece]:
        """See `CallTracker.filled`."""
        return [] if self._tracker is None else self._tracker.filled()

    def calls(self) -> tuple[ToolCall, ...]:
        """See `CallTracker.calls`."""
        return () if self._tracker is None else self._tracker.calls()

    def taking(self, name: TextName) -> Callable[[str], None]:
        """What takes in text that came in this field of a delta."""
        return self.text.append if name == "content" else self.reasoning.append

    def message(self) -> Message:
        """The assistant message so far."""
        blocks: list[Block] = []
        if self.reasoning:
            blocks.append(Reasoning("".join(self.reasoning)))
        if self.text:
            blocks.append(Text("".join(self.text)))
        if self.refusal:
            blocks.append(Refusal("".join(self.refusal)))
        if self._tracker is not None:
            blocks.extend(self._tracker.calls())
        return Message("assistant", tuple(blocks))


def calls_of(delta: Delta) -> Sequence[ToolCallDelta]:
    """The fragments of calls in a delta; the one call of the older form is a call like any other."""
    if delta.tool_calls:
        return delta.tool_calls
    return () if delta.function_call is None else (ToolCallDelta(0, function=delta.function_call),)


def encode_piece(piece: CallPiece) -> dict[str, Any]:
    """A fragment of a call as it stands in a delta."""
    kind, text = ("custom", "input") if piece.custom else ("function", "arguments")
    if piece.first:
        said = {"name": piece.name, text: piece.fragment}
        return {"index": piece.position, "id": piece.id, "type": kind, kind: said}
    return {"index": piece.position, kind: {text: piece.fragment}}


def made_call(call_id: str, name: str, arguments: str, *, custom: bool = False) -> ToolCall:
    """A whole call; its arguments are `{}` where the model wrote none, which strict servers want to see."""
    return ToolCall(call_id, name, arguments if custom else _arguments(arguments), custom)


def _arguments(text: str) -> str:
    return "{}" if text.strip() in ("", "null") else text


def content_text(parts: list[Any]) -> str:
    """The text of content that came as parts."""
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def content_thought(parts: list[Any]) -> str:
    """The reasoning in content that came as parts: some servers put it there, as text or as parts again."""
    thoughts: list[str] = []
    for part in parts:
        if isinstance(part, dict) and part.get("type") in ("thinking", "reasoning"):
            inner = part.get("thinking", part.get("reasoning"))
            thoughts.append(inner if isinstance(inner, str) else content_text(inner) if isinstance(inner, list) else "")
    return "".join(thoughts)


def _complete(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
