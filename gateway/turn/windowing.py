"""A turn's window: the conversation made to fit the backend that is asked.

Knows the turn's strategy, how much room a backend leaves, and what to say where even the least does not fit. What is left out
is the Scribe's (`scribe/`), whom to ask with it the pool's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import structlog

from gateway.backends.backend import ModelCall
from gateway.chat.blocks import Message
from gateway.chat.usage import Usage
from gateway.config.context import ContextConfig, RouteContextConfig
from gateway.config.models import BackendConfig
from gateway.errors import ContextTooLong
from gateway.observe.events import EventType, Recorder
from gateway.scribe.conversation import Conversation, prints_of
from gateway.scribe.conversations import Conversations, Key
from gateway.scribe.notes import AROUND_TOKENS, Notes, pins_tokens, with_notes
from gateway.scribe.pins import PinPatterns
from gateway.scribe.strategies import Choose, chosen, parts
from gateway.scribe.tokens import at_most, conversation_tokens, text_tokens, tools_tokens
from gateway.scribe.window import DOWN_TO, Room
from gateway.security.masking.messages import Conversation as Private
from gateway.turn.revealing import with_values

_log: Any = structlog.get_logger("gateway.scribe")

# Estimates err, and templates add words of their own.
_SAFETY: Final = 0.95
# Of a context that is small, no answer keeps more than this share free.
_MOST_RESERVED: Final = 0.5
# What the notes may take of the room beside pins, and at most.
_SUMMARY_SHARE: Final = 0.2
_SUMMARY_TOKENS: Final = 1_500
# The same where a summary is all that is sent of earlier turns.
_WHOLE_SUMMARY: Final = (0.3, 2_000)
_PIN_TOKENS: Final = 14
_PINS_SHARE: Final = 0.12


class _Nobody:
    """A record that nobody reads."""

    def emit(self, kind: EventType, **data: object) -> None:
        """Forget it."""


_NOBODY: Final = _Nobody()


class Windowing(msgspec.Struct, frozen=True):
    """What a route says of windows, over what the gateway's file says.

    Attributes:
        strategy: which.
        max_messages: messages beyond which `window` and `summary` cut.
        recent_turns: the turns that are cut last.
        keep_pins: pins that are told.
        answer_reserve_tokens: what is left for the answer where the request does not bound it.
        by_size: whether only its size is a reason to cut a conversation that the gateway does not keep.
        sums_up: whether what is cut off is summed up before the model is asked.
    """

    strategy: str
    max_messages: int
    recent_turns: int
    keep_pins: int
    answer_reserve_tokens: int
    by_size: bool
    sums_up: bool


def windowing(config: ContextConfig, route: RouteContextConfig | None) -> Windowing:
    """What holds for a route."""
    said = route.model_dump(exclude_none=True) if route is not None else {}
    whole = {name: getattr(config, name) for name in RouteContextConfig.model_fields} | said
    return Windowing(**whole, by_size=whole["strategy"] == "auto", sums_up=whole["strategy"] == "summary")


class TurnWindow(msgspec.Struct, eq=False):
    """The window of one turn.

    Args:
        known: conversations of this process.
        patterns: what pins are found by.
        settings: what holds for the turn.
        owner: whose turn.
        session: its conversation's name, where the client gave one.
        record: its trace.
        kept: whether the gateway keeps the conversation, so that messages are counted too.
        memories: what is remembered of other conversations, a line each.
        choose: the plugin's function behind the strategy, where it is one's.
        always: see `Fit`. Not where size alone is a reason to cut, and nothing is remembered that would have to be told.

    Attributes:
        used: the conversation that was cut last, and what it was: for whoever sums it up.
        estimates: of what each backend was sent, where it was counted.
        noted: whether notes stand in what is sent.
        last: what was cut last: the conversation, and the tokens of system messages, tools and pins.
    """

    known: Conversations
    patterns: PinPatterns
    settings: Windowing
    owner: str
    session: str | None
    record: Recorder | _Nobody
    kept: bool = False
    memories: tuple[str, ...] = ()
    choose: Choose | None = None
    always: bool = True
    used: tuple[Key, tuple[Message, ...]] | None = None
    estimates: dict[str, int] = msgspec.field(default_factory=dict)
    noted: bool = False
    last: tuple[Conversation, int, int, int] | None = None

    def fit(self, call: ModelCall, name: str, config: BackendConfig, *, tighter: bool) -> ModelCall:
        """See `Fit`.

        Raises:
            ContextTooLong: it does not fit whatever is left out.
        """
        self.noted = False
        fitted = self._fit(call, name, config, tighter=tighter)
        if not self.memories or self.noted:
            return fitted
        messages = list(fitted.messages)
        with_notes(messages, Notes(memories=self.memories))
        return msgspec.structs.replace(fitted, messages=tuple(messages))

    def _fit(self, call: ModelCall, name: str, config: BackendConfig, *, tighter: bool) -> ModelCall:
        settings = self.settings
        strategy = settings.strategy
        counts = strategy in ("window", "summary") or (strategy == "auto" and self.kept)
        context = config.context_tokens
        selects = strategy not in ("auto", "window", "summary")
        if (
            context is None
            and not tighter
            and not selects
            and not (counts and len(call.messages) > settings.max_messages)
        ):
            return call
        tools = tools_tokens(call.fields)
        usable = None if context is None else self._usable(context, tools, call.fields, name) - self._remembered()
        if not (tighter or selects or (counts and len(call.messages) > settings.max_messages)):
            bound = at_most(call.messages)
            if bound is not None and usable is not None and bound <= usable:
                return call
        if tighter:
            whole = self.estimates.get(name) or conversation_tokens(call.messages)
            usable = int(min(whole, usable or whole) * DOWN_TO)
        head, body = parts(call.messages)
        if selects:
            body = self._chosen(strategy, body)
        system = conversation_tokens(head)
        if usable is not None and selects and system + conversation_tokens(body) <= usable:
            return self._selected(call, (*head, *body), strategy)
        if usable is None and selects:
            return self._selected(call, (*head, *body), strategy)
        return self._cut(call, name, head, body, usable, system, tools, tighter=tighter, counts=counts)

    def look(self, call: ModelCall, name: str, config: BackendConfig) -> None:
        """Cut as for a call to this backend, which is not made yet; what does not fit will be told by the call."""
        record, self.record = self.record, _NOBODY
        try:
            with contextlib.suppress(ContextTooLong):
                self.fit(call, name, config, tighter=False)
        finally:
            self.record = record

    def answered(self, backend: str, usage: Usage) -> None:
        """What a backend counted: the next estimate is better."""
        estimate = self.estimates.get(backend)
        if estimate is not None:
            self.known.reported(backend, estimate, usage.prompt_tokens)

    def _cut(
        self,
        call: ModelCall,
        name: str,
        head: tuple[Message, ...],
        body: tuple[Message, ...],
        usable: int | None,
        system: int,
        tools: int,
        *,
        tighter: bool,
        counts: bool,
    ) -> ModelCall:
        settings = self.settings
        whole, body = body, _hidden(call, body)
        prints = prints_of(body)
        place = f"{name}\0{settings.strategy}"
        key, conversation = self.known.of(self.owner, self.session, place, prints, self.patterns)
        left = None if usable is None else usable - system
        share, most = _WHOLE_SUMMARY if settings.sums_up else (_SUMMARY_SHARE, _SUMMARY_TOKENS)
        summary = most if left is None else max(0, min(most, int(left * share)))
        reserve = 0 if left is None else summary + min(settings.keep_pins * _PIN_TOKENS, int(left * _PINS_SHARE))
        room = Room(
            tokens=None if left is None else left - reserve,
            whole=left,
            messages=settings.max_messages if counts else None,
            recent_turns=settings.recent_turns,
            summed_up=settings.sums_up,
        )
        conversation.read(body, prints, room)
        window = conversation.window
        self.known.keep(key, conversation)
        if not window.is_cut and (left is None or window.live <= left):
            self.estimates[name] = system + window.live + tools
            self.record.emit(
                "context.counted", model=call.model, tokens=self.estimates[name], tools=tools, limit=usable
            )
            if tighter:
                raise self._too_long(call, conversation, system, tools, 0, left)
            return call
        pins = conversation.pins(body, settings.keep_pins)
        pinned = pins_tokens(pins)
        if left is not None and window.live + pinned > left:
            tight = msgspec.structs.replace(room, tokens=left - pinned, whole=left - pinned)
            if not conversation.cut(body, tight):
                raise self._too_long(call, conversation, system, tools, pinned, left)
        free = summary if left is None else max(0, min(summary, left - window.live - (pinned or AROUND_TOKENS)))
        fitted = conversation.fitted(body, pins, free, self.memories)
        self.noted = True
        self.last = conversation, system, tools, pinned
        sent = (*head, *_shown(fitted.messages, body, whole, call.private))
        tokens = conversation_tokens(sent)
        self.estimates[name] = tokens + tools
        self.used = (key, body)
        dropped, shortened = window.left_out()
        self.record.emit(
            "context.windowed",
            strategy=settings.strategy,
            model=call.model,
            tokens=system + window.total,
            sent=tokens,
            tools=tools,
            limit=usable,
            dropped=dropped,
            shortened=shortened,
            epoch=window.epochs,
            pins=[{"tag": pin.tag, "value": pin.told} for pin in fitted.notes.pins],
            summary=fitted.notes.summary,
            prefix_share=conversation.prefix_share(sent),
        )
        return msgspec.structs.replace(call, messages=sent)

    def _chosen(self, strategy: str, body: tuple[Message, ...]) -> tuple[Message, ...]:
        try:
            return tuple(chosen(strategy, body, self.choose))
        except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises, the turn goes on
            _log.warning("a strategy failed", strategy=strategy, error=repr(error))
            return body

    def _selected(self, call: ModelCall, messages: tuple[Message, ...], strategy: str) -> ModelCall:
        dropped = len(call.messages) - len(messages)
        if not dropped:
            return call
        self.record.emit(
            "context.windowed",
            strategy=strategy,
            model=call.model,
            tokens=None,
            sent=conversation_tokens(messages),
            tools=0,
            limit=None,
            dropped=dropped,
            shortened=0,
            epoch=0,
            pins=[],
            summary="",
            prefix_share=None,
        )
        return msgspec.structs.replace(call, messages=messages)

    def _remembered(self) -> int:
        """What memories take."""
        return AROUND_TOKENS + sum([text_tokens(line) + 1 for line in self.memories]) if self.memories else 0

    def _usable(self, context: int, tools: int, fields: Mapping[str, msgspec.Raw], name: str) -> int:
        """Tokens that messages may take, as they are estimated here."""
        reserve = min(_asked_for(fields) or self.settings.answer_reserve_tokens, int(context * _MOST_RESERVED))
        return int((context - reserve) * _SAFETY / self.known.ratio(name)) - tools

    def _too_long(
        self, call: ModelCall, conversation: Conversation, system: int, tools: int, pinned: int, left: int | None
    ) -> ContextTooLong:
        """Why it cannot be sent."""
        words, first = self._needed(conversation, system, tools, pinned)
        room = max(0, (left or 0) + system)
        return ContextTooLong(
            f"The request does not fit into the context of `{call.model}`: {room} tokens are left for messages, by estimate, "
            f"and what cannot be left out is {words}.",
            param="tools" if first == "tools" else "messages",
        )

    def cannot_shrink(self) -> str:
        """See `Fit`."""
        if self.last is None:
            return ""
        return f"What cannot be left out is {self._needed(*self.last)[0]}, by estimate."

    def _needed(self, conversation: Conversation, system: int, tools: int, pinned: int) -> tuple[str, str]:
        """What may not be left out, the largest first, in words; and the name of the largest."""
        needed = [
            ("tools", tools),
            ("system messages", system),
            ("pinned facts", pinned),
            *conversation.window.needed(),
        ]
        needed = [part for part in needed if part[1]]
        needed.sort(key=lambda part: -part[1])
        words = ", ".join(f"{what} ({tokens} tokens)" for what, tokens in needed)
        return words, needed[0][0] if needed else ""


def _hidden(call: ModelCall, body: tuple[Message, ...]) -> tuple[Message, ...]:
    """The conversation with placeholders for what is private: half a value, where a text is cut, would be found by nobody."""
    private = call.private
    if private is None or not private.learn(call.messages, call.fields):
        return body
    return private.masked(body)


def _shown(
    sent: tuple[Message, ...], hidden: tuple[Message, ...], whole: tuple[Message, ...], private: Private | None
) -> tuple[Message, ...]:
    """The messages with their values again, as whoever masks them later expects."""
    if private is None or hidden is whole:
        return sent
    as_they_were = {id(masked): message for masked, message in zip(hidden, whole, strict=True)}
    values = private.masking.values
    return tuple(as_they_were.get(id(message)) or with_values(message, values) for message in sent)


def _asked_for(fields: Mapping[str, msgspec.Raw]) -> int | None:
    """The tokens that the answer may have, where the request says so."""
    for name in ("max_completion_tokens", "max_tokens"):
        raw = fields.get(name)
        if raw is not None:
            with contextlib.suppress(msgspec.MsgspecError):
                said = msgspec.json.decode(raw, type=int)
                if said > 0:
                    return said
    return None
