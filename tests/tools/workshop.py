"""Plugins written by a test, and calls of their tools."""

from __future__ import annotations

import json
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.chat.blocks import ToolCall
from gateway.clock import SystemClock
from gateway.config.models import ToolsConfig
from gateway.observe.events import Recorder
from gateway.security.principal import Principal
from gateway.tools.courier import Courier
from gateway.tools.outcome import Outcome
from gateway.tools.provider import ToolProvider
from gateway.tools.providers.python import PythonProvider
from gateway.tools.registry import Registry
from gateway.tools.spec import ToolContext

IMPORTS = "from typing import *\nfrom gateway.tools import tool, ToolContext, ToolRetry, ToolFatal\n"


def write_plugin(folder: Path, source: str, name: str = "plugin") -> Path:
    """A plugin file; the imports every plugin needs stand on its first two lines."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(IMPORTS + textwrap.dedent(source), "utf-8")
    return file


def context(call: ToolCall | None = None) -> ToolContext:
    return ToolContext(None, "key", None, None, "0" * 32, call.id if call else "call")


class Workshop:
    """A registry and a Courier, and the trace of what they did."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.courier = Courier(SystemClock())
        self.record = Recorder("0" * 32, "owner", SystemClock())

    async def calls(
        self, calls: Sequence[tuple[str, Any]], *, parallel: bool = True, roles: frozenset[str] = frozenset()
    ) -> tuple[Outcome, ...]:
        offered = {
            spec.name: spec for spec in self.registry.fitting(list(self.registry.specs), Principal("key", roles=roles))
        }
        asked = [ToolCall(f"call_{number}", name, written(arguments)) for number, (name, arguments) in enumerate(calls)]
        return await self.courier.execute(
            asked, offered, context, self.record, parallel=parallel, registry=self.registry
        )

    async def call(self, name: str, arguments: Any = "") -> Outcome:
        return (await self.calls([(name, arguments)]))[0]

    async def result(self, name: str, **arguments: Any) -> Any:
        outcome = await self.call(name, arguments)
        assert outcome.ok, outcome.error
        return json.loads(outcome.content)["result"]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.record.events if event.type == kind]


def written(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) or arguments is None else json.dumps(arguments)


@asynccontextmanager
async def open_workshop(
    providers: Sequence[ToolProvider] | None = None,
    *,
    places: Sequence[Path] = (),
    resources: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Workshop]:
    config = ToolsConfig(**settings)
    made = providers or [PythonProvider(places, timeout_s=config.timeout_s, resources=resources)]
    registry = await Registry.build(made, config)
    workshop = Workshop(registry)
    try:
        yield workshop
    finally:
        await workshop.courier.close(0)
        await registry.close()


@asynccontextmanager
async def plugin(folder: Path, source: str, **settings: Any) -> AsyncIterator[Workshop]:
    """The tools of one plugin, opened."""
    write_plugin(folder, source)
    async with open_workshop(places=[folder], **settings) as workshop:
        yield workshop
