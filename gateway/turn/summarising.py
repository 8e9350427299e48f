"""Summaries that a model writes, of what a window cut off.

Knows when one is worth its price, who pays, and that a summary has to be shorter than what it sums up. What is asked, and the
summary that there is without any model, are the Scribe's (`scribe/summary.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog

from gateway.backends.backend import ModelCall
from gateway.chat.usage import Usage
from gateway.clock import Clock
from gateway.config.versions import Versioned
from gateway.errors import ConfigStale, GatewayError
from gateway.observe.events import Recorder
from gateway.scribe.conversation import Conversation, Written
from gateway.scribe.conversations import Conversations, Key
from gateway.scribe.marks import unmarked
from gateway.scribe.summary import asking_for, is_shorter
from gateway.scribe.tokens import conversation_tokens
from gateway.turn.context import Turn
from gateway.turn.revealing import with_values
from gateway.turn.snapshot import Snapshot

# Seconds a summary may take: before an answer, and behind one.
_BEFORE_S: Final = 20.0
_BEHIND_S: Final = 60.0
# Summaries that are written at the same time behind answers; beyond that the extracted ones have to do.
_AT_ONCE: Final = 4
_CLOSE_S: Final = 5.0

Book = Callable[[Turn, str, Usage], None]

_log: Any = structlog.get_logger("gateway.scribe")


class Summarising:
    """Has summaries written.

    Args:
        known: the conversations of this process.
        versions: where the version is whose model writes behind an answer.
        book: pays for what is written behind an answer.
        clock: for time limits.
    """

    def __init__(self, known: Conversations, versions: Versioned[Snapshot], book: Book, clock: Clock) -> None:
        self._known = known
        self._versions = versions
        self._book = book
        self._clock = clock
        self._running: dict[Key, asyncio.Task[None]] = {}

    async def before(self, turn: Turn) -> None:
        """Sum up before the model is asked, where the turn's strategy is to send a summary; its cost is the turn's."""
        window, snapshot = turn.window, turn.snapshot
        if window is None or not window.settings.sums_up or snapshot.config.context.summary.model is None:
            return
        backend = turn.pool.first
        fields = turn.fields if turn.tools_wire is None else {**turn.fields, "tools": msgspec.Raw(turn.tools_wire)}
        call = ModelCall(turn.messages, fields, turn.record.trace_id, 1.0, turn.shown_model)
        window.look(call, backend.name, backend.config)
        limit_s = min(_BEFORE_S, max(0.001, (turn.deadline - self._clock.monotonic()) / 2))
        done = await self._sum_up(turn, snapshot, turn.record, limit_s)
        if done is not None:
            turn.used(done[1], backend=done[0])

    def behind(self, turn: Turn) -> None:
        """Sum up behind the answer, for the next turn of the conversation."""
        window = turn.window
        if window is None or window.used is None or turn.snapshot.config.context.summary.model is None:
            return
        key, _ = window.used
        if key in self._running or len(self._running) >= _AT_ONCE:
            return
        conversation = self._known.find(key)
        if conversation is None or self._part(turn, conversation) is None:
            return
        task = asyncio.get_running_loop().create_task(self._write(turn), name="summary")
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))

    async def close(self) -> None:
        """End what is being written."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)

    async def _write(self, turn: Turn) -> None:
        try:
            lease = self._versions.acquire()
        except ConfigStale:
            return
        try:
            record = Recorder(turn.record.trace_id, turn.record.owner, self._clock)
            done = await self._sum_up(turn, lease.value, record, _BEHIND_S)
            if done is not None:
                self._book(turn, *done)
        finally:
            self._versions.release(lease)

    def _part(self, turn: Turn, conversation: Conversation) -> tuple[int, int] | None:
        assert turn.window is not None
        assert turn.window.used is not None
        return conversation.unsummed(turn.window.used[1], turn.snapshot.config.context.summary.every)

    async def _sum_up(
        self, turn: Turn, snapshot: Snapshot, record: Recorder, limit_s: float
    ) -> tuple[str, Usage] | None:
        """Sum up what is worth it; the backend that was asked and what it took, or None where nobody was."""
        window, name = turn.window, snapshot.config.context.summary.model
        meant = snapshot.names.find(name) if name is not None else None
        if window is None or window.used is None or meant is None:
            return None
        key, messages = window.used
        conversation = self._known.find(key)
        part = self._part(turn, conversation) if conversation is not None else None
        if conversation is None or part is None:
            return None
        start, end = part
        before = conversation.written.text if conversation.written is not None else None
        source = messages[start:end]
        asked = asking_for(source, before)
        if turn.private is not None:  # where texts were cut, nobody has to recognise half a value
            asked = tuple(with_values(message, turn.private.masking.values) for message in asked)
        pool = snapshot.pools[meant.model]
        tokens = conversation_tokens(asked) if pool.sized else 0
        call = ModelCall(
            asked, {}, turn.record.trace_id, limit_s, meant.model, meant.wanted, tokens, private=turn.private
        )
        # Whatever comes of it: the same messages are not summed up again.
        conversation.tried = end
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                got = await pool.complete(call, record)
        except (GatewayError, TimeoutError) as error:
            reason = error.message if isinstance(error, GatewayError) else f"not within {limit_s:g} s"
            self._told(record, meant.model, 0, started, reason)
            return None
        text = unmarked(got.answer.message.text.strip())
        estimated = Usage(conversation_tokens(asked), conversation_tokens((got.answer.message,)), estimated=True)
        if is_shorter(text, source, before):
            conversation.written = Written(text, end)
            self._told(record, meant.model, end - start, started, None)
        else:
            self._told(record, meant.model, 0, started, "it is longer than what it sums up" if text else "it is empty")
        return got.backend, got.answer.usage or estimated

    def _told(self, record: Recorder, model: str, messages: int, started: float, reason: str | None) -> None:
        seconds = self._clock.monotonic() - started
        record.emit("context.summarised", model=model, messages=messages, seconds=seconds, error=reason)
        if reason is not None:
            _log.warning("a summary was not used", model=model, reason=reason, trace_id=record.trace_id)
