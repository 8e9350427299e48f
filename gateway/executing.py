"""The engine of background runs, with all that it asks of others.

Knows which handler executes which type of run. Does not know how turns, stores and handlers are made.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.api.errors import describe
from gateway.approvals.desk import Desk
from gateway.clock import Clock
from gateway.config.versions import Versioned
from gateway.errors import GatewayError
from gateway.observe.metrics import Metrics
from gateway.observe.runs_metrics import RunsMetrics
from gateway.runs.approved import KIND as APPROVED
from gateway.runs.approved import ApprovedHandler
from gateway.runs.chat import KIND as CHAT
from gateway.runs.chat import ChatHandler
from gateway.runs.compensation import KIND as COMPENSATION
from gateway.runs.compensation import CompensationHandler
from gateway.runs.engine import Engine, Pace
from gateway.runs.queue import Queue
from gateway.runs.responses import KIND as RESPONSE
from gateway.runs.responses import ResponseHandler
from gateway.runs.run import Handler
from gateway.runs.stages import Stages
from gateway.runs.tasks import TaskHandler
from gateway.security.keys import LOCAL
from gateway.security.principal import Principal
from gateway.store.holder import may_live
from gateway.store.sql import SqlStore
from gateway.turn.responding import Responding
from gateway.turn.service import Turns
from gateway.turn.snapshot import Snapshot


def make_engine(
    store: SqlStore,
    turns: Turns,
    responding: Responding,
    approved: ApprovedHandler,
    compensation: CompensationHandler,
    desk: Desk,
    versions: Versioned[Snapshot],
    queue: Queue,
    metrics: Metrics,
    holder: str,
    clock: Clock,
    *,
    executes: bool,
    pace: Pace,
) -> Engine:
    """The engine, and what executes each type of run that is the gateway's own."""

    async def writes(turn_id: str, owner: str) -> bool:
        effects = await store.effects.of_turn(turn_id, owner)
        return any(effect.status == "started" and effect.holder == holder for effect in effects)

    async def named(key: str) -> Principal | None:
        keys = versions.current.keys
        if key == LOCAL.key_id:
            return LOCAL if await keys.is_open() else None
        return keys.named(key)

    own: Mapping[str, Handler] = {
        CHAT: ChatHandler(turns),
        RESPONSE: ResponseHandler(responding),
        APPROVED: approved,
        COMPENSATION: compensation,
    }
    tasks = TaskHandler(versions, store.runs, clock)
    engine = Engine(
        store.runs,
        queue,
        lambda kind: own.get(kind) or (tasks if tasks.knows(kind) else None),
        executes=executes,
        holder=holder,
        alive=may_live,
        writes=writes,
        describe=_recorded,
        named=named,
        config=lambda: versions.current.config.runs,
        webhooks=lambda: versions.current.config.webhooks,
        tally=RunsMetrics(metrics.registry, lambda: engine.counts),
        clock=clock,
        stages=Stages(store.journal, store.effects),
        keys_s=lambda: versions.current.config.idempotency.ttl_s,
        pace=pace,
        laid_aside=desk.look_again,
        undoes=lambda: versions.current.tools.compensated,
    )
    return engine


def _recorded(error: GatewayError) -> dict[str, object]:
    answer = describe(error)
    return {**answer.as_dict(), "status": answer.status}
