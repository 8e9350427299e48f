"""Answers that need not be asked for twice: the exact cache, a frame around the loop.

Knows what makes two turns equal, which answers may be kept, and how one is given again. Off unless a model or a route says
`cache`; turns with tools never get here (`prepare.py`). Does not know where answers lie: that is the store's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from gateway.chat.blocks import Message
from gateway.chat.chunk import Chunk, decode_chunks
from gateway.chat.codecs.chat_answer import named_answer
from gateway.chat.codecs.chat_completions import encode_message
from gateway.chat.usage import Usage
from gateway.errors import StoreUnavailable
from gateway.turn.context import Turn
from gateway.turn.loop import TurnLoop, TurnResult
from gateway.turn.state import State
from gateway.turn.stream import Sink

# An answer larger than this is not kept.
LARGEST_BYTES: Final = 1024 * 1024
# Chunks of a replayed stream that go out in one write.
_AT_ONCE: Final = 64
# Fields that say who asks, not what: equal questions of a shared cache may differ in them.
_WHO: Final = frozenset({"user", "safety_identifier", "prompt_cache_key"})


class AnswerStore(Protocol):
    """Where answers lie for a while. Every method is bounded in time."""

    async def get(self, key: str) -> bytes | None:
        """What was put under the key, while it lives.

        Raises:
            StoreUnavailable: nobody can say.
        """
        ...

    async def put(self, key: str, value: bytes, ttl_s: float) -> None:
        """Keep a value for `ttl_s` seconds, or for less where there is no room.

        Raises:
            StoreUnavailable: it could not be kept.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class KeptAnswer(msgspec.Struct, frozen=True):
    """One answer: `body` of one in one piece, or the `chunks` of a stream with the `usage` it ended with."""

    message: Message
    finish_reason: str | None
    backend: str | None
    model: str | None
    usage: Usage
    body: bytes | None = None
    chunks: tuple[bytes, ...] = ()
    finish: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeptAnswer).decode
_canonical = msgspec.json.Encoder(order="deterministic").encode


class AnswerCache:
    """Runs turns like the loop it stands around, but gives a kept answer again where there is one.

    A replayed answer has the id and the time of its own turn, the words and the usage of the first, and costs nothing:
    nothing is added to the turn's own usage.

    Args:
        loop: answers what is not kept.
        store: where answers are kept.
    """

    def __init__(self, loop: TurnLoop, store: AnswerStore) -> None:
        self._loop = loop
        self._store = store

    async def run(self, turn: Turn, sink: Sink | None = None) -> TurnResult:
        """Answer the turn. See `TurnLoop.run`.

        Raises:
            GatewayError: the turn failed. The store's own failures never fail a turn.
        """
        assert turn.cache is not None
        key = answer_key(turn)
        kept = await self._find(turn, key)
        if kept is not None:
            return await self._replay(kept, turn, sink)
        taped = None if sink is None else _TapedSink(sink)
        result = await self._loop.run(turn, taped)
        if key is not None and (answer := _kept(turn, result, taped)) is not None:
            value = _encode(answer)
            if len(value) <= LARGEST_BYTES:
                try:
                    await self._store.put(key, value, turn.cache.ttl_s)
                except StoreUnavailable:
                    turn.record.emit("cache.failed", step="put")
        return result

    async def _find(self, turn: Turn, key: str | None) -> KeptAnswer | None:
        if key is None:
            return None
        try:
            value = await self._store.get(key)
        except StoreUnavailable:
            turn.record.emit("cache.failed", step="get")
            return None
        try:
            kept = None if value is None else _decode(value)
        except (msgspec.MsgspecError, ValueError):
            kept = None  # written by another version of this program
        turn.record.emit("cache.asked", hit=kept is not None)
        return kept

    async def _replay(self, kept: KeptAnswer, turn: Turn, sink: Sink | None) -> TurnResult:
        turn.recalled = True
        turn.backend, turn.answered_by = kept.backend, kept.model
        body = kept.body
        if sink is not None:
            for at in range(0, len(kept.chunks), _AT_ONCE):
                await sink.relay(decode_chunks(kept.chunks[at : at + _AT_ONCE]))
        elif body is not None:
            body = named_answer(body, turn.answer_id, turn.created, turn.shown_model)
        result = TurnResult(kept.message, kept.finish_reason, body)
        await self._loop.commit(turn, result, kept.usage)
        if sink is not None:
            await sink.finish(kept.finish, kept.usage)
        turn.step(State.TERMINATED, "replayed")
        return result


def answer_key(turn: Turn) -> str | None:
    """What equal turns have in common: version, owner (or that they share), and the request in canonical form.

    None for a request with numbers or depths that cannot be compared.
    """
    assert turn.cache is not None
    # An `on_answer` hook may look at who asks: what it passed for one owner it did not pass for another.
    shared = turn.cache.shared and not turn.snapshot.hooks.on_answer
    try:
        messages = [msgspec.json.decode(encode_message(message)) for message in turn.messages]
        fields = {name: msgspec.json.decode(raw) for name, raw in turn.fields.items() if not (shared and name in _WHO)}
        whole = _canonical(
            [
                str(turn.snapshot.version),
                None if shared else turn.principal.owner,
                turn.decision.route,
                turn.decision.model,
                turn.wanted,
                turn.request.stream,
                messages,
                fields,
            ]
        )
    except (msgspec.DecodeError, RecursionError):
        return None
    return hashlib.sha256(whole).hexdigest()


def _kept(turn: Turn, result: TurnResult, taped: _TapedSink | None) -> KeptAnswer | None:
    """The answer as it is kept; None for one that was cut, refused, too large or given by a stand-in."""
    if turn.answered_by not in (None, turn.pool.name):
        return None
    reasons = _reasons(result.body) if taped is None else taped.reasons
    if result.finish_reason != "stop" or not reasons or set(reasons) != {"stop"}:
        return None
    chunks: Sequence[bytes] = ()
    if taped is not None:
        if not taped.whole:
            return None
        chunks = taped.chunks
    return KeptAnswer(
        result.message,
        result.finish_reason,
        turn.backend,
        turn.answered_by,
        turn.usage,
        result.body,
        tuple(chunks),
        None if taped is None else taped.finish_reason,
    )


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]


def _reasons(body: bytes | None) -> list[str | None]:
    if body is None:
        return []
    try:
        return [choice.finish_reason for choice in msgspec.json.decode(body, type=_Body).choices]
    except msgspec.DecodeError:
        return []


class _TapedSink:
    """Passes everything on and remembers it, up to a size.

    Attributes:
        chunks: what was relayed.
        reasons: every finish reason that was sent.
        finish_reason: what `finish` was called with.
        whole: whether everything that was sent is in `chunks`.
    """

    def __init__(self, sink: Sink) -> None:
        self.chunks: list[bytes] = []
        self.reasons: list[str | None] = []
        self.finish_reason: str | None = None
        self.whole = True
        self._sink = sink
        self._bytes = 0

    @property
    def started(self) -> bool:
        """As the sink behind it."""
        return self._sink.started

    async def relay(self, chunks: Sequence[Chunk]) -> None:
        """Pass chunks on."""
        if self.whole:
            for chunk in chunks:
                payloads = chunk.payloads
                self._bytes += sum(map(len, payloads))
                self.chunks += payloads
                self.reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
            if self._bytes > LARGEST_BYTES:
                self.whole = False
                self.chunks.clear()
        await self._sink.relay(chunks)

    def straight(self) -> None:
        """None: all of it is remembered."""

    async def add(self, text: str) -> None:
        """Pass the gateway's own words on: an answer with any is not a model's alone."""
        self.whole = False
        await self._sink.add(text)

    async def finish(self, reason: str | None, usage: Usage) -> None:
        """Pass the end on."""
        if reason is not None:
            self.reasons.append(reason)
        self.finish_reason = reason
        await self._sink.finish(reason, usage)
