"""One turn: what it was asked, what was decided, what it may use.

Values, made once by `prepare.py`. Does not know how the turn is driven.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec
from msgspec import field

from gateway.backends.pool import Pool
from gateway.chat.blocks import Message
from gateway.chat.request import ChatRequest, tool_name_of
from gateway.chat.usage import Usage
from gateway.config.approvals import OnFailure
from gateway.config.models import CacheConfig
from gateway.observe.events import Recorder
from gateway.routing.decision import Decision
from gateway.security.masking.messages import Conversation
from gateway.security.principal import Principal
from gateway.tools.guards.paging import READ_RESULT
from gateway.tools.guards.remembered import Remembered
from gateway.tools.spec import ToolSpec
from gateway.tools.wires import NO_WIRES, ToolWires
from gateway.turn.joining import Joinable
from gateway.turn.snapshot import Snapshot
from gateway.turn.state import Machine, State
from gateway.turn.terms import Terms
from gateway.turn.waiting import TurnApprovals
from gateway.turn.windowing import TurnWindow

_NOTHING_USED: Final = Usage()
_NO_NAMES: Final = frozenset[str]()
# One for all turns without any: nobody writes into them.
_NO_TOOLS: Final[Mapping[str, ToolSpec]] = MappingProxyType({})
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Permit(Protocol):
    """What lets a turn run."""

    async def next_round(self, turn: Turn, messages: Sequence[Message]) -> None:
        """Make sure that its turn may go on to its next round, which sends these messages. Raises `GatewayError`."""
        ...


class Keeps(Protocol):
    """A turn's stay in a session."""

    @property
    def appends(self) -> bool:
        """Whether the client sent what is new alone, so that it never sends an earlier answer back."""
        ...

    async def keep(self, turn: Turn, said: Sequence[Message]) -> None:
        """Commit what was asked and said. Raises `GatewayError`."""
        ...

    def leave(self, record: Recorder | None) -> None:
        """The turn is over: what it did not keep is left out, which is told in the record."""
        ...


class Left(msgspec.Struct, frozen=True):
    """What is left of a minute's allowance, and seconds until it is whole again."""

    limit: int
    left: float
    whole_in_s: float


class Standing(msgspec.Struct, frozen=True):
    """What is left to a caller, where requests or tokens are limited."""

    requests: Left | None = None
    tokens: Left | None = None


class Turn(msgspec.Struct, eq=False):
    """One client request up to its final answer.

    Attributes:
        record: its trace.
        principal: who asks.
        request: what was asked, after hooks.
        snapshot: the version it keeps to its end.
        decision: where it goes.
        terms: what the model it goes to and the route settle for it.
        pool: who is asked as long as tools may be called: the model, its `tool_model`, or what the turn was escalated to.
        answer_pool: who is asked for an answer without tools: the same, or the model's `answer_model`.
        escalate: the model to go on with once arguments have failed twice, or None.
        wanted: what stood in the place of the `*` of a wildcard model's name.
        fallbacks: whether other models may stand in.
        shown_model: the model name answers carry.
        messages: the conversation the first round sends.
        fields: the request fields every round sends, `tools`, `tool_choice` and `parallel_tool_calls` apart.
        offered: registry tools by name.
        waiting: tools that are offered as soon as what they require has succeeded, by the names they get.
        done: tools that have succeeded in the thread.
        wires: what goes upstream as `tools`, in every dialect of schemas.
        tools_wire: the whole `tools` array, or None where nothing is offered.
        choice: the first round's `tool_choice`, encoded, or None.
        requires_tool: whether a tool has to be called before an answer counts.
        parallel: whether several calls of one answer may run at once.
        limit_s: seconds it may take in all.
        deadline: monotonic seconds at which the turn has to be over.
        session: the session the client named.
        headers: the client's headers that tools may be handed, lower case.
        shows_tools: whether its stream shows registry calls too.
        remembered: what the Courier remembers of it; None as long as nothing may be called.
        answer_id: the id of the answer.
        backend: who answered last, and `answered_by` the model it was asked as: the decision's, or one that stood in.
        stays: the backend that each model asked stays on.
        created: seconds since the epoch.
        cache: how its answer may be kept and given again, or None.
        recalled: whether its answer is one that was kept for whoever asks the same.
        joinable: what others need to join it, or None where nobody would.
        tags: the caller's and the request's.
        spent: what was used so far, by the backend that answered.
        permit: what lets it run, while it does.
        standing: what is left to its caller.
        replayed: what the headers of the answer said that is told again, or None.
        replayed_usage: what that answer cost when it was given.
        prefix: what the id of the answer begins with: its API's.
        pin: what decides it, to be recorded; None where that is done, or it is no run's.
        private: what is private in it, or None where nothing is.
        approvals: what it knows of approvals; None where it has nothing to do with any.
        window: makes its conversation fit the backends, or None where it is sent as it is.
        on_failure: what becomes of its effects when a later step fails.
        tells_tokens: whether log-probabilities are asked for, to see how sure the model is of its calls.
        goes_on: whether the model has answered in its conversation before.
        bare: whether it is known that no hidden rounds stand in its conversation.
        gives_bare: whether that is known of its answer, too, and to be remembered once it is out.
        gone_away: whether its client has left.
        stay: its turn in a session that the gateway keeps, or None.
        changed: tools of a run that are others than when it began, and `gone` those that there are no more.
    """

    record: Recorder
    principal: Principal
    request: ChatRequest
    snapshot: Snapshot
    decision: Decision
    terms: Terms
    pool: Pool
    answer_pool: Pool
    shown_model: str
    messages: tuple[Message, ...]
    fields: Mapping[str, msgspec.Raw]
    limit_s: float
    deadline: float
    answer_id: str
    created: int
    session: str | None = None
    escalate: Pool | None = None
    wanted: str = ""
    fallbacks: bool = True
    offered: Mapping[str, ToolSpec] = _NO_TOOLS
    wires: ToolWires = NO_WIRES
    tools_wire: bytes | None = None
    choice: bytes | None = None
    waiting: Mapping[str, ToolSpec] = _NO_TOOLS
    done: frozenset[str] = _NO_NAMES
    requires_tool: bool = False
    parallel: bool = True
    cache: CacheConfig | None = None
    recalled: bool = False
    headers: Mapping[str, str] = _NO_HEADERS
    shows_tools: bool = False
    remembered: Remembered | None = None
    machine: Machine = field(default_factory=Machine)
    usage: Usage = _NOTHING_USED
    tags: frozenset[str] = frozenset()
    spent: list[tuple[str | None, Usage]] = field(default_factory=list)
    permit: Permit | None = None
    standing: Standing | None = None
    backend: str | None = None
    answered_by: str | None = None
    stays: dict[str, str] = field(default_factory=dict)
    upstream_s: float = 0.0
    tool_s: float = 0.0
    first_token_s: float | None = None
    joinable: Joinable | None = None
    replayed: Mapping[str, Any] | None = None
    replayed_usage: Usage | None = None
    prefix: str = "chatcmpl-"
    pin: Any = None
    private: Conversation | None = None
    approvals: TurnApprovals | None = None
    on_failure: OnFailure = "keep"
    goes_on: bool = True
    bare: bool = False
    gives_bare: bool = False
    gone_away: bool = False
    tells_tokens: bool = False
    window: TurnWindow | None = None
    stay: Keeps | None = None
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def step(self, state: State, reason: str = "") -> None:
        """Move the machine and leave the step in the trace."""
        # States are texts; asking for their `value` takes three calls.
        self.record.add("state.changed", {"from": self.machine.to(state), "to": state, "reason": reason})

    def answered_from(self, asked: str, backend: str, model: str) -> None:
        """A backend of `model` answers, which was asked for `asked`: later rounds ask it first."""
        self.backend, self.answered_by = backend, model
        self.stays[asked] = backend

    def used(self, usage: Usage, *, before: bool = False, backend: str | None = None) -> None:
        """Add up what a call took; `before`: an earlier attempt at the turn has paid for it; `backend` if it wasn't the turn's."""
        # Nothing and one call's: that is all that most turns add up.
        self.usage = usage if self.usage is _NOTHING_USED else self.usage + usage
        if not before:
            self.spent.append((backend or self.backend, usage))

    def told(self) -> dict[str, Any]:
        """What the headers of its answer say, as a JSON value."""
        decision = self.decision
        return {
            "version": decision.version,
            "route": decision.route,
            "strategy": decision.strategy,
            "score": decision.score,
            "model": self.answering,
            "backend": self.backend,
            "created": self.created,
            "shown_model": self.shown_model,
            **({"approval": ",".join(self.waits_for)} if self.waits_for else {}),
        }

    def may_read(self, handles: Iterable[str] = ()) -> None:
        """Let results be read on in, and offer what reads once there is one."""
        remembered = self._remembering()
        remembered.handles.update(handles)
        if not remembered.handles or READ_RESULT in self.offered.values():
            return
        name = READ_RESULT.name
        if name in self.offered or name in self.client_tools:
            name = f"gateway__{name}"
        self._offer(name, READ_RESULT)

    def may_withdraw(self, spec: ToolSpec) -> None:
        """Offer what withdraws approvals."""
        choice = self.request.tool_choice
        if spec in self.offered.values() or (choice is not None and choice.mode == "none"):
            return
        self._offer(f"gateway__{spec.name}" if spec.name in self.client_tools else spec.name, spec)

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The approvals that its calls wait for."""
        return tuple(self.approvals.waiting) if self.approvals is not None else ()

    def succeeded(self, names: Iterable[str]) -> None:
        """Tools have succeeded, by the names they were called by: what waited for them is offered from now on."""
        if not self.waiting:
            return
        self.done |= {self.offered[name].name for name in names if name in self.offered}
        follow = {name: spec for name, spec in self.waiting.items() if self.snapshot.tools.required(spec) <= self.done}
        self.waiting = {name: spec for name, spec in self.waiting.items() if name not in follow}
        for name, spec in follow.items():
            self._offer(name, spec)

    def _remembering(self) -> Remembered:
        if self.remembered is None:
            self.remembered = Remembered()
        return self.remembered

    def _offer(self, name: str, spec: ToolSpec) -> None:
        """Offer one more tool; those that were offered stay as they are."""
        self._remembering()
        self.offered = {**self.offered, name: spec}
        self.wires = self.wires.also(name, spec)
        self.tools_wire = self.wires.whole
        self.record.emit("tools.offered", names=[name])

    def joined(self, turn_id: str) -> None:
        """Answer as the turn of this id: what it is called does not change with the attempt."""
        self.answer_id = f"{self.prefix}{turn_id}"

    def begin_again(self) -> None:
        """Forget this attempt: the turn is another's."""
        self.machine = Machine()
        self.joinable = None

    @property
    def answering(self) -> str:
        """The model that answered: the chosen one, or the fallback that stood in for it."""
        model = self.answered_by or self.terms.model
        # What stands for a `*` is known from the name that was asked for.
        return self.shown_model if self.wanted and model == self.terms.model else model

    @property
    def turn_id(self) -> str:
        """The same for every attempt."""
        return self.joinable.turn_id if self.joinable is not None else self.record.trace_id

    @property
    def client_tools(self) -> frozenset[str]:
        """Names of the tools the client will run itself."""
        tools = self.request.tools
        return frozenset(map(tool_name_of, tools)) if tools else _NO_NAMES
