"""What a client may see of a round while it streams.

Pure: chunks in, visible chunks out. Text passes as it came; registry tool calls, later roles, inner ends and unasked usage
stay inside. Does not know sockets or the wire of the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from gateway.backends.tap import Straight
from gateway.chat.answer import Choice
from gateway.chat.blocks import Message, Reasoning, Refusal
from gateway.chat.chunk import Chunk, ChunkChoice, ChunkFields, Delta, TextName
from gateway.chat.deltas import Assembly, CallPiece, encode_piece
from gateway.chat.normalise import finish_reason
from gateway.chat.usage import Usage
from gateway.tools.outcome import Outcome

_encode = msgspec.json.Encoder().encode
# What every choice of a chunk has.
_SHAPE: Final = frozenset({"index", "delta", "finish_reason"})
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Sink(Protocol):
    """Where a streamed answer goes: one implementation per API."""

    @property
    def started(self) -> bool:
        """Whether the client has seen anything of it."""
        ...

    async def relay(self, chunks: Sequence[Chunk]) -> None:
        """Send chunks that are visible, in order."""
        ...

    def straight(self) -> Straight | None:
        """What sends text behind what was relayed, without waiting; None where nothing may do so."""
        ...

    async def add(self, text: str) -> None:
        """Send text that the gateway itself has to say."""
        ...

    async def finish(self, reason: str | None, usage: Usage) -> None:
        """Send the finish reason (None: it was relayed already), usage where asked for, and the end mark."""
        ...


class StreamState(msgspec.Struct, eq=False):
    """What holds over all rounds of one stream.

    Attributes:
        roles: choices whose role was sent.
        finished: choices whose finish reason was sent.
        client_calls: how many client tool calls were sent.
        broken_off: what was sent of a round that did not come to its end, or None.
    """

    roles: set[int] = msgspec.field(default_factory=set)
    finished: set[int] = msgspec.field(default_factory=set)
    client_calls: int = 0
    broken_off: Message | None = None

    def copy(self) -> StreamState:
        """The state as it is now."""
        copied = StreamState()
        copied.restore(self)
        return copied

    def restore(self, before: StreamState | None) -> None:
        """Be as the other is; of what was not sent, nothing is left. Nothing happens without one."""
        if before is not None:
            self.roles, self.finished = set(before.roles), set(before.finished)
            self.client_calls = before.client_calls


class StreamedRound:
    """One round's view.

    Args:
        state: shared by the rounds of a stream.
        client_tools: names whose calls go to the client.
        guarded: whether registry tools are offered: then calls and ends are held back until it is clear whose they are.
        new_id: makes a call id.
        shown_round: this round's number where the client asked to see registry calls too, else None.

    Attributes:
        taken: ids that name another call already, to be filled before the chunk that brings one is fed.
        usage: what the upstream said of it, once it has.
    """

    __slots__ = (
        "_assemblies",
        "_client_tools",
        "_guarded",
        "_new_id",
        "_positions",
        "_shown_round",
        "_state",
        "taken",
        "usage",
    )

    def __init__(
        self,
        state: StreamState,
        client_tools: frozenset[str],
        *,
        guarded: bool,
        new_id: Callable[[], str],
        shown_round: int | None = None,
    ) -> None:
        self._state = state
        self._client_tools = client_tools
        self._guarded = guarded
        self._new_id = new_id
        self._shown_round = shown_round
        self.taken: set[str] = set()
        self._assemblies: dict[int, Assembly] = {0: Assembly(new_id, self.taken, holding=guarded)}
        self._positions: dict[int, int] = {}
        self.usage: Usage | None = None

    @property
    def finish_reason(self) -> str | None:
        """What the upstream gave as the first choice's end."""
        return self._assemblies[0].finish_reason

    def message(self) -> Message:
        """The first choice's message, put together."""
        return self._assemblies[0].message()

    def choices(self) -> tuple[Choice, ...]:
        """Every choice, put together."""
        return tuple(
            Choice(
                index,
                made := assembly.message(),
                finish_reason(assembly.finish_reason, has_calls=bool(made.tool_calls)),
            )
            for index, assembly in sorted(self._assemblies.items())
        )

    @property
    def calling(self) -> bool:
        """Whether the first choice asks for a call."""
        return bool(self._assemblies[0].calls())

    def straight(self) -> Callable[[TextName], Callable[[str], None]] | None:
        """What takes in text of the first choice that passes as it comes, by the field that says it; None before its role was sent."""
        return self._assemblies[0].taking if 0 in self._state.roles else None

    def feed(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Take in what arrived; what of it the client may see."""
        visible: list[Chunk] = []
        for chunk in chunks:
            if chunk.run is not None:
                if 0 in self._state.roles:
                    self._assemblies[0].taking(chunk.run.form.name)(chunk.run.text)
                    visible.append(chunk)
                else:
                    visible += self.feed(chunk.singles)
                continue
            said, choices = chunk.fields.usage, chunk.fields.choices
            if said is not None and not said.blank:
                self.usage = said.usage()
            if not choices:
                continue
            if len(choices) == 1 and said is None and self._passes(choices[0]):
                visible.append(chunk)
                continue
            visible += self._careful(chunk, choices)
        return visible

    def _passes(self, choice: ChunkChoice) -> bool:
        """Take in the only choice of a chunk, if that is as ordinary as most and passes as it came."""
        delta, reason, roles = choice.delta, choice.finish_reason, self._state.roles
        if delta is None or choice.index or delta.tool_calls is not None or delta.function_call is not None:
            return False
        assembly, opens = self._assemblies[0], delta.role is not None
        if opens or reason is not None or 0 not in roles:
            # The first of an answer, or the last.
            if self._guarded or opens is (0 in roles) or (opens and delta.role != "assistant"):
                return False
            if reason is not None:
                finished = self._state.finished
                if reason not in ("stop", "length") or 0 in finished or assembly.calls():
                    return False
                finished.add(0)
            roles.add(0)
        assembly.add(delta, reason)
        return True

    def _careful(self, chunk: Chunk, choices: list[ChunkChoice]) -> list[Chunk]:
        """Look at each choice; the chunk passes unchanged only if nothing in it has to be hidden or mended."""
        kept: list[dict[str, Any]] = []
        events: list[Chunk] = []
        # Usage rides on the last chunk alone, and only where it was asked for.
        unchanged = chunk.fields.usage is None
        top = msgspec.json.decode(chunk.data)
        sources = top["choices"]
        for position, choice in enumerate(choices):
            index = choice.index if choice.index is not None else position
            delta = choice.delta or Delta()
            source = sources[position]
            out = dict(source.get("delta") or {})
            assembly = self._assembly(index)
            pieces = self._pieces(assembly, delta, choice.finish_reason)
            # What stands beside a registry call is as little the client's as the call is.
            says_more = not (self._guarded and assembly.calls()) and _says_more(source)
            if index in self._state.roles:
                unchanged = out.pop("role", None) is None and unchanged
            elif says_more or self._shows(out, pieces) or not self._guarded:
                self._state.roles.add(index)
                if delta.role != "assistant":
                    out, unchanged = {"role": "assistant", **{n: v for n, v in out.items() if n != "role"}}, False
            else:  # nothing to show yet: the role waits for it, so that a failure can still be an HTTP status
                out.pop("role", None)
                unchanged = False
            if self._guarded and (pieces or delta.tool_calls or delta.function_call):
                unchanged = False
                out.pop("tool_calls", None)
                out.pop("function_call", None)
                if shown := self._shown_calls(pieces):
                    out["tool_calls"] = shown
                if self._shown_round is not None:
                    events += [_event(self._shown_round, each) for each in pieces if not self._is_theirs(each)]
            reason: str | None = None
            if choice.finish_reason:
                if self._guarded or index in self._state.finished:
                    unchanged = False
                else:
                    self._state.finished.add(index)
                    calls = assembly.calls()
                    reason = finish_reason(choice.finish_reason, has_calls=bool(calls))
                    unchanged = unchanged and reason == choice.finish_reason
            if reason is None and not says_more and not _says_something(out):
                unchanged = False
                continue
            kept.append({"logprobs": None, **source, "index": index, "delta": out, "finish_reason": reason})
        if not kept:
            return events
        return [chunk] if unchanged else [_made(kept, top), *events]

    def _assembly(self, index: int) -> Assembly:
        if (known := self._assemblies.get(index)) is not None:
            return known
        made = self._assemblies[index] = Assembly(self._new_id, self.taken, holding=self._guarded)
        return made

    def _pieces(self, assembly: Assembly, delta: Delta, reason: str | None) -> list[CallPiece]:
        pieces = assembly.add(delta, reason)
        return [*pieces, *assembly.filled()] if self._guarded and reason else pieces

    def _shows(self, out: dict[str, Any], pieces: list[CallPiece]) -> bool:
        rest = {name: value for name, value in out.items() if name not in ("tool_calls", "function_call", "role")}
        return _says_something(rest) or any(map(self._is_theirs, pieces))

    def _is_theirs(self, piece: CallPiece) -> bool:
        return piece.custom or piece.name in self._client_tools

    def _shown_calls(self, pieces: list[CallPiece]) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = []
        for piece in pieces:
            if not self._is_theirs(piece):
                continue
            if piece.first:
                self._positions[piece.position] = self._state.client_calls
                self._state.client_calls += 1
            position = self._positions[piece.position]
            shown.append(encode_piece(msgspec.structs.replace(piece, position=position)))
        return shown


def whole_chunk(message: Message, reason: str | None, index: int = 0) -> Chunk:
    """A whole message as one chunk, as an upstream might have sent it."""
    delta: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if thought := "".join(block.text for block in message.blocks if isinstance(block, Reasoning)):
        delta["reasoning_content"] = thought
    if refusal := "".join(block.text for block in message.blocks if isinstance(block, Refusal)):
        delta["refusal"] = refusal
    if calls := message.tool_calls:
        delta["tool_calls"] = [
            encode_piece(CallPiece(position, True, call.id, call.name, call.arguments, call.custom))
            for position, call in enumerate(calls)
        ]
    return _made([_choice(index, delta, reason)])


def end_chunk(reason: str, index: int = 0) -> Chunk:
    """The end of one choice."""
    return _made([_choice(index, {}, reason)])


def outcome_chunk(number: int, outcome: Outcome) -> Chunk:
    """How a registry call of a round ended, for a client that asked to see it."""
    told = {"id": outcome.call_id, "name": outcome.name, "ok": outcome.ok, "content": outcome.content}
    return _gateway_chunk({"type": "tool.finished", "round": number, **told})


def _event(number: int, piece: CallPiece) -> Chunk:
    named = {"id": piece.id, "name": piece.name} if piece.first else {}
    told = {"index": piece.position, **named, "arguments": piece.fragment}
    return _gateway_chunk({"type": "tool.delta", "round": number, **told})


def _gateway_chunk(event: dict[str, Any]) -> Chunk:
    """A chunk without choices: a client that looks at choices alone passes over it."""
    return Chunk(_encode({"object": "chat.completion.chunk", "choices": [], "gateway": event}), ChunkFields(choices=[]))


def _says_something(delta: dict[str, Any]) -> bool:
    """Whether a delta carries more than empty values. A role alone, before any content, is worth sending."""
    return any(value not in (None, "", []) for value in delta.values())


def _says_more(choice: dict[str, Any]) -> bool:
    """Whether a choice carries more than its delta and its end: how likely each token was, or what only its server knows."""
    rest = (value for name, value in choice.items() if name not in _SHAPE)
    return any(_says_something(value) if isinstance(value, dict) else value not in (None, "", []) for value in rest)


def _choice(index: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


def _made(choices: list[dict[str, Any]], top: Mapping[str, Any] = _NOTHING) -> Chunk:
    """A chunk of these choices, with whatever else stood in the one they are from; its usage apart."""
    rest = {name: value for name, value in top.items() if name != "usage"}
    seen = [
        ChunkChoice(each["index"], msgspec.convert(each["delta"], Delta), each["finish_reason"]) for each in choices
    ]
    body = {"object": "chat.completion.chunk", **rest, "choices": choices}
    return Chunk(_encode(body), ChunkFields(choices=seen))
