"""Tool providers that plugins bring: foreign code in the seam's shape, bounded and named.

Knows that only `name`, `list` and `call` have to be there. Does not know what stands behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from gateway.errors import ConfigError, Problem
from gateway.tools.outcome import CallFailed
from gateway.tools.provider import Hook
from gateway.tools.providers.contained import contained
from gateway.tools.spec import ToolContext, ToolSpec

# Seconds for what a provider does at load, and for its end; as a plugin's own `lifespan` has.
OPEN_S: Final = 30.0
CLOSE_S: Final = 10.0
CHECK_S: Final = 30.0

_NEEDED: Final = ("list", "call")


class BroughtProvider:
    """A plugin's provider as the registry sees it.

    Args:
        provider: what the plugin gave to `registry.add_provider`.
        place: the plugin's file, for messages.
        digest: the hash of its source.
    """

    def __init__(self, provider: Any, place: str, digest: str) -> None:
        self._provider = provider
        self._place = place
        self._digest = digest

    @property
    def name(self) -> str:
        """What the provider calls itself."""
        return str(self._provider.name)

    @property
    def hooks(self) -> Mapping[str, Sequence[Hook]]:
        """None: a plugin's hooks are its module's."""
        return {}

    @property
    def fingerprint(self) -> str:
        """What the provider says decides, beside its source."""
        return f"{self._digest} {getattr(self._provider, 'fingerprint', '')}"

    async def open(self) -> None:
        """Open it. Raises `ConfigError` where it cannot be opened, or takes longer than 30 s."""
        await self._at_load("open", OPEN_S)

    async def list(self) -> Sequence[ToolSpec]:
        """Its tools. Raises `ConfigError` where it cannot list them, or lists what is no tool of its own."""
        listed = await self._at_load("list", OPEN_S)
        specs = tuple(listed) if isinstance(listed, (list, tuple)) else ()
        if listed is not None and not isinstance(listed, (list, tuple)):
            raise self._wrong(f"`list` answered {type(listed).__name__}, a list of specs is expected")
        for spec in specs:
            if not isinstance(spec, ToolSpec):
                raise self._wrong(f"`list` answered {spec!r}, specs are expected: see `make_spec`")
            if spec.provider != self.name:
                raise self._wrong(f"tool `{spec.name}` says `provider={spec.provider!r}`, it has to be {self.name!r}")
            if spec.probed and not hasattr(self._provider, "probe"):
                raise self._wrong(f"tool `{spec.name}` is said to be probed, and there is no `probe`")
        return specs

    async def check(self) -> tuple[Problem, ...]:
        """What its own self-check finds; none where it has none."""
        if not hasattr(self._provider, "check"):
            return ()
        try:
            async with asyncio.timeout(CHECK_S):
                return tuple(await contained(self._provider.check)())
        except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises is what is wrong
            return (self._problem(f"its check failed: {str(error) or type(error).__name__}"),)

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Run one call."""
        return await contained(self._provider.call)(name, arguments, context)

    async def probe(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> tuple[bool, Any]:
        """Ask what came of a call."""
        if not hasattr(self._provider, "probe"):
            raise CallFailed(f"`{name}` cannot say what came of it")
        happened, value = await contained(self._provider.probe)(name, arguments, context)
        return bool(happened), value

    async def close(self) -> None:
        """Close it, in 10 s at most. How it fails is nobody's concern any more."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._run("close")
        except Exception:  # noqa: BLE001, S110 - foreign code, on its way out
            pass

    async def _at_load(self, step: str, limit_s: float) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                return await self._run(step)
        except ConfigError:
            raise
        except TimeoutError as error:
            raise self._wrong(f"`{step}` took longer than {limit_s:g} s") from error
        except Exception as error:
            raise self._wrong(f"`{step}` failed: {str(error) or type(error).__name__}") from error

    async def _run(self, step: str) -> Any:
        function: Callable[[], Awaitable[Any]] | None = getattr(self._provider, step, None)
        return None if function is None else await contained(function)()

    def _wrong(self, text: str) -> ConfigError:
        return ConfigError((self._problem(text),))

    def _problem(self, text: str) -> Problem:
        return Problem(self._place, 0, f"tool provider `{self.name}`: {text}")


def faults(provider: Any) -> list[str]:
    """Why an object is no tool provider; empty where it is one."""
    name = getattr(provider, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        return [f"a tool provider needs a `name` of letters, digits and `_`, got {name!r}"]
    missing = [each for each in _NEEDED if not callable(getattr(provider, each, None))]
    return [f"tool provider `{name}` has no `{each}`" for each in missing]
