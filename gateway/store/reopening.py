"""What is recorded of a run's turn, when the run is begun again: which of it stays, and that its response has not ended.

Knows the tables that hold parts of one run. Does not know when a run may be begun again.
"""

from __future__ import annotations

from sqlalchemy import and_, delete, exists, literal, not_, update
from sqlalchemy.ext.asyncio.engine import AsyncConnection
from sqlalchemy.sql import ColumnElement

from gateway.store.tables import journal, response_events, responses, runs, turns


async def reopen(connection: AsyncConnection, trace_id: str, *, now: float, forget_from: int | None) -> None:
    """Have the run's turn go on, with `forget_from` without its steps from this number on and all that was told of them."""
    response_id = f"resp_{trace_id}"
    if forget_from is not None:
        await connection.execute(delete(journal).where(journal.c.turn_id == trace_id, journal.c.round >= forget_from))
        await connection.execute(delete(turns).where(turns.c.turn_id == trace_id))
        await connection.execute(delete(response_events).where(response_events.c.response_id == response_id))
    ended = and_(responses.c.id == response_id, responses.c.status.in_(("failed", "cancelled")))
    await connection.execute(
        update(responses).where(ended).values(status="queued", holder="", held_until=0.0, updated_at=now)
    )


def is_closed(turn_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether nobody will go on with a turn: of a run that may be begun again everything is needed that is recorded."""
    run_id = literal("run_").concat(turn_id)
    return not_(exists().where(runs.c.id == run_id, runs.c.status != "completed"))
