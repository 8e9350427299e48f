"""The composition root: settings become objects, objects become the app. The only place that knows everything.

Everything that lives as long as the process is made in `open_gateway` and closed there in reverse.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from gateway import shared
from gateway.api.application import GatewayApp, create_app
from gateway.api.errors import describe
from gateway.api.services import Drain, Services
from gateway.api.together import Siblings, Together
from gateway.approvals.desk import Desk
from gateway.building import Builder, refuse_open_gateway
from gateway.clock import Clock, SystemClock
from gateway.config.approvals import OnFailure
from gateway.config.files import Files
from gateway.config.loader import load_files
from gateway.config.news import News
from gateway.config.publishing import Draft
from gateway.config.replica import Replica
from gateway.config.versions import Versioned
from gateway.config.watch import Watch
from gateway.errors import GatewayError
from gateway.executing import make_engine
from gateway.observe.audience import Audience
from gateway.observe.events import LiveSubscriber
from gateway.observe.logging import LogSubscriber, configure_logging
from gateway.observe.metrics import Metrics
from gateway.observe.redaction import Redactor, secrets_of
from gateway.observe.trace import TraceWriter
from gateway.observe.usage import UsageWriter
from gateway.routing.encoders.registry import Encoders
from gateway.routing.router import Router
from gateway.runs.approved import ApprovedHandler
from gateway.runs.compensation import CompensationHandler
from gateway.runs.engine import USUAL_PACE, Engine, Pace
from gateway.scribe.conversations import Conversations
from gateway.security.key_book import KeyBook
from gateway.security.masking.secret import read_secret
from gateway.security.masking.vault import Vault
from gateway.settings import Settings
from gateway.store.holder import may_live, this_process
from gateway.store.sql import SqlStore
from gateway.tools.courier import Courier
from gateway.tools.guards.paging import READ_RESULT
from gateway.tools.guards.withdraw import WITHDRAW
from gateway.tools.ledger import Ledger
from gateway.tools.self_checks import SelfChecks
from gateway.tools.settling import Settling
from gateway.turn.answers import AnswerCache
from gateway.turn.approving import Approving
from gateway.turn.continuity import Continuity
from gateway.turn.joining import Joining
from gateway.turn.live import HookEvents
from gateway.turn.loop import TurnLoop
from gateway.turn.offering import Offering
from gateway.turn.permits import Permits
from gateway.turn.pinned import read_pin
from gateway.turn.pruner import Pruner
from gateway.turn.remembering import Remembering
from gateway.turn.responding import Responding
from gateway.turn.scribing import Scribe
from gateway.turn.service import Turns
from gateway.turn.session import SessionKeeper
from gateway.turn.snapshot import Snapshot
from gateway.turn.summarising import Summarising
from gateway.turn.undoing import Undoing

# Seconds between two looks at whether this process is about to stop.
_LOOK_S = 0.1
# Seconds that those who waited for the start have for their first requests, before the encoder's weights are read.
_FIRST_S = 0.1

_log = structlog.stdlib.get_logger("gateway.config")


class _Closes(Protocol):
    async def close(self) -> None: ...


_Owned = TypeVar("_Owned", bound=_Closes)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway: its ASGI app, and what tests and commands want to reach."""

    app: GatewayApp
    versions: Versioned[Snapshot]
    replica: Replica[Snapshot]
    turns: Turns
    traces: TraceWriter
    store: SqlStore
    drain: Drain
    together: Together
    engine: Engine
    responding: Responding


@asynccontextmanager
async def open_gateway(
    config_path: Path,
    routes_path: Path | None,
    settings: Settings,
    *,
    host: str | None = None,
    root: Path | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
    siblings: Siblings | None = None,
    executes: bool | None = None,
    pace: Pace = USUAL_PACE,
    listening: asyncio.Event | None = None,
    encoders: Encoders | None = None,
) -> AsyncIterator[Gateway]:
    """Build everything, serve while the caller holds it, close everything in reverse.

    Args:
        config_path: the gateway's own file.
        routes_path: the folder of route files, or None.
        settings: the environment.
        host: the address the server is bound to, where it is not the file's.
        root: what relative paths of the configuration start from; the working directory by default.
        clock: time.
        files: the own files as they were read before, to start by where others are active; None for those on disk now.
        siblings: the other worker processes of this gateway, where there are any.
        executes: whether this process executes background runs; by default where no queue is shared with others.
        pace: of leases and looks.
        listening: set once connections are accepted, which the encoder's loading waits for; None: it waits for nothing.
        encoders: those that are loaded already; closed with the gateway.

    Raises:
        ConfigError: the files or the environment are wrong.
        StoreUnavailable: the database cannot be used.
    """
    clock = clock or SystemClock()
    async with contextlib.AsyncExitStack() as stack:

        def owned(made: _Owned) -> _Owned:
            """The same, closed at the end, before whatever is owned by now."""
            stack.push_async_callback(made.close)
            return made

        book = owned(KeyBook(clock))
        builder = owned(
            Builder(
                config_path,
                routes_path,
                settings,
                clock,
                host=host,
                root=root,
                book=book,
                secret=partial(read_secret, settings.gateway_privacy_key),
                encoders=encoders,
            )
        )
        own = (await builder.read() if files is None else await asyncio.to_thread(load_files, files, settings)).config
        # What the first version's making logs, tool servers above all, looks as all later lines do.
        configure_logging(own.observe.log, Redactor(secrets_of(own)))
        alone = own.storage.redis is None
        replica = owned(
            Replica(
                _drafts(builder, alone=alone),
                builder.dismiss,
                own.config.revision,
                shared.bundle_store(own.storage, clock),
                clock,
                alone=alone,
            )
        )
        first = await replica.first()
        redactor = Redactor(secrets_of(first.config))
        metrics = Metrics(
            lambda: Counter(turn.machine.state.value for turn in turns.running.values()),
            lambda: {name: each for pool in versions.current.pools.values() for name, each in pool.standing().items()},
        )
        log = LogSubscriber(first.config.observe.log)

        checks = SelfChecks()

        def adopt(snapshot: Snapshot) -> None:
            """What outlives versions takes over the new one's settings."""
            builder.prepare_backends()
            checks.begin(snapshot.tools)
            if snapshot.keys.configured:
                book.close_for_good()
            redactor.update(secrets_of(snapshot.config))
            redactor.scrub = snapshot.privacy.scrub if snapshot.privacy is not None else None
            configure_logging(snapshot.config.observe.log, redactor)
            log.configure(snapshot.config.observe.log)
            if snapshot.calibration.state == "stale":
                _log.warning("the calibration is stale and not used", reason=snapshot.calibration.reason)
            privacy = snapshot.privacy
            traces.configure(
                snapshot.config.observe.traces,
                lambda owner: privacy.anywhere(owner) if privacy is not None else None,
            )
            pruner.configure(snapshot.config)
            metrics.configure(
                snapshot.version,
                models=tuple(snapshot.config.models),
                routes=tuple(snapshot.routes),
                tools=(*snapshot.tools.specs, READ_RESULT.name, WITHDRAW.name),
                backends=tuple(snapshot.config.backends),
            )
            audience.settle()

        # Who is alone always may, and is not asked at every request.
        guard = None if alone else replica.standing.refuse
        versions = owned(Versioned(first, replica.build, builder.dismiss, clock, guard=guard, took_over=adopt))
        # Stopped first: what they look at is closed then.
        stack.push_async_callback(checks.close)
        store = owned(SqlStore(first.config.storage.database))
        await store.open()
        book.open(store.keys)
        await refuse_open_gateway(first.keys)
        vault = Vault(
            store.private_values,
            lambda: builder.secret(own.storage.database),
            lambda: versions.current.config.privacy.keep_days,
            clock,
        )
        builder.recollection.open(vault)
        traces = owned(TraceWriter(store, first.config.observe.traces, clock, redactor, vault=vault))
        await traces.open()
        settling = Settling(store.effects, clock)
        pruner = owned(
            Pruner(store, settling, first.config, clock, store.sessions, (store.approvals, store.compensations))
        )
        hook_events = owned(HookEvents(versions))
        audience = Audience((metrics, log, traces, hook_events))
        adopt(first)
        pruner.start()
        metrics.count_traces_dropped(lambda: traces.dropped)
        metrics.count_reload_failures(lambda: versions.failures)
        metrics.show_servers(
            lambda: {
                name: server is not None and server.error is None
                for name, server in builder.mcp.servers(versions.current.config.tools).items()
            },
            lambda: {
                name: server.refused if server is not None else 0
                for name, server in builder.mcp.servers(versions.current.config.tools).items()
            },
        )
        metrics.show_config(
            lambda: versions.current.version.generation,
            lambda: max(0.0, clock.now() - versions.changed_at),
            lambda: replica.count,
            lambda: replica.standing.stale,
        )
        live: tuple[LiveSubscriber, ...] = ()
        holder = this_process()
        courier = owned(Courier(clock, Ledger(store.effects, clock, holder, may_live)))
        metrics.show_calls(
            lambda: builder.threads.working, lambda: builder.threads.abandoned, lambda: courier.left_behind
        )
        continuity = owned(Continuity(store.hidden, clock))
        joining = owned(Joining(store.turns, store.journal, clock, holder, may_live))
        desk = Desk(
            store.approvals,
            clock,
            lambda: versions.current.config.approvals,
            lambda: versions.current.config.webhooks,
            lambda tool: versions.current.tools.secrets_of(tool),  # noqa: PLW0108 - that of the version then
        )
        undoing = owned(Undoing(store.effects, store.compensations, store.runs, desk, clock))
        loop = TurnLoop(courier, joining, continuity, Approving(desk, clock), undoing, clock)
        answers = owned(shared.answer_store(own.storage, clock))
        kept = owned(shared.kept_routes(own.storage, clock))
        kept_offers = owned(shared.kept_offers(own.storage, clock))
        usage = owned(UsageWriter(store.usage))
        usage.open()
        permits = owned(Permits(shared.counters(own.storage, clock), store.usage, usage, clock))
        permits.start()
        known = Conversations()
        summarising = owned(Summarising(known, versions, permits.book, clock))
        sessions = owned(SessionKeeper(store.sessions, holder, may_live, clock))
        remembering = owned(Remembering(store.memories, clock))
        turns = Turns(
            versions,
            loop,
            clock,
            continuity,
            joining,
            audience,
            live,
            _status_of,
            AnswerCache(loop, answers),
            permits,
            kept,
            Offering(courier.breakers, kept_offers),
            Scribe(known, summarising, sessions, remembering),
        )
        responding = Responding(turns, store.responses, store.conversations, clock, holder, may_live, _status_of)
        drain = Drain()
        approved = ApprovedHandler(desk, courier, versions, (metrics, traces), clock)

        async def mode_of(turn_id: str, owner: str) -> OnFailure:
            """What a background run's own record says is to become of what it has done."""
            recorded = await joining.pin_of(turn_id, owner)
            said = None if recorded is None else (read_pin(recorded).route or {}).get("on_failure")
            return said or versions.current.config.on_failure or "compensate"

        compensation = CompensationHandler(
            store.effects,
            store.compensations,
            courier,
            versions,
            desk,
            store.audit,
            mode_of,
            may_live,
            (metrics, traces),
            clock,
        )
        engine = owned(
            make_engine(
                store,
                turns,
                responding,
                approved,
                compensation,
                desk,
                versions,
                shared.run_queue(own.storage, clock),
                metrics,
                holder,
                clock,
                executes=alone if executes is None else executes,
                pace=pace,
            )
        )
        stack.push_async_callback(responding.close)
        together = Together(metrics, traces, versions, siblings)
        services = Services(
            turns,
            versions,
            replica,
            kept,
            store.traces,
            store.keys,
            book,
            store.usage,
            usage,
            together,
            settling,
            courier,
            clock,
            drain,
            lambda: builder.mcp.away(versions.current.config.tools),
            engine.runs,
            responding,
            desk,
            store.audit,
            store.compensations,
            sessions,
            remembering,
            vault,
        )
        # Weights load while the first requests are answered; until then decisions say `encoder_loading`.
        preparing = asyncio.create_task(_prepare(first.router, listening), name="encoder")
        stack.push_async_callback(_stop, preparing)
        watch = owned(
            Watch(config_path, routes_path, [builder.root / place for place in first.config.tools.plugins], replica)
        )
        # Of several processes with the same files, one looks at them.
        if first.config.config.watch and (siblings is None or siblings.number == 1):
            watch.start()
        news = owned(News(replica))
        await replica.start(versions)
        builder.mcp.listen(news.tell)
        # Followed first and closed first: nothing is built or swapped while the rest is taken down.
        stack.push_async_callback(replica.close)
        engine.start()
        draining = asyncio.create_task(_drain_runs(drain, engine, first.config.server.drain_s), name="drain")
        stack.push_async_callback(_stop, draining)
        yield Gateway(
            create_app(services), versions, replica, turns, traces, store, drain, together, engine, responding
        )


def _drafts(
    builder: Builder, *, alone: bool
) -> Callable[[int, Snapshot | None, Files | None], Awaitable[Draft[Snapshot]]]:
    """How a replica builds. Alone, the first version answers before its encoder is loaded; others would decide otherwise
    meanwhile.
    """
    begun = False

    async def draft(generation: int, current: Snapshot | None, files: Files | None) -> Draft[Snapshot]:
        nonlocal begun
        made = await builder.draft(generation, current, files, prepared=begun or not alone)
        begun = True
        return made

    return draft


async def _prepare(router: Router, listening: asyncio.Event | None) -> None:
    """Load what deciding by meaning needs, behind what a start is waited for: reading weights takes a core for seconds."""
    if listening is not None:
        await listening.wait()
        await asyncio.sleep(_FIRST_S)
    await router.prepare()


async def _drain_runs(drain: Drain, engine: Engine, grace_s: float) -> None:
    """Once this process is about to stop, no more runs are begun in it."""
    while not drain.begun:
        await asyncio.sleep(_LOOK_S)
    await asyncio.shield(engine.drain(max(1.0, grace_s - 1.0)))


def _status_of(error: GatewayError) -> tuple[int, str | None]:
    answer = describe(error)
    return answer.status, answer.code


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
