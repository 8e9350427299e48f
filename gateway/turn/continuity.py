"""Hidden rounds: kept when a turn ends, put back in every later request of the thread.

Knows how a visible assistant message is found again and when it is not certain enough. Does not know SQL, nor how rounds
are run.

A message is found by the hash of the thread up to it, or, where the words before it have changed (a system prompt with
the time in it), by the ids of its calls together with what they ask for and its own words, if the client kept them. Two
different rounds behind one message are nobody's: then the visible message stands for itself, which is a valid conversation
too, and nothing foreign is shown.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog
from cachetools import LRUCache

from gateway.chat.blocks import Message, Reasoning, Refusal, Text, ToolCall, wire_of
from gateway.chat.codecs.chat_completions import decode_message, encode_message
from gateway.chat.thread import chain, same_json, visible_hash
from gateway.clock import Clock
from gateway.errors import StoreUnavailable
from gateway.store.turn_records import Hidden, HiddenRow
from gateway.tools.salvage import replayable

# Call ids that are remembered as issued; the store knows the older ones.
_ISSUED = 50_000
# Places in conversations behind which nothing stands.
_BARE = 20_000
# Seconds after which a place without rounds will not get any: whoever was to write them has done so, or has given up.
_SETTLED_S = 120.0
_CLOSE_S = 5.0
# Rounds that may wait to be written, and how many are written at once.
_WAITING = 10_000
_BATCH = 100
# Characters of a call id that are kept as they are.
_LONGEST_ID = 256

_log: Any = structlog.get_logger("gateway.turns")

_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Behind(NamedTuple):
    """What stands behind a visible message.

    Attributes:
        owner: whose conversation.
        session: its name, where the client gave one.
        asked: the messages of the request, as the client sent them.
        visible: the message the client gets.
        hidden: the messages that stand in its place, well paired but for the results the client still owes.
        named: whether the ids of its calls are its own; in the older form they are made from places, and name many.
    """

    owner: str
    session: str | None
    asked: tuple[Message, ...]
    visible: Message
    hidden: Sequence[Message]
    named: bool = True


class Continuity:
    """Keeps hidden rounds and puts them back.

    Args:
        store: where they are kept.
        clock: for the records' times.
    """

    def __init__(self, store: Hidden, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: list[HiddenRow] = []
        self._writer: asyncio.Task[None] | None = None
        self._issued: LRUCache[tuple[str, str], bool] = LRUCache(_ISSUED)
        # Anchors that nothing was found for, and when that was first seen.
        self._bare: LRUCache[str, float] = LRUCache(_BARE)
        # Conversations up to an answer of this process, with nothing behind any answer in them, by `_place`; the oldest first.
        # Not a dict: to find its first key it passes by all that have been taken from there, thousands of them.
        self._given: OrderedDict[int, None] = OrderedDict()

    async def restored(self, owner: str, session: str | None, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The conversation as the backend has seen it: with the rounds its client never saw.

        Args:
            owner: whose conversation.
            session: its name, where the client gave one.
            messages: as the client sent them.

        Raises:
            StoreUnavailable: they may exist and cannot be read.
        """
        places = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not places:
            return messages
        scope = _scope(owner, session)
        anchors = chain(scope, messages)
        now = self._clock.now()
        if all(now - self._bare.get(anchors[place], now) >= _SETTLED_S for place in places):
            return messages
        # No row that was read is remembered: what was one may be two by now, by another replica.
        waiting = [row for row in self._waiting if row.owner == owner]
        rows = await self._store.find(
            owner,
            [anchors[place] for place in places],
            [_named(call.id) for place in places for call in messages[place].tool_calls],
        )
        rows = [*waiting, *rows]
        if not rows:
            for place in places:
                self._bare.setdefault(anchors[place], now)
            return messages
        out: list[Message] = []
        changed = False
        for index, message in enumerate(messages):
            row = _of(message, anchors[index], rows) if message.role == "assistant" else None
            if row is None:
                out.append(message)
                continue
            changed = True
            self._bare.pop(anchors[index], None)
            out.extend(decode_message(bytes(raw)) for raw in _decode_list(row.messages))
        return tuple(out) if changed else messages

    async def keep(self, behind: Behind) -> None:
        """Commit what stands behind a visible message.

        Raises:
            StoreUnavailable: it could not be written.
        """
        await self._store.keep([self._row(behind)])

    def keep_soon(self, behind: Behind) -> None:
        """As `keep`, behind the answer: for rounds without which the conversation is valid too. Failing is logged."""
        if len(self._waiting) >= _WAITING:
            _log.warning("hidden rounds were dropped", reason="the store is too slow")
            return
        self._waiting.append(self._row(behind))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="hidden-rounds")

    def bare(self, owner: str, session: str | None, asked: tuple[Message, ...], visible: Message) -> None:
        """Remember that nothing stands behind a message, nor behind those before it, so that nobody has to look for it.

        Right over replicas: where another one gives the same message with rounds behind it, they are two different things
        behind one message, and nobody's.
        """
        given = self._given
        given[_place(owner, session, asked, visible)] = None
        if len(given) > _BARE:
            given.popitem(last=False)

    def is_bare(self, owner: str, session: str | None, messages: tuple[Message, ...]) -> bool:
        """Whether it is known, without looking for it, that nothing stands behind any answer of a conversation."""
        for last in range(len(messages) - 1, -1, -1):
            if messages[last].role == "assistant":
                return _place(owner, session, messages[:last], messages[last]) in self._given
        return True

    async def flush(self) -> None:
        """Wait until what was to be kept soon is kept, or could not be."""
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=_CLOSE_S)

    async def close(self) -> None:
        """Write what waits; a few seconds at most."""
        await self.flush()

    async def _write(self) -> None:
        while self._waiting:
            batch = self._waiting[:_BATCH]
            try:
                await self._store.keep(batch)
            except StoreUnavailable as error:
                _log.warning("hidden rounds were not kept", error=error.message, rows=len(batch))
            # Only now: until then they are found here.
            del self._waiting[: len(batch)]

    def _row(self, behind: Behind) -> HiddenRow:
        encoded = msgspec.json.encode([msgspec.Raw(encode_message(message)) for message in behind.hidden])
        scope = _scope(behind.owner, behind.session)
        anchor = chain(scope, (*behind.asked, behind.visible))[-1]
        self._bare.pop(anchor, None)
        self._given.pop(_place(behind.owner, behind.session, behind.asked, behind.visible), None)
        return HiddenRow(
            owner=behind.owner,
            anchor=anchor,
            visible=visible_hash(behind.visible),
            digest=hashlib.sha256(encoded).hexdigest(),
            messages=encoded,
            call_ids=tuple(_named(call.id) for call in behind.visible.tool_calls) if behind.named else (),
            created_at=self._clock.now(),
        )

    async def taken(self, owner: str, call_ids: Iterable[str]) -> Collection[str]:
        """Which of these ids name a call of the owner's already; the others are issued from now on.

        Raises:
            StoreUnavailable: it cannot be read.
        """
        wanted = tuple(dict.fromkeys(call_ids))
        found = {call_id for call_id in wanted if (owner, call_id) in self._issued}
        unknown = [call_id for call_id in wanted if call_id not in found]
        for call_id in unknown:
            self._issued[owner, call_id] = True
        if unknown:
            named = {_named(call_id): call_id for call_id in unknown}
            rows = await self._store.find(owner, (), list(named))
            found |= {named[name] for row in rows for name in row.call_ids if name in named}
        return found


def _place(owner: str, session: str | None, before: Sequence[Message], answer: Message) -> int:
    """A name for the place behind an answer, of this process alone: a fraction of what a chain up to it costs.

    It tells apart all that the chain tells apart, and more than that: how a client spells its messages, and the arguments of
    calls. Only the answer is given by one side and sent back by the other, in bytes of its own.
    """
    said: list[object] = [*map(wire_of, before)]
    if None in said:
        said = [message.wire or _said(message) for message in before]
    return hash((owner, session, *said, _said(answer)))


def _said(message: Message) -> object:
    """What a message says, whoever has written it."""
    blocks = message.blocks
    if len(blocks) == 1 and type(blocks[0]) is Text:  # nearly all answers
        return message.role, blocks[0].text.strip()
    said: list[object] = []
    text = ""
    for block in blocks:
        kind = type(block)
        if kind is Text:
            text = text + block.text if text else block.text  # type: ignore[union-attr]
        elif kind is ToolCall:
            said += (block.id, block.name, block.arguments)  # type: ignore[union-attr]
        elif kind is not Reasoning and kind is not Refusal:
            said.append(visible_hash(message))
    return (message.role, text.strip(), *said)


def _named(call_id: str) -> str:
    """What a call id is kept as: some upstreams put whole signatures into theirs, which no index takes."""
    if len(call_id) <= _LONGEST_ID and "\0" not in call_id:
        return call_id
    return f"sha256:{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _of(message: Message, anchor: str, rows: Sequence[HiddenRow]) -> HiddenRow | None:
    """The one row behind a message, or None where there is none or more than one."""
    exact = [row for row in rows if row.anchor == anchor]
    if not exact and message.tool_calls:
        ids = tuple(sorted(_named(call.id) for call in message.tool_calls))
        exact = [row for row in rows if tuple(sorted(row.call_ids)) == ids and _is_alike(message, row)]
    return exact[0] if exact and len({row.digest for row in exact}) == 1 else None


def _is_alike(message: Message, row: HiddenRow) -> bool:
    """Whether a message asks for what the row's asked for, in its words or, as some clients send calls back, in none."""
    if row.visible == visible_hash(message):
        return True
    given = {call.id: call for raw in _decode_list(row.messages) for call in decode_message(bytes(raw)).tool_calls}
    return not message.text.strip() and all(_asks(call) == _asks(given.get(call.id)) for call in message.tool_calls)


def _asks(call: ToolCall | None) -> object:
    return call and (call.name, call.custom, call.arguments if call.custom else same_json(replayable(call.arguments)))


def _scope(owner: str, session: str | None) -> str:
    return owner if session is None else f"{owner}\0{session}"
