"""Types of runs that plugins add: what a handler is told of its run, and what is kept of a type.

Knows names and signatures. Does not know how a run is recorded, queued or executed.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gateway.tools.schema import Signature
from gateway.tools.spec import ToolContext
from gateway.tools.validate import ArgumentValidator

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,63}")
# Types of the gateway's own.
OWN_TYPES: Final = frozenset({"approval", "chat", "compensation", "response", "webhook"})

Make = Callable[..., Awaitable[Any]]


class Recorder(Protocol):
    """Where a run's handler leaves word of what it did."""

    async def report(self, progress: Any) -> None:
        """Keep how far it is."""
        ...

    async def step(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """What a step came to: recorded before, or made and recorded now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(ToolContext):
    """What a handler may know of its run. Not part of its parameters.

    Attributes:
        id: the run's.
        attempt: 1 for the first; `idempotency_key` is the same for all of them.
    """

    id: str
    attempt: int
    recorder: Recorder = field(repr=False)

    async def report(self, progress: Any) -> None:
        """Show how far it is: any JSON value, as `progress` of the run."""
        await self.recorder.report(progress)

    async def step(self, name: str, function: Make, /, *arguments: Any, **named: Any) -> Any:
        """Do something that is not to be done again when the run is taken over: call the function and record what it answers.

        An attempt that finds the step recorded gets that, and calls nothing. Who dies between doing and recording does it again.
        """
        return await self.recorder.step(name, lambda: function(*arguments, **named))


@dataclass(frozen=True, slots=True)
class RunType:
    """A type of runs.

    Attributes:
        name: what is asked for.
        function: the plugin's handler.
        signature: how it takes its input.
        validator: what its input has to be.
        allowed_roles: who may ask for it; all where there are none.
        timeout_s: seconds that an attempt may take, or None for what a turn may take.
        origin: `file:line` of it.
        resources: what the plugins' `lifespan()` yielded, by name.
    """

    name: str
    function: Make
    signature: Signature
    validator: ArgumentValidator
    allowed_roles: frozenset[str]
    timeout_s: float | None
    origin: str
    resources: Mapping[str, Any]

    async def run(self, given: Mapping[str, Any], context: RunContext) -> Any:
        """Call the handler with validated input.

        Raises:
            InvalidArguments: the input fits the schema but not the declared type.
            Exception: whatever the handler raises.
        """
        return await self.function(**self.signature.bind(given, context))
