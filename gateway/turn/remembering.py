"""Long-term memory at work: recalled before a turn, written behind its answer.

Knows owners, likeness and privacy: what is masked for models is not remembered at all. Likeness is the router's encoder's, searched
by numpy over the owner's own vectors; where no encoder can be asked, shared words tell.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from gateway.chat.blocks import Message, Text
from gateway.clock import Clock
from gateway.errors import InvalidRequest, NotFound, StoreUnavailable
from gateway.late import late
from gateway.routing.encoder import Encoder, EncoderFailed
from gateway.routing.encoders.auto import AutoEncoder
from gateway.routing.text import routing_text
from gateway.scribe.marks import unmarked
from gateway.scribe.memory import slot_of, told, worth_remembering
from gateway.security.masking.messages import Conversation as Private
from gateway.security.masking.placeholders import OPENING
from gateway.store.memory_records import Memories, MemoryRow
from gateway.turn.context import Turn
from gateway.turn.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Memories of one owner; the oldest go beyond.
MOST: Final = 1_000
# How alike a memory has to be to be told, and to take the place of another; of words, which share both have.
_ALIKE: Final = 0.28
_THE_SAME: Final = 0.93
_SHARED: Final = 0.25
_MOST_TOLD: Final = 8
_TEXT_CHARS: Final = 600
_CLOSE_S: Final = 5.0
_AT_ONCE: Final = 16
_WORD: Final = late(r"[^\W_]{3,}|[\u3400-\u9fff]")

_log: Any = structlog.get_logger("gateway.scribe")


class Remembering:
    """Recalls and remembers.

    Args:
        memories: where they are.
        clock: time.
    """

    def __init__(self, memories: Memories, clock: Clock) -> None:
        self._memories = memories
        self._clock = clock
        self._running: set[asyncio.Task[None]] = set()

    async def recall(self, turn: Turn) -> tuple[str, ...]:
        """What is remembered of this owner that bears on what is asked: lines for the notes. Never fails."""
        config = turn.snapshot.config.context.memory
        text = routing_text(turn.request.messages)[:_TEXT_CHARS]
        try:
            rows = await self._memories.of(turn.principal.owner)
        except StoreUnavailable as error:
            _log.warning("memories could not be read", error=error.message)
            return ()
        if not rows or not text.strip():
            return ()
        encoder, limit_s = turn.snapshot.encoder, turn.snapshot.config.router.semantic.timeout_ms / 1000
        space, vector = await _encoded(encoder, text, limit_s)
        scores = _scores(rows, text, space, vector)
        best = sorted((each for each in zip(scores, rows, strict=True) if each[0] > 0), key=lambda each: -each[0])
        best = best[:_MOST_TOLD]
        lines = told([(row.text, row.source, row.updated_at) for _, row in best], config.max_tokens)
        if lines:
            ids = [row.id for _, row in best[: len(lines)]]
            turn.record.emit("memory.recalled", ids=ids, by="encoder" if vector is not None else "words")
        return lines

    def behind(self, turn: Turn, answer: Message) -> None:
        """Remember what is worth it, behind the answer."""
        if len(self._running) >= _AT_ONCE:
            return
        task = asyncio.get_running_loop().create_task(self._remember(turn, answer), name="memory")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _remember(self, turn: Turn, answer: Message) -> None:
        asked = next((each for each in reversed(turn.request.messages) if each.role == "user"), None)
        said = _without_private(turn.private, asked.text) if asked is not None else ""
        found = [
            each
            for each in worth_remembering(said, _without_private(turn.private, answer.text))
            if OPENING not in each.text
        ]
        if not found:
            return
        owner, now = turn.principal.owner, self._clock.now()
        try:
            known = await self._memories.of(owner)
            new: list[MemoryRow] = []
            for each in found:
                space, vector = await _encoded(turn.snapshot.encoder, each.text, None)
                row = MemoryRow(
                    id=f"mem_{secrets.token_hex(12)}",
                    owner=owner,
                    kind=each.kind,
                    text=each.text,
                    source=f"trace {turn.record.trace_id}",
                    space=space,
                    vector=_packed(vector),
                    created_at=now,
                    updated_at=now,
                )
                if (same := _same(row, known, vector)) is not None:
                    await self._memories.change(msgspec.structs.replace(row, id=same.id, created_at=same.created_at))
                else:
                    new.append(row)
            await self._memories.add(new, most=MOST)
        except StoreUnavailable as error:
            _log.warning("memories could not be kept", error=error.message)

    async def page(self, owner: str, *, limit: int, after: str | None) -> Sequence[MemoryRow]:
        """An owner's memories, the newest first."""
        return await self._memories.newest(owner, limit=limit, after=after)

    async def get(self, memory_id: str, owner: str) -> MemoryRow:
        """One of them.

        Raises:
            NotFound: there is none of this owner's.
        """
        row = await self._memories.get(memory_id, owner)
        if row is None:
            raise NotFound(f"Memory with id {memory_id!r} not found.")
        return row

    async def change(self, memory_id: str, owner: str, text: str, snapshot: Snapshot) -> MemoryRow:
        """Give a memory another text.

        Raises:
            InvalidRequest: it is no text that could be kept, or one with something private in it.
            NotFound: there is none of this owner's.
        """
        text, encoder = unmarked(" ".join(text.split())), snapshot.encoder
        if not 1 <= len(text) <= _TEXT_CHARS:
            raise InvalidRequest(f"`text` must have 1 to {_TEXT_CHARS} characters.", param="text")
        private = snapshot.privacy.anywhere(owner) if snapshot.privacy is not None else None
        if _without_private(private, text) != text:
            raise InvalidRequest("`text` holds something private, which is not remembered.", param="text")
        row = await self.get(memory_id, owner)
        space, vector = await _encoded(encoder, text, None)
        changed = msgspec.structs.replace(
            row, text=text, space=space, vector=_packed(vector), updated_at=self._clock.now()
        )
        await self._memories.change(changed)
        return changed

    async def delete(self, memory_id: str, owner: str) -> None:
        """Forget a memory.

        Raises:
            NotFound: there is none of this owner's.
        """
        if not await self._memories.delete(memory_id, owner):
            raise NotFound(f"Memory with id {memory_id!r} not found.")

    async def settled(self) -> None:
        """Wait until what is being remembered is; a few seconds at most."""
        if self._running:
            await asyncio.wait(self._running, timeout=_CLOSE_S)

    async def close(self) -> None:
        """As `settled`; what takes longer is given up."""
        await self.settled()
        for task in self._running:
            task.cancel()


def _without_private(private: Private | None, text: str) -> str:
    """A text with placeholders for what models may not see."""
    if private is None:
        return text
    said = Message("user", (Text(text),))
    private.learn((said,), {})
    return private.masked((said,))[0].text


async def _encoded(encoder: Encoder | None, text: str, limit_s: float | None) -> tuple[str, NDArray[np.float32] | None]:
    """A text's vector and the space it is in; none where no encoder reads it, or in time."""
    spaces = encoder.spaces if isinstance(encoder, AutoEncoder) else () if encoder is None else (encoder,)
    space = next((each for each in spaces if each.reads(text)), None)
    if space is None:
        return "", None
    try:
        async with asyncio.timeout(limit_s):
            return space.name, (await space.encode([text]))[0]
    except (EncoderFailed, TimeoutError):
        return "", None


def _scores(rows: Sequence[MemoryRow], text: str, space: str, vector: NDArray[np.float32] | None) -> list[float]:
    """How well each memory fits a text; 0 for those that do not."""
    words = frozenset(_WORD.findall(text.casefold()))
    scores = []
    for row in rows:
        if vector is not None and row.space == space:
            likeness = _likeness(row.vector, vector)
            scores.append(likeness if likeness >= _ALIKE else 0.0)
        else:
            mine = frozenset(_WORD.findall(row.text.casefold()))
            shared = len(words & mine) / max(1, min(len(words), len(mine)))
            scores.append(shared if shared >= _SHARED else 0.0)
        # How somebody wants things bears on whatever they ask.
        if row.kind == "preference" and not scores[-1]:
            scores[-1] = 0.01
    return scores


def _same(row: MemoryRow, known: Sequence[MemoryRow], vector: NDArray[np.float32] | None) -> MemoryRow | None:
    """The memory that says the same already, or of the same thing something that no longer holds."""
    slot = slot_of(row.text)
    for each in known:
        if each.text.casefold() == row.text.casefold():
            return each
        if slot is not None and each.kind == row.kind and _may_be_of(slot, each.text) and slot_of(each.text) == slot:
            return each
        alike = vector is not None and (each.space, each.kind) == (row.space, row.kind)
        if alike and vector is not None and _likeness(each.vector, vector) >= _THE_SAME:
            return each
    return None


def _may_be_of(slot: str, text: str) -> bool:
    return all(word in text.casefold() for word in slot.split())


def _packed(vector: NDArray[np.float32] | None) -> bytes:
    return b"" if vector is None else vector.astype("<f4").tobytes()


def _likeness(packed: bytes, vector: NDArray[np.float32]) -> float:
    return float(vector.dot(memoryview(packed).cast("f"))) if len(packed) == 4 * len(vector) else 0.0
