"""How a turn ends: the one answer of all its rounds, what stands behind it, and what is durable before its last byte.

Knows the answer's text, calls, finish reason and body. Does not know how rounds are run.
"""

from __future__ import annotations

import msgspec

from gateway.chat.answer import Answer, Choice
from gateway.chat.blocks import Message, Reasoning, Text, ToolCall
from gateway.chat.codecs.chat_answer import changed_answer, named_answer, whole_answer
from gateway.chat.normalise import finish_reason
from gateway.chat.usage import Usage
from gateway.turn.context import Turn
from gateway.turn.continuity import Behind, Continuity
from gateway.turn.hidden import hidden_rounds, in_older_form, replayable_message
from gateway.turn.joining import Joining
from gateway.turn.progress import Progress, thoughts_of
from gateway.turn.round import Round
from gateway.turn.state import TERMINATED
from gateway.turn.stream import Sink


class TurnResult(msgspec.Struct, frozen=True, gc=False):
    """How a turn ended.

    Attributes:
        body: the answer's JSON, where it was not streamed.
        choices: every answer, where the client asked for several and `body` is None.
    """

    message: Message
    finish_reason: str | None
    body: bytes | None = None
    choices: tuple[Choice, ...] = ()


class Ending:
    """Ends turns. Holds no state of any turn.

    Args:
        joining: keeps the answer for whoever asks again.
        continuity: keeps the rounds that the client does not see.
    """

    def __init__(self, joining: Joining, continuity: Continuity) -> None:
        self._joining = joining
        self._continuity = continuity

    async def end(self, turn: Turn, progress: Progress, sink: Sink | None) -> TurnResult:
        """Make the answer, commit what has to be, and send the stream's end.

        Args:
            turn: whose.
            progress: how far it has come: to a last round, at least.
            sink: where the answer is streamed to, or None.

        Raises:
            StoreUnavailable: what is behind the answer could not be kept.
        """
        last = progress.last
        assert last is not None, "a turn that ends has an answer"
        theirs, stopped = progress.theirs, progress.stopped
        if stopped is not None or progress.closing is not None:
            await _add_own(progress, sink)
        reason = "stop"
        if stopped is not None:
            reason = "length"
        elif last.finish_reason != "stop" or theirs:
            reason = _reason(last.finish_reason, turn, theirs=bool(theirs))
        message = last.message
        if len(progress.answers) != 1 or progress.words or theirs != last.calls:
            message = _message(progress, last)
        if turn.snapshot.hooks.on_answer:
            message = await self._hooked(turn, message)
        body = None if sink is not None else _body(turn, last, message, reason)
        result = TurnResult(message, reason, body, last.choices)
        behind, bare = None, turn.bare
        if progress.used or turn.stay is not None or turn.joinable is not None:
            behind, bare = await self._keep(turn, progress, last, result)
        if sink is not None:
            assert progress.stream is not None, "it is streamed"
            # With registry tools offered, the end of a round was held back; without, it went out as it came.
            await sink.finish(None if 0 in progress.stream.finished else result.finish_reason, turn.usage)
        if behind is not None:
            self._continuity.keep_soon(behind)
            turn.record.emit("hidden.kept", messages=len(behind.hidden))
        elif bare and turn.snapshot.tools.specs:
            turn.gives_bare = True
        turn.step(TERMINATED, reason if stopped is None else f"{reason}: {stopped}")
        return result

    async def _keep(
        self, turn: Turn, progress: Progress, last: Round, result: TurnResult
    ) -> tuple[Behind | None, bool]:
        """Keep what has to be before the last byte; what may be kept behind it, and whether nothing stands behind the answer."""
        behind = _behind(turn, progress, last, result) if progress.used else None
        bare = turn.bare and behind is None
        if turn.stay is not None:
            await turn.stay.keep(turn, behind.hidden if behind is not None else (replayable_message(result.message),))
            if turn.stay.appends:  # of a session's own messages nothing is hidden
                behind, bare = None, False
        joinable = turn.joinable
        if behind is not None and (progress.theirs or (joinable is not None and joinable.begun)):
            # Of a mixed turn the client's next request depends on them, and comes at once.
            await self._continuity.keep(behind)
            turn.record.emit("hidden.kept", messages=len(behind.hidden))
            behind = None
        if joinable is not None:
            await self.commit(turn, result, turn.usage)
        return behind, bare

    async def commit(self, turn: Turn, result: TurnResult, usage: Usage) -> None:
        """Keep the answer for whoever repeats the turn, before its last byte is sent; nothing where nobody would.

        Raises:
            StoreUnavailable: it could not be kept, or the turn is somebody else's by now.
        """
        joinable = turn.joinable
        if joinable is None or not joinable.begun:
            return
        body = result.body or _whole(turn, result.message, result.finish_reason, result.choices, usage)
        await self._joining.answered(joinable, body, turn.told())

    async def _hooked(self, turn: Turn, message: Message) -> Message:
        """The message that hooks make of it."""
        hooked = await turn.snapshot.hooks.answer(message, turn.principal)
        if hooked is not message:
            turn.record.emit("hook.changed", hook="on_answer")
        return hooked


async def _add_own(progress: Progress, sink: Sink | None) -> None:
    """The gateway's own words, at the end of what the model has said."""
    for words in (progress.stopped and f"(Stopped: {progress.stopped}.)", progress.closing):
        if words is not None:
            said = progress.say(words)
            if sink is not None:
                await sink.add(said)


def _body(turn: Turn, last: Round, message: Message, reason: str | None) -> bytes:
    """The answer's JSON, for a turn that ends with this message."""
    answer = last.answer
    if answer is None:
        return _whole(turn, message, reason, last.choices, turn.usage)
    # Its own message, or one in which a call has got another id.
    unchanged = message is answer.message and reason == answer.said_finish and turn.machine.rounds == 1
    if unchanged and last.told_usage:
        return named_answer(answer.body, turn.answer_id, turn.created, turn.shown_model)
    return _changed(turn, answer, message, reason)


def _message(progress: Progress, last: Round) -> Message:
    """The one message of all rounds: everything that was thought and said, and the client's calls."""
    message = last.message
    text, thought = progress.said, progress.thought
    if last.calls == progress.theirs and text == message.text and thought == thoughts_of(message):
        return message
    rest = tuple(b for b in message.blocks if not isinstance(b, (Reasoning, Text, ToolCall)))
    first = (Reasoning(thought),) if thought else ()
    return Message("assistant", (*first, *rest, *((Text(text),) if text else ()), *progress.theirs))


def _behind(turn: Turn, progress: Progress, last: Round, result: TurnResult) -> Behind | None:
    visible = result.message
    hidden = hidden_rounds(progress.rounds, last.message, visible, progress.results)
    if not hidden:
        return None
    asked, older = turn.request.messages, turn.request.functions
    if older:
        visible, hidden = in_older_form(visible, hidden, len(asked))
    return Behind(turn.principal.owner, turn.session, asked, visible, hidden, named=not older)


def _whole(turn: Turn, message: Message, reason: str | None, choices: tuple[Choice, ...], usage: Usage) -> bytes:
    """The body of an answer that no upstream wrote whole."""
    choices = choices or (Choice(0, message, reason),)
    return whole_answer(turn.answer_id, turn.created, turn.shown_model, choices=choices, usage=usage)


def _changed(turn: Turn, answer: Answer, message: Message, reason: str | None) -> bytes:
    return changed_answer(
        answer.body,
        turn.answer_id,
        turn.created,
        turn.shown_model,
        message=message,
        finish_reason=reason,
        usage=turn.usage,
    )


def _reason(said: str | None, turn: Turn, *, theirs: bool) -> str:
    """The finish reason of the turn. Calls that were ours are not the client's to wait for."""
    reason = finish_reason(said or "stop", has_calls=theirs)
    return "stop" if reason is None or (reason == "tool_calls" and turn.offered and not theirs) else reason
