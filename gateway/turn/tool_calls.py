"""The registry calls of one answer: through the journal, to the Courier, and their outcomes back in the calls' order.

Knows what has to be durable before a writing call, and what a tool may know of the turn. Does not know how a tool is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.chat.blocks import ToolCall
from gateway.clock import Clock
from gateway.errors import AwaitsApproval, ToolFailed
from gateway.tools.courier import Courier, Outcome
from gateway.tools.guards.remembered import handles_in
from gateway.tools.ledger import EffectPlace
from gateway.tools.spec import ToolContext
from gateway.turn.approving import Approving
from gateway.turn.context import Turn
from gateway.turn.extract import condenser
from gateway.turn.joining import Joining, RecordedRound
from gateway.turn.stream import Sink, outcome_chunk


class ToolCalls:
    """Has registry calls run. Holds no state of any turn.

    Args:
        courier: runs them.
        joining: keeps what another attempt at the turn needs.
        approving: stops those that a human has to approve.
        clock: for durations.
    """

    def __init__(self, courier: Courier, joining: Joining, approving: Approving, clock: Clock) -> None:
        self._courier = courier
        self._approving = approving
        self._joining = joining
        self._clock = clock

    async def before(self, turn: Turn, calls: Sequence[ToolCall]) -> None:
        """Commit what has to be durable before these calls; nothing where all of them only read, but for a run. Comes before `run`.

        Raises:
            JoinElsewhere: another attempt at this turn was quicker.
            StoreUnavailable: it could not be committed; the calls may not be made.
        """
        joinable = turn.joinable
        if joinable is not None and (
            joinable.asked.durable
            or any(spec.writes or spec.gated for call in calls if (spec := turn.offered.get(call.name)) is not None)
        ):
            await self._joining.before_writes(joinable)
            turn.record.emit("journal.written", round=turn.machine.rounds)

    async def run(
        self,
        turn: Turn,
        calls: Sequence[ToolCall],
        recorded: RecordedRound | None,
        sink: Sink | None,
        *,
        pictures: bool = False,
        confidences: Mapping[str, float | None] | None = None,
    ) -> tuple[Outcome, ...]:
        """Run the registry calls of the turn's round, those apart whose outcome an earlier attempt recorded.

        `confidences` says how sure the model is of calls that may depend on that. `pictures` says whether there is room for the pictures that tools return. A client that asked to see registry calls is told by the sink how they ended.

        Raises:
            StoreUnavailable: a writing call could not be written down, and was not made.
            ToolFailed: a tool ends the turn.
            AwaitsApproval: a background run has to wait for a human.
        """
        number = turn.machine.rounds
        joinable = turn.joinable
        positions = {call.id: index for index, call in enumerate(calls)}
        known = recorded.outcomes if recorded is not None else {}
        left = tuple(call for call in calls if positions[call.id] not in known)

        def context_for(call: ToolCall) -> ToolContext:
            return ToolContext(
                user=turn.principal.user,
                key=turn.principal.key_id,
                team=turn.principal.team,
                session=turn.session,
                trace_id=turn.record.trace_id,
                idempotency_key=f"{turn.turn_id}.{number}.{positions[call.id]}",
                headers=_handed(turn, call) if turn.headers else {},
            )

        def place_for(call: ToolCall) -> EffectPlace:
            owner, trace_id = turn.principal.owner, turn.record.trace_id
            return EffectPlace(owner, turn.turn_id, trace_id, number, positions[call.id])

        started = self._clock.monotonic()
        try:
            made = await self._courier.execute(
                left,
                turn.offered,
                context_for,
                turn.record,
                parallel=turn.parallel,
                registry=turn.snapshot.tools,
                place_for=place_for,
                remembered=turn.remembered,
                condense=condenser(turn, self._clock),
                confidences=confidences,
                gate=self._approving.gate(turn, positions),
                pictures=pictures and turn.pool.shows_pictures and turn.answer_pool.shows_pictures,
            )
        finally:
            turn.tool_s += self._clock.monotonic() - started
        fresh = iter(made)
        outcomes = tuple(known[positions[call.id]] if positions[call.id] in known else next(fresh) for call in calls)
        turn.may_read(handles_in(outcome.content for outcome in known.values()))
        turn.succeeded(outcome.name for outcome in outcomes if outcome.ok)
        if sink is not None and turn.shows_tools:
            await sink.relay([outcome_chunk(number, outcome) for outcome in outcomes])
        fatal = next((outcome.fatal for outcome in outcomes if outcome.fatal is not None), None)
        if fatal is not None:
            raise ToolFailed(fatal)
        if any(outcome.approval for outcome in outcomes):
            # Nothing is recorded: whoever goes on with the turn looks again what has become of them.
            if joinable is not None and joinable.asked.durable and turn.approvals is not None:
                until = min(row.expires_at for row in turn.approvals.waiting.values())
                raise AwaitsApproval(turn.waits_for, until)
            return outcomes
        if joinable is not None and not known:
            self._joining.note_outcomes(joinable, number, outcomes, turn.record.trace_id)
            if joinable.asked.durable:
                await self._joining.before_writes(joinable)
        return outcomes


def _handed(turn: Turn, call: ToolCall) -> Mapping[str, str]:
    """The client's headers that this tool is configured to get, and no other."""
    spec = turn.offered.get(call.name)
    names = spec.forward_headers if spec is not None else ()
    return {name: turn.headers[name] for name in names if name in turn.headers}
