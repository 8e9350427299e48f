"""The seam every backend fits.

Knows what a model call carries and what comes back. Knows nothing of routes, tools' execution or clients.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from gateway.chat.answer import Answer
from gateway.chat.blocks import Message
from gateway.chat.chunk import Chunk
from gateway.chat.schemas.dialect import SchemaDialect
from gateway.config.models import BackendConfig
from gateway.security.masking.messages import Conversation


class Fit(Protocol):
    """What makes a conversation fit the backend that is asked."""

    @property
    def always(self) -> bool:
        """Whether no backend gets a call unseen; else those do whose size nobody knows, until one finds a call too long."""
        ...

    def fit(self, call: ModelCall, name: str, config: BackendConfig, *, tighter: bool) -> ModelCall:
        """The call as this backend gets it; `tighter` once it has said that it was too long.

        Raises:
            ContextTooLong: it does not fit whatever is left out. Of a `tighter` one also where nothing can be left out.
        """
        ...

    def cannot_shrink(self) -> str:
        """What of the call that was made last cannot be left out, in words; empty where nothing is known of it."""
        ...


class ModelCall(msgspec.Struct, frozen=True, gc=False):
    """One request to a model, before a backend gave it its own shape.

    Attributes:
        messages: the conversation, in order; each keeps the bytes the client sent where it has them (`wire`).
        fields: every other field of the Chat Completions request, raw JSON, unknown ones included; never `model`,
            `messages` or `stream`, and of `stream_options` never `include_usage`.
        trace_id: goes upstream as part of `traceparent`.
        timeout_s: seconds this call may take as a whole.
        model: the name the client knows the model by, for messages.
        wanted: what the client put in the place of the `*` in a wildcard model's name, else empty; it takes the place of
            the `*` in the backend's own model.
        tokens: an estimate of the prompt's tokens; 0 where nobody asked for one.
        tools_in: the `tools` array in another dialect of schemas than `whole`, or None where that makes no difference.
        fit: makes the conversation fit a backend, or None where it is sent as it is.
        private: what is private in the turn, to be masked for backends that may not see it; None where nothing is.
    """

    messages: tuple[Message, ...]
    fields: Mapping[str, msgspec.Raw]
    trace_id: str
    timeout_s: float
    model: str = ""
    wanted: str = ""
    tokens: int = 0
    tools_in: Callable[[SchemaDialect], bytes | None] | None = None
    fit: Fit | None = None
    private: Conversation | None = None


class Backend(Protocol):
    """One upstream that serves one model.

    Both calls raise the `UpstreamError` family or `ContextTooLong`, translated at the adapter's edge, and pass
    cancellation on to the upstream at once.
    """

    @property
    def name(self) -> str:
        """The backend's name in the configuration. Never shown in an answer's body."""
        ...

    async def complete(self, call: ModelCall) -> Answer:
        """Ask for the whole answer at once."""
        ...

    def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        """Ask for the answer piece by piece.

        Yields what arrived together, never an empty batch. Ends after the upstream's own end mark, or after a finish
        reason; an end before a finish reason raises `UpstreamBroken`. An error frame raises too.
        Usage is always asked for, and comes as a chunk without choices or on the last one.
        Closing the iterator aborts the upstream request.
        """
        ...

    async def close(self) -> None:
        """Close connections. Calls under way fail."""
        ...
