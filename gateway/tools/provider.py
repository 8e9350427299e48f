"""The seam every source of tools fits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from gateway.errors import Problem
from gateway.tools.run_types import RunType
from gateway.tools.spec import ToolContext, ToolSpec

Hook = Callable[..., Awaitable[Any]]

HOOK_NAMES = ("on_request", "on_decision", "before_tool", "after_tool", "on_answer", "on_event")


@runtime_checkable
class Bringing(Protocol):
    """What has further providers to offer once it has been listed."""

    @property
    def brought(self) -> Sequence[ToolProvider]:
        """They come after the one that brings them, and are opened and closed by whoever opens and closes that one."""
        ...


@runtime_checkable
class Running(Protocol):
    """What knows types of background runs beside its tools, once it has been listed."""

    @property
    def run_types(self) -> Sequence[RunType]:
        """Each with its handler, which can be called once the provider is open."""
        ...


@runtime_checkable
class Choosing(Protocol):
    """What brings strategies for long conversations beside its tools, once it has been listed."""

    @property
    def strategies(self) -> Mapping[str, Callable[..., Iterable[int]]]:
        """By name, each a function from messages in Chat Completions' form to positions among them."""
        ...


class ToolProvider(Protocol):
    """Lists tools and runs one call at a time. Knows nothing of turns, retries or limits: those are the Courier's."""

    @property
    def name(self) -> str:
        """The provider's name, for messages and traces."""
        ...

    @property
    def hooks(self) -> Mapping[str, Sequence[Hook]]:
        """Hooks that came with the tools, by hook name; complete once `list` has answered."""
        ...

    @property
    def fingerprint(self) -> str:
        """What decides how tools and hooks behave beyond their specs, as a hash; complete once `list` has answered."""
        ...

    async def open(self) -> None:
        """Start shared resources. Raises `ConfigError` where the provider cannot work."""
        ...

    async def list(self) -> Sequence[ToolSpec]:
        """Every tool, in a stable order. Works before `open` too. Raises `ConfigError` with every problem found."""
        ...

    async def check(self) -> tuple[Problem, ...]:
        """Run the tools' self-checks; empty when all is well. Needs `open`."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Run one call with validated arguments and return a JSON value, or something that becomes one.

        Raises:
            InvalidArguments: the provider itself finds fault with the arguments.
            ToolRetry: the model should try again, with the message.
            ToolFatal: the turn has to end.
            Exception: anything else is a failed call; the model sees the message.
        """
        ...

    async def probe(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> tuple[bool, Any]:
        """Find out whether an earlier call with these arguments took effect, and what it returned if so.

        Asked only of tools whose spec says `probed`. An exception means that it cannot be found out.
        """
        ...

    async def close(self) -> None:
        """Stop what `open` started."""
        ...
