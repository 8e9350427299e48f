"""What the tests say of every provider's wire format alike; one module a provider fills it in with its own SDK's types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.config.models import BackendConfig
from tests.replies import Reply, Step
from tests.upstream import UpstreamRequest


@dataclass(frozen=True, slots=True)
class Said:
    """What the model at the provider says.

    Attributes:
        text: its words; streamed in two pieces.
        calls: id, name and arguments of each.
        thought: what it shows of its thinking, and `signature` the seal on it.
        tokens: prompt and completion, everything included.
        cached: of the prompt.
        reasoning: of the completion, where the provider counts it.
        end: `length` or `filter` where it was cut.
    """

    text: str = ""
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    thought: str = ""
    signature: str = ""
    tokens: tuple[int, int] = (11, 5)
    cached: int = 0
    reasoning: int = 0
    end: str = ""


@dataclass(slots=True)
class Asked:
    """A request, once the provider's own types have read it.

    Attributes:
        turns: role and kinds of parts of each message, in the provider's words.
        results: text of each tool result, by call id, or by the tool's name where the provider has no ids.
        thoughts: text and signature of what the model had thought before.
        schema: the form that the answer must have.
        extras: the body's unknown fields, wherever the provider has room for them.
    """

    model: str
    streams: bool
    system: str = ""
    turns: list[tuple[str, list[str]]] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    images: list[bytes] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    thoughts: list[tuple[str, str]] = field(default_factory=list)
    max_tokens: int | None = None
    stop: list[str] = field(default_factory=list)
    schema: dict[str, Any] | None = None
    extras: dict[str, Any] = field(default_factory=dict)


class Dialect(Protocol):
    """One provider's wire format, as a server speaks it.

    Attributes:
        secrets: the credentials of its backends.
        overloaded: the status it answers when it has too much to do.
        too_long: its words for a prompt that does not fit.
    """

    @property
    def name(self) -> str: ...

    @property
    def secrets(self) -> tuple[str, ...]: ...

    @property
    def overloaded(self) -> int: ...

    @property
    def too_long(self) -> str: ...

    def config(self, port: int, **settings: Any) -> BackendConfig:
        """A backend that reaches this provider on a local port."""
        ...

    def read(self, request: UpstreamRequest) -> Asked:
        """The request; raises where the provider's SDK would not have been able to say it, or its key is not right."""
        ...

    def whole(self, said: Said) -> Reply:
        """The answer at once."""
        ...

    def steps(self, said: Said) -> list[bytes]:
        """The answer's events, in order."""
        ...

    def streamed(self, steps: Sequence[Step]) -> Reply:
        """Events as the answer to a streamed request."""
        ...

    def refusal(self, status: int, words: str, **headers: str) -> Reply:
        """An error before any answer."""
        ...

    def fault(self, words: str) -> bytes:
        """The event by which the provider says in mid-stream that it is overloaded."""
        ...


def halves(text: str) -> tuple[str, str]:
    """Two pieces, as streams have them."""
    return text[: len(text) // 2], text[len(text) // 2 :]
