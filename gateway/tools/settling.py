"""Effects as operators see and settle them.

Knows which effects wait for somebody's word, and what is stored of that word. Does not know HTTP or terminals, and runs no
tool: the Courier does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from gateway.clock import Clock
from gateway.errors import EffectSettled, NotFound
from gateway.store.compensation_records import CompensationRow, CompensationStatus
from gateway.store.turn_records import EffectRow, Effects, EffectStatus
from gateway.tools.ledger import ABANDONED, LINGER_S, unknown_content
from gateway.tools.result import failure, success

# What an operator says is kept whole within this; a tool's results have a setting of their own.
_MAX_BYTES: Final = 65_536


class CompensationView(msgspec.Struct, frozen=True, kw_only=True):
    """How an effect was undone, or was to be: by which tool and effect, and what came of it."""

    status: CompensationStatus
    tool: str
    attempts: int
    error: str | None
    undone_by: str | None
    run_id: str


class EffectView(msgspec.Struct, frozen=True, kw_only=True):
    """An effect as the API and the command show it; `arguments` and `content` are JSON values."""

    id: str
    object: Literal["effect"] = "effect"
    tool: str
    status: EffectStatus
    arguments: Any
    content: Any
    note: str | None
    owner: str
    turn_id: str
    trace_id: str
    round: int
    position: int
    started_at: float
    finished_at: float | None
    compensation: CompensationView | None = None
    compensates: str | None = None


def views(rows: Sequence[EffectRow], owed: Sequence[CompensationRow]) -> list[EffectView]:
    """What is shown of rows, with what is owed of them, and what they undo."""
    by_effect = {each.effect_id: each for each in owed}
    by_made = {each.made_id: each.effect_id for each in owed if each.made_id is not None}
    return [
        msgspec.structs.replace(
            view(row),
            compensation=_compensation(by_effect[row.id]) if row.id in by_effect else None,
            compensates=by_made.get(row.id),
        )
        for row in rows
    ]


def _compensation(owed: CompensationRow) -> CompensationView:
    return CompensationView(
        status=owed.status,
        tool=owed.tool,
        attempts=owed.attempts,
        error=owed.error,
        undone_by=owed.made_id,
        run_id=owed.run_id,
    )


def view(row: EffectRow) -> EffectView:
    """What is shown of a row."""
    return EffectView(
        id=row.id,
        tool=row.tool,
        status=row.status,
        arguments=msgspec.json.decode(row.arguments),
        content=None if row.content is None else msgspec.json.decode(row.content),
        note=row.note,
        owner=row.owner,
        turn_id=row.turn_id,
        trace_id=row.trace_id,
        round=row.round,
        position=row.position,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


class Settling:
    """The list of effects, and the word of an operator. Every call raises `StoreUnavailable` where the store is away.

    Args:
        effects: the ledger's store.
        clock: for times.
    """

    def __init__(self, effects: Effects, clock: Clock) -> None:
        self._effects = effects
        self._clock = clock

    async def newest(self, *, status: EffectStatus | None, limit: int, after: str | None) -> Sequence[EffectRow]:
        """Everybody's effects, the newest first, at most `limit`, older than the effect `after`."""
        await self.lapse()
        return await self._effects.newest(None, status=status, limit=limit, after=after)

    async def lapse(self) -> int:
        """Count as `unknown` what was begun and never ended, by now certainly; how many there were."""
        now = self._clock.now()
        return await self._effects.lapse(
            before=now - LINGER_S, content=unknown_content(ABANDONED), note=ABANDONED, now=now
        )

    async def open(self, id: str, *statuses: EffectStatus) -> EffectRow:  # noqa: A002 - the contract's word
        """The effect, where it has one of these statuses.

        Raises:
            NotFound: there is no such effect.
            EffectSettled: it has another status.
        """
        await self.lapse()
        row = await self._effects.get(id, None)
        if row is None:
            raise NotFound(f"There is no effect {id!r}.")
        if row.status not in statuses:
            expected = " or ".join(f"`{status}`" for status in statuses)
            raise EffectSettled(f"The effect {id} is `{row.status}`, not {expected}.")
        return row

    async def settle(
        self,
        id: str,  # noqa: A002 - the contract's word
        status: Literal["done", "failed"],
        reason: str,
        by: str,
        content: Any = msgspec.UNSET,
    ) -> EffectRow:
        """Write down what became of an effect that is `unknown`.

        Args:
            id: the effect's.
            status: whether it happened.
            reason: how that is known; kept as the note, with who said so.
            by: who says so.
            content: what the tool would have answered: any JSON value where it happened, a sentence where not.

        Raises:
            NotFound: there is no such effect.
            EffectSettled: its outcome is known, or somebody is making it.
        """
        await self.open(id, "unknown")
        if status == "done":
            told = success(None if content is msgspec.UNSET else content, _MAX_BYTES).content
        else:
            told = failure(str(reason if content is msgspec.UNSET else content), _MAX_BYTES)
        if not await self._effects.finish(
            id, status=status, content=told, note=f"{by}: {reason}", now=self._clock.now()
        ):
            raise EffectSettled(f"The effect {id} was settled by somebody else meanwhile.")
        return await self.open(id, "done", "failed")
