"""The Scribe at work: which window a turn gets.

Knows the objects behind it, which live as long as the process. What a window does is `windowing.py`'s.
"""

from __future__ import annotations

from gateway.chat.blocks import Message
from gateway.chat.request import ChatRequest
from gateway.observe.events import Recorder
from gateway.scribe.conversations import Conversations
from gateway.security.principal import Principal
from gateway.turn.context import Turn
from gateway.turn.prepare import Wishes
from gateway.turn.remembering import Remembering
from gateway.turn.session import SessionKeeper, Stay
from gateway.turn.snapshot import Snapshot
from gateway.turn.summarising import Summarising
from gateway.turn.windowing import TurnWindow


class Scribe:
    """Keeps conversations short.

    Args:
        conversations: those of this process.
        summarising: has a model write summaries; None where they are extracted.
        sessions: keeps conversations; None where nobody does.
        remembering: remembers beyond conversations; None where nobody does.
    """

    def __init__(
        self,
        conversations: Conversations | None = None,
        summarising: Summarising | None = None,
        sessions: SessionKeeper | None = None,
        remembering: Remembering | None = None,
    ) -> None:
        self.conversations = conversations or Conversations()
        self._summarising = summarising
        self._sessions = sessions
        self._remembering = remembering

    async def enter(
        self, request: ChatRequest, principal: Principal, wishes: Wishes, snapshot: Snapshot, record: Recorder
    ) -> Stay | None:
        """Begin a turn in the session it names; None where no session is kept.

        Raises:
            GatewayError: it cannot be entered.
        """
        config = snapshot.config.context.sessions
        if wishes.session is None or wishes.stored or not config.store or self._sessions is None:
            return None
        limit_s = snapshot.config.server.turn_timeout_s
        return await self._sessions.enter(request, principal, wishes, config, record, limit_s)

    def window(self, turn: Turn, wishes: Wishes) -> TurnWindow | None:
        """The window of a turn; None where its conversation is sent as it is."""
        settings = turn.terms.window
        if settings is None:
            return None
        snapshot, record = turn.snapshot, turn.record
        if settings.by_size and turn.stay is None and not wishes.stored:  # nearly all turns
            return TurnWindow(
                self.conversations, snapshot.patterns, settings, record.owner, turn.session, record, always=False
            )
        kept = turn.stay is not None or (wishes.stored and snapshot.config.context.sessions.store)
        return TurnWindow(
            self.conversations,
            snapshot.patterns,
            settings,
            record.owner,
            turn.session,
            record,
            kept=kept,
            choose=None if settings.by_size else snapshot.tools.strategies.get(settings.strategy),
            always=kept or not settings.by_size,
        )

    async def before(self, turn: Turn) -> None:
        """What is to be done before the model is asked."""
        if self._summarising is not None:
            await self._summarising.before(turn)

    async def recall(self, turn: Turn) -> None:
        """Tell the turn's model what is remembered of its owner."""
        if self._remembering is None or turn.window is None:
            return
        turn.window.memories = await self._remembering.recall(turn)
        if turn.window.memories:
            turn.window.always = True

    def behind(self, turn: Turn, answer: Message) -> None:
        """What is to be done once the turn has been answered."""
        if self._remembering is not None and turn.terms.recalls:
            self._remembering.behind(turn, answer)
        if self._summarising is not None:
            self._summarising.behind(turn)
