"""One turn: what it was asked, what was decided, what it may use.

Values, made once by `prepare.py`. Does not know how the turn is driven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.backends.pool import Pool
from gateway.chat.blocks import Message
from gateway.chat.request import ChatRequest
from gateway.chat.usage import Usage
from gateway.config.models import CacheConfig
from gateway.observe.events import Recorder
from gateway.routing.decision import Decision
from gateway.security.principal import Principal
from gateway.tools.spec import ToolSpec
from gateway.turn.joining import Joinable
from gateway.turn.snapshot import Snapshot
from gateway.turn.state import Machine, State


@dataclass(slots=True)
class Turn:
    """One client request up to its final answer.

    Attributes:
        record: its trace.
        principal: who asks.
        request: what was asked, after hooks.
        snapshot: the version it keeps to its end.
        decision: where it goes.
        pool: the model's backends.
        wanted: what stood in the place of the `*` of a wildcard model's name.
        fallbacks: whether other models may stand in.
        shown_model: the model name answers carry.
        messages: the conversation the first round sends.
        fields: the request fields every round sends, `tools`, `tool_choice` and `parallel_tool_calls` apart.
        offered: registry tools by name.
        tools_wire: the whole `tools` array, or None where nothing is offered.
        choice: the first round's `tool_choice`, encoded, or None.
        parallel: whether several calls of one answer may run at once.
        max_rounds: rounds with registry tool calls that are allowed.
        deadline: monotonic seconds at which the turn has to be over.
        session: the session the client named.
        headers: the client's headers that tools may be handed, lower case.
        answer_id: the id of the answer.
        backend: who answered last, and `answered_by` the model it was asked as: the decision's, or a fallback.
        created: seconds since the epoch.
        cache: how its answer may be kept and given again, or None.
        recalled: whether its answer is one that was kept for whoever asks the same.
        joinable: what others need to join it, or None where nobody would.
        replayed: what the headers of the answer said that is told again, or None.
        replayed_usage: what that answer cost when it was given.
        prefix: what the id of the answer begins with: its API's.
    """

    record: Recorder
    principal: Principal
    request: ChatRequest
    snapshot: Snapshot
    decision: Decision
    pool: Pool
    wanted: str
    fallbacks: bool
    shown_model: str
    messages: tuple[Message, ...]
    fields: Mapping[str, msgspec.Raw]
    offered: Mapping[str, ToolSpec]
    tools_wire: bytes | None
    choice: bytes | None
    parallel: bool
    max_rounds: int
    deadline: float
    session: str | None
    answer_id: str
    created: int
    cache: CacheConfig | None = None
    recalled: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    usage: Usage = field(default_factory=Usage)
    backend: str | None = None
    answered_by: str | None = None
    upstream_s: float = 0.0
    tool_s: float = 0.0
    first_token_s: float | None = None
    joinable: Joinable | None = None
    replayed: Mapping[str, Any] | None = None
    replayed_usage: Usage | None = None
    prefix: str = "chatcmpl-"

    def step(self, state: State, reason: str = "") -> None:
        """Move the machine and leave the step in the trace."""
        before = self.machine.to(state)
        self.record.emit("state.changed", **{"from": before.value, "to": state.value, "reason": reason})

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
        }

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
        model = self.answered_by or self.pool.name
        # What stands for a `*` is known from the name that was asked for.
        return self.shown_model if model == self.pool.name and self.wanted else model

    @property
    def turn_id(self) -> str:
        """The same for every attempt."""
        return self.joinable.turn_id if self.joinable is not None else self.record.trace_id

    @property
    def client_tools(self) -> frozenset[str]:
        """Names of the tools the client will run itself."""
        return frozenset(tool.name for tool in self.request.tools)
