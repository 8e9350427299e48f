"""How far a turn has come: what was said, what ran, and why it is enough.

The one thing of a turn that changes while its rounds run. Does not know who runs them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import field

from gateway.chat.blocks import Block, Image, Message, Reasoning, Text, ToolCall, ToolResult
from gateway.tools.outcome import Outcome
from gateway.turn.hidden import replayable_message
from gateway.turn.limits import Enough
from gateway.turn.round import Round
from gateway.turn.stream import StreamState


class Progress(msgspec.Struct, eq=False):
    """A turn under way.

    Attributes:
        before: how many messages the first round is asked.
        messages: the conversation the next round is asked.
        stream: what the client has seen; None where it is not streamed.
        answers: what the model answered in each round that counts.
        words: what was said behind them: of a round that broke off, and the gateway's own words.
        last: the latest round that counts, or None.
        results: the results of the registry calls in it, as long as they are not part of `messages`.
        theirs: the client's calls in it.
        running: the registry calls that are being made.
        enough: why no tool may be called any more, or None.
        closing: what the gateway has to say at the end of an answer that is whole, or None.
        stopped: why the turn ended before the model was done, or None.
        used: whether a tool was called.
        reminded: whether the model was told that it has to call one.
        answering: whether the tools are done, so that another model writes the answer.
        over: whether the rounds have ended by themselves.
    """

    before: int
    messages: tuple[Message, ...]
    stream: StreamState | None = None
    answers: list[Message] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    last: Round | None = None
    results: tuple[Message, ...] = ()
    theirs: tuple[ToolCall, ...] = ()
    running: tuple[ToolCall, ...] = ()
    enough: Enough | None = None
    closing: str | None = None
    stopped: str | None = None
    used: bool = False
    reminded: bool = False
    answering: bool = False
    over: bool = False

    @property
    def final(self) -> bool:
        """Whether the next round may only answer."""
        return self.enough is not None or self.answering

    @property
    def rounds(self) -> tuple[Message, ...]:
        """Calls and results of the rounds that are over."""
        return self.messages[self.before :]

    @property
    def said(self) -> str:
        """Everything that was said so far."""
        return "".join([*(message.text for message in self.answers), *self.words])

    @property
    def thought(self) -> str:
        """Everything that was thought so far."""
        return "".join([thoughts_of(message) for message in self.answers])

    def answered(self, done: Round, theirs: tuple[ToolCall, ...]) -> None:
        """A round that counts has come."""
        self.last = done
        self.theirs = theirs
        self.answers.append(done.message)

    def ran(self, calls: Sequence[ToolCall], contents: Sequence[str]) -> None:
        """The registry calls of the last round have their results."""
        self.results = tuple(
            Message("tool", (ToolResult(call.id, content),)) for call, content in zip(calls, contents, strict=True)
        )

    def show(self, outcomes: Sequence[Outcome]) -> None:
        """The pictures that tools returned stand behind the results: tool messages hold text alone."""
        shown: list[Block] = []
        for outcome in outcomes:
            if outcome.pictures:
                shown.append(Text(f"[{len(outcome.pictures)} image(s) from the result of `{outcome.name}`]"))
                shown += [Image(url) for url in outcome.pictures]
        if shown:
            self.results = (*self.results, Message("user", tuple(shown)))

    def carry_on(self) -> None:
        """The last round and its results become part of the conversation."""
        assert self.last is not None, "a round has been answered"
        self.messages = (*self.messages, replayable_message(self.last.message), *self.results)
        self.results = ()

    def close_with(self, words: str) -> None:
        """The gateway has this to say at the end of the answer, behind what it has to say already."""
        self.closing = words if self.closing is None else f"{self.closing}\n\n{words}"

    def say(self, words: str) -> str:
        """Add the gateway's own words, apart from what stands before them; what to send of them."""
        before = self.said
        text = words if not before or before[-1].isspace() else f"\n\n{words}"
        self.words.append(text)
        return text


def thoughts_of(message: Message) -> str:
    """The reasoning that a message shows."""
    blocks = message.blocks
    if len(blocks) == 1 and type(blocks[0]) is not Reasoning:  # most messages
        return ""
    return "".join([block.text for block in blocks if isinstance(block, Reasoning)])
