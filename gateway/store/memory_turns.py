"""The twins in memory of what turns leave behind: joinable turns, effects, hidden rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.store.turn_records import EffectRow, EffectStatus, HiddenRow, TurnRow, TurnStatus

_changed = msgspec.structs.replace


class MemoryTurns:
    """`Turns` in a dictionary."""

    def __init__(self) -> None:
        self._rows: dict[str, TurnRow] = {}

    async def begin(
        self,
        row: TurnRow,
        *,
        since: float | None = None,
        hasty: bool = False,  # noqa: ARG002 - the seam's
        keys_since: float = 0.0,  # noqa: ARG002 - the seam's
    ) -> TurnRow | None:
        """Keep a new turn and answer None; or the turn that is there."""
        known = self._rows.get(row.turn_id)
        if known is None and row.key is not None:
            known = await self.by_key(row.owner, row.key)
        if known is None and since is not None:
            known = next((other for other in self._rows.values() if _is_rival(other, row, since)), None)
        if known is None:
            self._rows[row.turn_id] = row
        return known

    async def get(self, turn_id: str, owner: str | None) -> TurnRow | None:
        """One turn."""
        row = self._rows.get(turn_id)
        return row if row is not None and owner in (None, row.owner) else None

    async def by_key(self, owner: str, key: str) -> TurnRow | None:
        """The owner's turn of this idempotency key."""
        return next((row for row in self._rows.values() if row.owner == owner and row.key == key), None)

    async def by_body(self, owner: str, body_hash: str, *, since: float) -> Sequence[TurnRow]:
        """The owner's undelivered turns without a key that were asked this since then, the newest first."""
        found = [
            row
            for row in self._rows.values()
            if (row.owner, row.body_hash, row.key, row.delivered) == (owner, body_hash, None, False)
            and row.created_at >= since
        ]
        return sorted(found, key=lambda row: (row.created_at, row.turn_id), reverse=True)

    async def take(self, turn_id: str, holder: str, *, seen: TurnRow, until: float, now: float) -> bool:
        """Become the holder of a turn as it was seen."""
        row = self._rows.get(turn_id)
        if row is None or (row.holder, row.held_until, row.status) != (seen.holder, seen.held_until, seen.status):
            return False
        self._rows[turn_id] = _changed(row, holder=holder, held_until=until, status="running", updated_at=now)
        return True

    async def keep(self, turn_id: str, holder: str, *, until: float) -> bool:
        """Hold on to a running turn."""
        return self._change_held(turn_id, holder, held_until=until)

    async def end(
        self,
        turn_id: str,
        holder: str,
        *,
        status: TurnStatus,
        http_status: int,
        answer: bytes,
        meta: Any,
        now: float,
        hasty: bool = False,  # noqa: ARG002 - the seam's
    ) -> bool:
        """Keep how a turn ended."""
        kept = msgspec.json.decode(msgspec.json.encode(meta))
        return self._change_held(
            turn_id, holder, status=status, http_status=http_status, answer=answer, meta=kept, updated_at=now
        )

    async def delivered(self, turn_id: str) -> None:
        """Note that the client has the answer."""
        if turn_id in self._rows:
            self._rows[turn_id] = _changed(self._rows[turn_id], delivered=True)

    async def forget(self, turn_id: str) -> None:
        """Forget one turn."""
        self._rows.pop(turn_id, None)

    async def prune(self, *, before: float) -> int:
        """Forget turns that began before."""
        old = [turn_id for turn_id, row in self._rows.items() if row.created_at < before]
        for turn_id in old:
            del self._rows[turn_id]
        return len(old)

    def _change_held(self, turn_id: str, holder: str, **values: Any) -> bool:
        row = self._rows.get(turn_id)
        if row is None or row.holder != holder or row.status != "running":
            return False
        self._rows[turn_id] = _changed(row, **values)
        return True


def _is_rival(other: TurnRow, row: TurnRow, since: float) -> bool:
    same = (other.owner, other.body_hash, other.key) == (row.owner, row.body_hash, None)
    return same and other.created_at >= since and (not other.delivered if row.retried else other.retried)


class MemoryEffects:
    """`Effects` in a dictionary."""

    def __init__(self) -> None:
        self._rows: dict[str, EffectRow] = {}

    async def start(self, row: EffectRow) -> EffectRow | None:
        """Keep that an effect is about to happen and answer None; or the effect of this key that is there."""
        for known in self._rows.values():
            if (known.owner, known.effect_key) == (row.owner, row.effect_key):
                return known
        self._rows[row.id] = row
        return None

    async def finish(
        self,
        id: str,  # noqa: A002 - the contract's word
        *,
        status: EffectStatus,
        content: str,
        note: str | None,
        now: float,
        undo: str | None = None,
    ) -> bool:
        """Keep how an effect ended."""
        row = self._rows.get(id)
        if row is None or row.status not in ("started", "unknown"):
            return False
        self._rows[id] = _changed(row, status=status, content=content, note=note, finished_at=now, undo=undo)
        return True

    async def restart(self, id: str, *, seen: EffectRow, row: EffectRow) -> bool:  # noqa: A002 - the contract's word
        """Begin an effect anew that has not happened."""
        known = self._rows.get(id)
        if known is None or (known.status, known.holder, known.started_at) != (
            seen.status,
            seen.holder,
            seen.started_at,
        ):
            return False
        self._rows[id] = _changed(row, id=id, effect_key=known.effect_key)
        return True

    async def get(self, id: str, owner: str | None) -> EffectRow | None:  # noqa: A002 - the contract's word
        """One effect."""
        row = self._rows.get(id)
        return row if row is not None and owner in (None, row.owner) else None

    async def of_turn(self, turn_id: str, owner: str | None) -> Sequence[EffectRow]:
        """A turn's effects, in the order of their calls."""
        found = [row for row in self._rows.values() if row.turn_id == turn_id and owner in (None, row.owner)]
        return sorted(found, key=lambda row: (row.round, row.position))

    async def newest(
        self, owner: str | None, *, status: EffectStatus | None = None, limit: int, after: str | None = None
    ) -> Sequence[EffectRow]:
        """The newest first."""
        rows = [row for row in self._rows.values() if owner in (None, row.owner)]
        rows.sort(key=lambda row: (row.started_at, row.id), reverse=True)
        if after is not None:
            places = [index for index, row in enumerate(rows) if row.id == after]
            rows = rows[places[0] + 1 :] if places else []
        return [row for row in rows if status in (None, row.status)][:limit]

    async def lapse(self, *, before: float, content: str, note: str, now: float) -> int:
        """Count effects as `unknown` that were held until before then and whose end nobody wrote down."""
        lost = [row for row in self._rows.values() if row.status == "started" and row.held_until < before]
        for row in lost:
            self._rows[row.id] = _changed(row, status="unknown", content=content, note=note, finished_at=now)
        return len(lost)

    async def prune(self, *, before: float) -> int:
        """Forget effects that ended before then."""
        old = [
            row.id
            for row in self._rows.values()
            if row.status in ("done", "failed") and row.finished_at is not None and row.finished_at < before
        ]
        for number in old:
            del self._rows[number]
        return len(old)


class MemoryHidden:
    """`Hidden` in a list."""

    def __init__(self) -> None:
        self._rows: list[HiddenRow] = []

    async def keep(self, rows: Sequence[HiddenRow]) -> None:
        """Keep the rounds behind these messages."""
        for row in rows:
            if not any((k.owner, k.anchor, k.digest) == (row.owner, row.anchor, row.digest) for k in self._rows):
                self._rows.append(_changed(row, call_ids=tuple(sorted(row.call_ids))))

    async def find(self, owner: str, anchors: Sequence[str], call_ids: Sequence[str]) -> Sequence[HiddenRow]:
        """The owner's rows with one of these anchors or of these call ids, the newest first."""
        wanted = set(call_ids)
        return [
            row
            for row in reversed(self._rows)
            if row.owner == owner and (row.anchor in anchors or not wanted.isdisjoint(row.call_ids))
        ]

    async def prune(self, *, before: float) -> int:
        """Forget rounds kept before then."""
        kept = [row for row in self._rows if row.created_at >= before]
        gone = len(self._rows) - len(kept)
        self._rows = kept
        return gone
