"""How an author declares a tool: `@tool`, and the registry that `register(registry)` is handed.

Knows the contract's arguments and which of them this version serves. Does not read type hints (`schema.py`) and runs
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, TypeVar, overload

from gateway.config.context import STRATEGIES
from gateway.errors import Problem
from gateway.tools.declaration_faults import faults
from gateway.tools.sources import told

F = TypeVar("F", bound=Callable[..., Any])

# A declared timeout of this many seconds, the default, means: whatever `tools.timeout_s` says.
DEFAULT_TIMEOUT_S = 10

# A function without arguments, plain or async, or the arguments of a call that has to succeed.
Check = Callable[[], Any] | Mapping[str, Any]

_ATTRIBUTE = "__hermes_tool__"
_STRATEGY = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_DELETING = frozenset({"delete", "remove", "drop", "erase", "purge", "destroy", "wipe", "truncate", "unlink"})
_DELETING_CJK = ("删除", "移除", "清空", "销毁", "注销", "擦除", "刪除", "清除")


@dataclass(frozen=True, slots=True)
class Declaration:
    """What `@tool(...)` was given, next to the function it decorates.

    `deletes` is decided: by the author, else by the name's words. What deletes also writes.
    """

    function: Callable[..., Any]
    name: str
    description: str | None
    parameters: Any
    timeout_s: float
    retries: int | None
    writes: bool
    deletes: bool
    allowed_roles: tuple[str, ...]
    requires: tuple[str, ...]
    result_fields: tuple[str, ...]
    sensitive: tuple[str, ...]
    cache_ttl_s: float
    shared_cache: bool
    price: float
    check: Check | None
    idempotency_key: tuple[str, ...] | Callable[..., Any] | None
    probe: Callable[..., Any] | None
    needs_confirmation: bool
    confidence_gate: bool
    compensate: Any

    @property
    def file(self) -> str:
        """The file it stands in, as people are told."""
        return told(self.function.__code__.co_filename)

    @property
    def line(self) -> int:
        """The line of its decorator, counted from 1."""
        return self.function.__code__.co_firstlineno


@overload
def tool(name: F) -> F: ...


@overload
def tool(
    name: str | None = None,
    description: str | None = None,
    parameters: Any = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retries: int | None = None,
    writes: bool = False,
    deletes: bool | None = None,
    needs_confirmation: bool = False,
    confidence_gate: bool = False,
    allowed_roles: Sequence[str] = (),
    requires: Sequence[str] = (),
    sensitive: Sequence[str] = (),
    result_fields: Sequence[str] = (),
    cache_ttl_s: float = 0,
    shared_cache: bool = False,
    idempotency_key: Sequence[str] | Callable[..., Any] | None = None,
    compensate: Any = None,
    probe: Callable[..., Any] | None = None,
    check: Check | None = None,
    price: float = 0,
) -> Callable[[F], F]: ...


def tool(
    name: Any = None,
    description: str | None = None,
    parameters: Any = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retries: int | None = None,
    writes: bool = False,
    deletes: bool | None = None,
    needs_confirmation: bool = False,
    confidence_gate: bool = False,
    allowed_roles: Sequence[str] = (),
    requires: Sequence[str] = (),
    sensitive: Sequence[str] = (),
    result_fields: Sequence[str] = (),
    cache_ttl_s: float = 0,
    shared_cache: bool = False,
    idempotency_key: Sequence[str] | Callable[..., Any] | None = None,
    compensate: Any = None,
    probe: Callable[..., Any] | None = None,
    check: Check | None = None,
    price: float = 0,
) -> Any:
    """Declare a function as a tool; `@tool` without brackets works too. The function itself stays as it is.

    Args:
        name: what models call it; the function's name by default.
        description: what models read; the docstring up to its first parameter line by default.
        parameters: JSON Schema of the arguments; made from the type hints by default.
        timeout_s: seconds one call may take; 10 means what `tools.timeout_s` says.
        retries: how often it is asked again after a connection failed, a writing tool only where it surely was not reached;
            what `tools.retries` says by default.
        writes: whether it changes something outside.
        deletes: whether what it changes is gone then; by the words of its name by default. What deletes also writes.
        needs_confirmation: whether a human has to approve each call before it is made.
        confidence_gate: whether a human has to approve a call that the model is not sure of (`approvals.confidence`).
        allowed_roles: roles that may be offered it; empty for everybody.
        requires: tools that must have succeeded in the thread before it is offered.
        sensitive: names of parameters, and paths in the result, whose values are private: models, traces and logs get placeholders.
        result_fields: what of a result the model sees, as paths of keys: `status`, `items.name`; everything by default.
        cache_ttl_s: seconds a result may be used again for the same arguments; 0 for never. Not for writing tools.
        shared_cache: whether a kept result may be another owner's too.
        idempotency_key: what makes two calls of a writing tool one effect: names of parameters, or a callable that takes the
            arguments by name and returns a JSON value. By default each call is an effect of its own.
        compensate: the tool that undoes what a writing tool did, as its function or its name. Its parameters are filled by name
            from the result, then from the arguments.
        probe: finds out whether a call of a writing tool took effect when nobody saw its end: a function, plain or async,
            that takes what the tool takes and returns None where it did not happen, else what the tool would have returned.
        check: a self-check: a function without arguments, plain or async, that raises when the tool cannot work; or, for a
            reading tool, the arguments of a call that has to succeed.
        price: what one call costs.

    A declaration that cannot be is refused when the plugin is loaded, with its file and line.
    """

    def declare(function: F) -> F:
        if not isinstance(function, FunctionType):
            # Nothing else says where it stands, what it takes and what it is called.
            raise TypeError(f"@tool takes a function, not a {type(function).__name__}; write a `def` that calls it")
        called = name if isinstance(name, str) else function.__name__
        gone = deletes_by_name(called) if deletes is None else deletes
        declaration = Declaration(
            function=function,
            name=called,
            description=description,
            parameters=parameters,
            timeout_s=timeout_s,
            retries=retries,
            writes=writes or gone,
            deletes=gone,
            allowed_roles=_listed(allowed_roles),
            requires=_listed(requires),
            result_fields=_listed(result_fields),
            sensitive=_listed(sensitive),
            cache_ttl_s=cache_ttl_s,
            shared_cache=shared_cache,
            price=price,
            check=check,
            idempotency_key=idempotency_key if callable(idempotency_key) else _listed(idempotency_key or ()) or None,
            probe=probe,
            needs_confirmation=needs_confirmation,
            confidence_gate=confidence_gate,
            compensate=compensate,
        )
        setattr(function, _ATTRIBUTE, declaration)
        return function

    return declare(name) if callable(name) else declare


class Tools:
    """The registry a plugin's `register(registry)` is handed: it takes tools and collects what is wrong with them.

    Attributes:
        declarations: the tools that were added, in order; without those that cannot be read further.
        added: the functions that were added, whatever is wrong with them.
        providers: the tool providers that were added, in order.
        run_types: the types of runs that were added, in order.
        strategies: the functions that choose what is sent of long conversations, by name.
        problems: every mistake found, with file and line.
    """

    def __init__(self) -> None:
        self.declarations: list[Declaration] = []
        self.added: set[Callable[..., Any]] = set()
        self.providers: list[Any] = []
        self.run_types: list[RunDeclaration] = []
        self.strategies: dict[str, Callable[..., Any]] = {}
        self.problems: list[Problem] = []

    def add(self, *functions: Callable[..., Any]) -> None:
        """Add functions that `@tool` decorates.

        Raises:
            TypeError: one of them is not decorated.
        """
        for function in functions:
            declaration = getattr(function, _ATTRIBUTE, None)
            if not isinstance(declaration, Declaration):
                raise TypeError(f"`{_called(function)}` is no tool: decorate it with @tool before adding it")
            self.added.add(declaration.function)
            found, readable = faults(declaration)
            self.problems.extend(Problem(declaration.file, declaration.line, text) for text in found)
            if readable:
                self.declarations.append(declaration)

    def add_provider(self, provider: Any) -> None:
        """Add a source of tools: an object with `name`, `async list()` and `async call(name, arguments, context)`."""
        self.providers.append(provider)

    def add_strategy(self, name: str, function: Callable[[list[dict[str, Any]]], Iterable[int]]) -> None:
        """Add a strategy that `context.strategy` may name.

        Args:
            name: lower-case letters, digits, `-` and `_`.
            function: is given a conversation's messages in Chat Completions' form, system messages in front left out, and
                returns the positions of those that are sent. Calls and results stay together, and the last user message and
                what came behind it are sent, whatever it returns. Called for every model call: it has to be quick.

        Raises:
            TypeError: the name is none that a strategy may have, or it is taken.
        """
        if not _STRATEGY.fullmatch(name) or name in STRATEGIES:
            raise TypeError(f"a strategy cannot be called {name!r}")
        if name in self.strategies:
            raise TypeError(f"there is a strategy {name!r} already")
        self.strategies[name] = function

    def add_run_type(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        parameters: Mapping[str, Any] | None = None,
        allowed_roles: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> None:
        """Add a type of background runs: an `async def` that takes a run to its end and returns a JSON value.

        Args:
            name: what `POST /v1/runs` names it by.
            function: the handler. Its parameters are the run's input; one of the type `RunContext` is the run itself.
            parameters: JSON Schema of the input, where the type hints are not to make it.
            allowed_roles: roles of which a key needs one to ask for it; by default every key may.
            timeout_s: seconds an attempt may take; `server.turn_timeout_s` by default.
        """
        self.run_types.append(RunDeclaration(name, function, parameters, _listed(allowed_roles), timeout_s))


@dataclass(frozen=True, slots=True)
class RunDeclaration:
    """What `add_run_type` was given."""

    name: Any
    function: Callable[..., Any]
    parameters: Any
    allowed_roles: tuple[str, ...]
    timeout_s: Any

    @property
    def line(self) -> int:
        """Where the function is defined."""
        code = getattr(self.function, "__code__", None)
        return code.co_firstlineno if code is not None else 0


def declared_in(module: ModuleType) -> list[Declaration]:
    """The tools whose functions a module itself defines, in their order, added or not."""
    found = (getattr(value, _ATTRIBUTE, None) for value in vars(module).values())
    return [each for each in found if isinstance(each, Declaration) and each.function.__module__ == module.__name__]


def tool_named(tool_or_name: Any) -> str | None:
    """The name of a tool that is given as its function or by its name; None where it is neither."""
    declaration = getattr(tool_or_name, _ATTRIBUTE, None)
    if isinstance(declaration, Declaration):
        return declaration.name
    return tool_or_name if isinstance(tool_or_name, str) and tool_or_name else None


def deletes_by_name(name: str) -> bool:
    """Whether one of the words of a name means deleting."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = re.split(r"[^A-Za-z]+", spaced.lower())
    return not _DELETING.isdisjoint(words) or any(word in name for word in _DELETING_CJK)


def _called(function: Any) -> str:
    return str(getattr(function, "__name__", None) or repr(function))


def _listed(names: Sequence[str]) -> tuple[str, ...]:
    """One name alone is a list of one, not of its letters; so is what is no name, for whoever looks at it next."""
    return (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
