"""A turn on a stage: real loop, Courier, pool and registry; scripted backend, recording tools, sink and journal."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from gateway.approvals.desk import Desk
from gateway.backends.attempts import Tier
from gateway.backends.choice import Member
from gateway.backends.pool import Pool
from gateway.backends.watched import WatchedBackend
from gateway.chat.codecs.chat_completions import decode_request
from gateway.clock import Clock, SystemClock
from gateway.config.models import BackendConfig, GatewayConfig, IdempotencyConfig, RouteConfig
from gateway.config.names import ModelNames
from gateway.config.versions import Version, Versioned
from gateway.observe.audience import Audience
from gateway.observe.events import Recorder
from gateway.observe.usage import UsageWriter
from gateway.routing.decision import Decision
from gateway.routing.facts import Facts
from gateway.security.keys import KeyRing
from gateway.security.memory_counters import MemoryCounters
from gateway.security.prices import Price, Prices
from gateway.security.principal import Principal
from gateway.store.answers import MemoryAnswers
from gateway.store.memory import MemoryStore
from gateway.store.memory_keys import MemoryUsage
from gateway.tools.courier import Courier
from gateway.tools.ledger import Ledger
from gateway.tools.registry import Registry
from gateway.turn.answers import AnswerCache
from gateway.turn.approving import Approving
from gateway.turn.context import Turn
from gateway.turn.continuity import Continuity
from gateway.turn.hooks import Hook, Hooks
from gateway.turn.joining import Asked, Joining, Replay
from gateway.turn.loop import TurnLoop, TurnResult
from gateway.turn.permits import Permits
from gateway.turn.prepare import Preparing, Wishes
from gateway.turn.service import Turns
from gateway.turn.snapshot import Snapshot
from gateway.turn.undoing import Undoing
from tests.fakes import KeptJournal, RecordingProvider, RecordingSink, ScriptedBackend

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


class FixedRouter:
    """`Router` that always decides the same."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.facts: list[Facts] = []

    async def decide(self, facts: Facts, *, explain: bool = False) -> Decision:
        self.facts.append(facts)
        return self.decision

    async def read_ahead(self, many: Sequence[Facts]) -> None:
        return

    async def prepare(self) -> None:
        return

    async def close(self) -> None:
        return


@dataclass
class Stage:
    """What a test looks at afterwards."""

    backend: ScriptedBackend
    provider: RecordingProvider
    snapshot: Snapshot
    loop: TurnLoop
    courier: Courier
    continuity: Continuity
    joining: Joining
    journal: KeptJournal
    clock: Clock
    principal: Principal
    sink: RecordingSink = field(default_factory=RecordingSink)
    record: Recorder = field(init=False)
    turn: Turn | None = None

    def __post_init__(self) -> None:
        self.record = Recorder(TRACE_ID, self.principal.owner, self.clock)

    async def prepare(self, wishes: Wishes | None = None, **request: Any) -> Turn:
        """Make the turn of a request; `model` and `messages` are given unless named."""
        body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], **request}
        read = decode_request(json.dumps(body).encode())
        preparing = Preparing(self.clock, self.continuity)
        self.turn = await preparing.turn(read, self.principal, wishes or Wishes(), self.snapshot, self.record)
        return self.turn

    async def run(self, *, streamed: bool, **request: Any) -> TurnResult:
        """Prepare and run."""
        turn = await self.prepare(**request)
        asked = Asked(self.principal.owner, b"", None, retried=False)
        entered = await self.joining.enter(asked, TRACE_ID, IdempotencyConfig(), turn.deadline)
        assert not isinstance(entered, Replay)
        turn.joinable = entered
        try:
            result = await self.loop.run(turn, self.sink if streamed else None)
            if turn.gives_bare:
                self.continuity.bare(turn.record.owner, turn.session, turn.request.messages, result.message)
            return result
        finally:
            self.joining.leave(entered)

    async def answer(self, *, streamed: bool, **request: Any) -> Seen:
        """Run, and what the client saw, the same in both forms."""
        result = await self.run(streamed=streamed, **request)
        assert self.turn is not None
        if streamed:
            assert (self.sink.ended, self.sink.finish_calls) == (True, 1)
            assert len(self.sink.roles) == 1
            assert len(self.sink.finishes) == 1
            assert self.sink.usage is not None
            return Seen(self.sink.text, self.sink.calls, self.sink.finishes[0], self.sink.usage.as_openai())
        assert result.body is not None
        body = json.loads(result.body)
        assert (body["id"], body["model"], body["created"]) == (
            self.turn.answer_id,
            self.turn.shown_model,
            self.turn.created,
        )
        message = body["choices"][0]["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        return Seen(message["content"] or "", calls, body["choices"][0]["finish_reason"], body["usage"])

    def ran(self) -> list[tuple[str, dict[str, Any]]]:
        """The registry tools that ran, and their arguments."""
        return [(name, dict(arguments)) for name, arguments in self.provider.calls]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The data of the trace's events of this kind."""
        return [event.data for event in self.record.events if event.type == kind]

    def kinds(self) -> list[str]:
        """The kinds of the trace's events, in order."""
        return [event.type for event in self.record.events]

    def service(self, *subscribers: Any) -> Turns:
        """The frame around turns, over this stage."""
        versions = Versioned(self.snapshot, _never, _nothing, self.clock)
        answers = AnswerCache(self.loop, MemoryAnswers(self.clock))
        return Turns(
            versions,
            self.loop,
            self.clock,
            self.continuity,
            self.joining,
            Audience(subscribers),
            (),
            lambda error: (400, None),
            answers,
            Permits(MemoryCounters(self.clock), MemoryUsage(), UsageWriter(MemoryUsage()), self.clock),
        )


@dataclass(frozen=True)
class Seen:
    """An answer as its client sees it."""

    text: str
    calls: list[tuple[str, str]]
    finish: str
    usage: dict[str, Any]


async def _never(generation: int, current: Snapshot) -> Snapshot:
    return current


async def _nothing(snapshot: Snapshot) -> None:
    return


def scripted_pool(backends: Sequence[ScriptedBackend], *, retries: int, clock: Clock, name: str = "m") -> Pool:
    """A model over these backends, in order."""
    config = BackendConfig(provider="demo")
    members = tuple(Member(WatchedBackend([backend], config)) for backend in backends)
    return Pool(name, [Tier(name, members, "ordered", retries)], clock)


@asynccontextmanager
async def stage(
    backend: ScriptedBackend,
    provider: RecordingProvider | None = None,
    *,
    route: Mapping[str, Any] | None = None,
    tools: Mapping[str, Any] | None = None,
    hooks: Mapping[str, Sequence[Hook]] | None = None,
    journal: KeptJournal | None = None,
    principal: Principal | None = None,
    backends: Sequence[ScriptedBackend] = (),
    retries: int = 0,
    turn_timeout_s: float = 10,
    clock: Clock | None = None,
    model: Mapping[str, Any] | None = None,
    others: Mapping[str, ScriptedBackend] | None = None,
    price: Price | None = None,
) -> AsyncIterator[Stage]:
    """Model `m` over the backend, route `r` to it with every tool of the provider.

    `model` is laid over the model's configuration; `others` are more models, each over a backend of its own;
    `price` is the first backend's.
    """
    clock = clock or SystemClock()
    provider = provider or RecordingProvider([])
    names = [spec.name for spec in await provider.list()]
    config = GatewayConfig.model_validate(
        {
            "server": {"turn_timeout_s": turn_timeout_s},
            "backends": {"b1": {"provider": "demo"}},
            "models": {
                "m": {"backends": ["b1"], **(model or {})},
                **{name: {"backends": ["b1"]} for name in others or {}},
            },
            "router": {"default": "m"},
            "tools": {"plugins": [], **(tools or {})},
        }
    )
    registry = await Registry.build([provider], config.tools)
    settings = {"route": "r", "model": "m", "keywords": ["hi"], "tools": names, **(route or {})}
    version = Version(1, "f" * 64)
    snapshot = Snapshot(
        version=version,
        config=config,
        keys=KeyRing(config.keys, "127.0.0.1"),
        routes={"r": RouteConfig.model_validate(settings)},
        router=FixedRouter(Decision("r", "m", "rule", str(version))),
        tools=registry,
        pools={
            "m": scripted_pool([backend, *backends], retries=retries, clock=clock),
            **{
                name: scripted_pool([each], retries=retries, clock=clock, name=name)
                for name, each in (others or {}).items()
            },
        },
        hooks=Hooks(hooks or {}),
        created=1,
        names=ModelNames(config.models, {}),
        prices=Prices({backend.name: price}),
    )
    store = MemoryStore()
    # No call of these tests has a gate.
    desk = Desk(cast(Any, None), clock, lambda: config.approvals, dict)
    undoing = Undoing(store.effects, cast(Any, None), cast(Any, None), desk, clock)
    courier = Courier(clock, Ledger(store.effects, clock, "this", lambda _: False))
    kept = journal or KeptJournal()
    continuity = Continuity(store.hidden, clock)
    joining = Joining(store.turns, kept, clock, "this|1|-|process", lambda _: False)
    try:
        yield Stage(
            backend,
            provider,
            snapshot,
            TurnLoop(courier, joining, continuity, Approving(desk, clock), undoing, clock),
            courier,
            continuity,
            joining,
            kept,
            clock,
            principal or Principal("key"),
        )
    finally:
        await continuity.close()
        await joining.close()
        await courier.close(0)
        await registry.close()
