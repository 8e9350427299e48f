"""A ToolProvider that needs no plugins: answers are scripted, calls are recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import Problem
from gateway.tools.provider import Hook
from gateway.tools.spec import ToolContext, ToolSpec, make_spec

EMPTY: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def spec(
    name: str,
    *,
    parameters: Mapping[str, Any] = EMPTY,
    provider: str = "recording",
    origin: str = "tools.py:1",
    timeout_s: float = 5,
    writes: bool = False,
    allowed_roles: frozenset[str] = frozenset(),
    retries: int = 0,
) -> ToolSpec:
    return make_spec(
        name=name,
        description=f"Run {name}.",
        parameters=parameters,
        provider=provider,
        origin=origin,
        timeout_s=timeout_s,
        writes=writes,
        allowed_roles=allowed_roles,
        retries=retries,
    )


class RecordingProvider:
    """Lists the specs it was given; a call returns, raises or awaits what `answers` holds for its name."""

    def __init__(
        self,
        specs: Sequence[ToolSpec],
        answers: Mapping[str, Any] | None = None,
        *,
        name: str = "recording",
        hooks: Mapping[str, Sequence[Hook]] | None = None,
    ) -> None:
        self._specs = specs
        self._answers = dict(answers or {})
        self._name = name
        self._hooks = dict(hooks or {})
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.opened = False
        self.closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def fingerprint(self) -> str:
        return "recording"

    @property
    def hooks(self) -> Mapping[str, Sequence[Hook]]:
        return self._hooks

    async def open(self) -> None:
        self.opened = True

    async def list(self) -> Sequence[ToolSpec]:
        return self._specs

    async def check(self) -> tuple[Problem, ...]:
        return ()

    async def probe(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> tuple[bool, Any]:
        raise NotImplementedError

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        self.calls.append((name, arguments))
        answer = self._answers.get(name)
        if isinstance(answer, list):
            answer = answer.pop(0)
        if callable(answer):
            answer = await answer(arguments, context)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True
