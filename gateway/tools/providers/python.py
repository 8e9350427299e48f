"""Tools written in Python: the plugins of some folders.

Knows how plugins declare tools, hooks and shared resources. Does not know who calls them.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.errors import ConfigError, Problem
from gateway.tools.decorator import DEFAULT_TIMEOUT_S, Declaration, Tools, declared_in, tool_named
from gateway.tools.outcome import NotBegun
from gateway.tools.provider import HOOK_NAMES, Hook
from gateway.tools.providers.brought import BroughtProvider, faults
from gateway.tools.providers.contained import contained
from gateway.tools.providers.lifespans import Lifespan
from gateway.tools.providers.plugin_files import PluginFiles, problem_in
from gateway.tools.providers.run_types import made_run_type
from gateway.tools.run_types import RunType
from gateway.tools.schema import Signature, Unreadable, read_output, read_signature
from gateway.tools.sources import told
from gateway.tools.spec import ToolContext, ToolSpec, make_spec
from gateway.tools.threads import NoThread, Threads

# Long enough for the largest libraries on a slow disk. A plugin that never ends must not keep every later reload waiting.
IMPORT_S = 120.0
# How much of its time a plain function may wait for a thread: what is given up before it began has surely not happened.
_WAITS = 0.8
# How hooks' names begin; whatever else begins like that is taken for a misspelt one.
_HOOK_BEGINNINGS = ("before_", "after_", "on_")
# Who calls a tool when its self-check is a call of its own.
_CHECKING = ToolContext(None, "self-check", None, None, "0" * 32, "self-check")


@dataclass(frozen=True, slots=True)
class _Tool:
    declaration: Declaration
    signature: Signature
    spec: ToolSpec
    # On the event loop, where it is a coroutine function.
    contained: Callable[..., Awaitable[Any]] | None


# Inside the class `list` is the seam's method.
_ToolList = list[_Tool]
_ProblemList = list[Problem]


class PythonProvider:
    """The plugins of some folders as a ToolProvider."""

    def __init__(
        self,
        places: Sequence[Path],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: int = 0,
        resources: Mapping[str, Any] | None = None,
        threads: Threads | None = None,
        import_timeout_s: float = IMPORT_S,
        named_at: Sequence[Problem] = (),
    ) -> None:
        """Nothing is read yet.

        Args:
            places: folders with plugins, or single files.
            timeout_s: seconds a call may take whose tool says nothing else.
            retries: how often a tool that says nothing else is asked again.
            resources: what the gateway itself gives to tools, by name.
            threads: where plain functions run; one's own by default.
            import_timeout_s: seconds that importing all plugins may take.
            named_at: where each place is configured, as a problem without words.
        """
        self._import_timeout_s = import_timeout_s
        self._files = PluginFiles(places, named_at)
        self._timeout_s = timeout_s
        self._retries = retries
        self._resources = dict(resources or {})
        self._threads = threads or Threads()
        self._tools: dict[str, _Tool] | None = None
        self._specs: list[ToolSpec] = []
        self._brought: list[BroughtProvider] = []
        self._run_types: dict[str, RunType] = {}
        self._strategies: dict[str, Callable[..., Iterable[int]]] = {}
        self._hooks: dict[str, list[Hook]] = {}
        self._lifespans: list[Lifespan] = []

    @property
    def name(self) -> str:
        """Always `python`."""
        return "python"

    @property
    def hooks(self) -> Mapping[str, Sequence[Hook]]:
        """The plugins' module-level hooks, in the order of their files."""
        return self._hooks

    @property
    def brought(self) -> Sequence[BroughtProvider]:
        """The tool providers that plugins add, once `list` has answered."""
        return self._brought

    @property
    def run_types(self) -> Sequence[RunType]:
        """The types of runs that plugins add, once `list` has answered."""
        return tuple(self._run_types.values())

    @property
    def strategies(self) -> Mapping[str, Callable[..., Iterable[int]]]:
        """The strategies that plugins add, once `list` has answered."""
        return self._strategies

    @property
    def fingerprint(self) -> str:
        """The hash of the plugins' source files."""
        return self._files.digest

    async def open(self) -> None:
        """Import the plugins, where `list` has not, and start their lifespans in order.

        Raises:
            ConfigError: with every problem found; what had been started is stopped.
        """
        await self.list()
        for name, module in self._files.modules:
            function = getattr(module, "lifespan", None)
            if function is None:
                continue
            lifespan = Lifespan(name, function)
            self._lifespans.append(lifespan)
            try:
                made = await lifespan.start()
            except Exception as error:
                await self.close()
                raise ConfigError((problem_in(Path(module.__file__ or name), error),)) from error
            taken = sorted(made.keys() & self._resources.keys())
            if taken:
                await self.close()
                text = f"lifespan() yields `{taken[0]}`, and another plugin or the gateway has a resource of that name"
                raise ConfigError((Problem(told(module.__file__ or name), 0, text),))
            self._resources.update(made)

    async def list(self) -> Sequence[ToolSpec]:
        """Import the plugins once and list their tools in the order of files and declarations.

        Raises:
            ConfigError: with every problem of every plugin.
        """
        if self._tools is None:
            # Runs the plugins' own code, which may take its time.
            try:
                async with asyncio.timeout(self._import_timeout_s):
                    self._tools = await self._threads.run(self._load)
            except TimeoutError as error:
                text = f"importing it took longer than {self._import_timeout_s:g} s"
                raise ConfigError((Problem(self._files.importing or "tools.plugins", 0, text),)) from error
        return tuple(self._specs)

    async def check(self) -> tuple[Problem, ...]:
        """Run the self-checks that tools declare, each within its tool's timeout."""
        problems = []
        for each in (self._tools or {}).values():
            check = each.declaration.check
            if check is None:
                continue
            try:
                async with asyncio.timeout(each.spec.timeout_s):
                    if callable(check):
                        await self._run(check, {}, is_async=inspect.iscoroutinefunction(check))
                    else:
                        await self.call(each.spec.name, check, _CHECKING)
            except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises is what is wrong
                text = f"tool `{each.spec.name}`: its check failed: {str(error) or type(error).__name__}"
                problems.append(Problem(each.declaration.file, each.declaration.line, text))
        return tuple(problems)

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Call the function: async ones on the loop, plain ones in a thread.

        Raises:
            NotBegun: no thread was free for most of the tool's time; it was not called.
            Exception: whatever the tool raises.
        """
        assert self._tools is not None, "list() or open() comes first"
        chosen = self._tools[name]
        if chosen.signature.context is not None:
            context = replace(context, resources=self._resources)
        bound = chosen.signature.bind(arguments, context)
        if chosen.contained is not None:
            return await chosen.contained(**bound)
        try:
            wait_s = chosen.spec.timeout_s * _WAITS
            value = await self._threads.run_within(wait_s, chosen.declaration.function, **bound)
        except NoThread as error:
            raise NotBegun(
                f"`{name}` was not called: too many tools that block are running; try again later"
            ) from error
        return await value if inspect.isawaitable(value) else value

    async def probe(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> tuple[bool, Any]:
        """Ask the tool's own probe; None means that it did not happen."""
        assert self._tools is not None, "list() or open() comes first"
        chosen = self._tools[name]
        function = chosen.declaration.probe
        assert function is not None, "only probed tools are asked"
        # Whoever asks about a payment may not need all that making it needs.
        wanted = inspect.signature(function).parameters
        whole = chosen.signature.bind(arguments, replace(context, resources=self._resources))
        # What the model left out is what the tool itself takes it for.
        defaults = {
            key: parameter.default
            for key, parameter in inspect.signature(chosen.declaration.function).parameters.items()
            if parameter.default is not parameter.empty
        }
        bound = {key: value for key, value in {**defaults, **whole}.items() if key in wanted}
        value = await self._run(function, bound, is_async=inspect.iscoroutinefunction(function))
        return value is not None, value

    async def close(self) -> None:
        """Stop the lifespans, the last one first, and forget the modules."""
        while self._lifespans:
            await self._lifespans.pop().stop()
        self._files.unload()

    async def _run(self, function: Any, arguments: Mapping[str, Any], *, is_async: bool) -> Any:
        if not is_async:
            value = await self._threads.run(function, **arguments)
            return await value if inspect.isawaitable(value) else value
        return await contained(function)(**arguments)

    def _load(self) -> dict[str, _Tool]:
        self._files.load()
        problems = self._files.problems
        tools: dict[str, _Tool] = {}
        for _, module in self._files.modules:
            self._collect_hooks(module, problems)
            for made in self._collect_tools(module, problems):
                # Of one name twice the registry says so, naming both places.
                tools.setdefault(made.spec.name, made)
                self._specs.append(made.spec)
        if problems:
            raise ConfigError(tuple(problems))
        return tools

    def _collect_hooks(self, module: Any, problems: _ProblemList) -> None:
        problems.extend(_misspelt_hooks(module))
        for name in HOOK_NAMES:
            hook = getattr(module, name, None)
            if hook is None:
                continue
            if inspect.iscoroutinefunction(hook):
                self._hooks.setdefault(name, []).append(contained(hook))
            else:
                problems.append(_problem(module, hook, f"hook `{name}` must be an `async def`"))

    def _collect_tools(self, module: Any, problems: _ProblemList) -> _ToolList:
        register = getattr(module, "register", None)
        if register is None:
            # A tool that another file declares may be imported here; one that is declared here was meant to be added.
            why = "is never added: the file has no `register(registry)`"
            made_here = declared_in(module)
            problems.extend(Problem(each.file, each.line, f"tool `{each.name}` {why}") for each in made_here)
            return []
        tools = Tools()
        if inspect.iscoroutinefunction(register):
            problems.append(_problem(module, register, "`register` must be a plain `def`"))
            return []
        try:
            register(tools)
        except BaseException as error:  # noqa: BLE001 - foreign code in a thread: whatever it raises is a problem of its file
            problems.append(problem_in(Path(module.__file__), error))
        else:
            problems.extend(
                Problem(each.file, each.line, f"tool `{each.name}` is never added: `register` does not add it")
                for each in declared_in(module)
                if each.function not in tools.added
            )
        problems.extend(tools.problems)
        source = _source_hash(Path(module.__file__))
        for provider in tools.providers:
            wrong = faults(provider)
            problems.extend(Problem(told(module.__file__), 0, text) for text in wrong)
            if not wrong:
                self._brought.append(BroughtProvider(provider, told(module.__file__), source))
        self._collect_others(tools, told(module.__file__), problems)
        made = []
        for declaration in tools.declarations:
            try:
                made.append(self._make(declaration, source))
            except Unreadable as error:
                text = f"tool `{declaration.name}`: {error}"
                problems.append(Problem(declaration.file, declaration.line, text))
        return made

    def _collect_others(self, tools: Tools, file: str, problems: _ProblemList) -> None:
        """What a plugin adds beside tools: strategies, types of runs."""
        for name, choose in tools.strategies.items():
            if name in self._strategies:
                problems.append(Problem(file, 0, f"strategy `{name}`: another plugin adds it too"))
            self._strategies.setdefault(name, choose)
        for kind in tools.run_types:
            try:
                if kind.name in self._run_types:
                    raise Unreadable(f"it is already declared at {self._run_types[kind.name].origin}")
                self._run_types[kind.name] = made_run_type(kind, file, self._resources)
            except Unreadable as error:
                problems.append(Problem(file, kind.line, f"run type `{kind.name}`: {error}"))

    def _make(self, declaration: Declaration, source: str) -> _Tool:
        function = declaration.function
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise Unreadable("a tool returns one value; it can't be a generator")
        signature = read_signature(function, declaration.parameters)
        description = (declaration.description or signature.description).strip()
        if not description:
            raise Unreadable("it needs a docstring or `description=` that tells the model when to use it")
        default = declaration.timeout_s == DEFAULT_TIMEOUT_S
        spec = make_spec(
            name=declaration.name,
            description=description,
            parameters=signature.parameters,
            provider=self.name,
            origin=f"{declaration.file}:{declaration.line}",
            timeout_s=float(self._timeout_s if default else declaration.timeout_s),
            writes=declaration.writes,
            allowed_roles=frozenset(declaration.allowed_roles),
            deletes=declaration.deletes,
            requires=declaration.requires,
            result_fields=declaration.result_fields,
            sensitive=declaration.sensitive,
            cache_ttl_s=declaration.cache_ttl_s,
            shared_cache=declaration.shared_cache,
            checked=declaration.check is not None,
            price=declaration.price,
            output=read_output(function),
            retries=self._retries if declaration.retries is None else declaration.retries,
            effect_key=_effect_key(declaration, signature),
            probed=declaration.probe is not None,
            implementation=source,
            needs_confirmation=declaration.needs_confirmation,
            confidence_gate=declaration.confidence_gate,
            compensate=_compensation(declaration),
        )
        on_loop = contained(function) if inspect.iscoroutinefunction(function) else None
        return _Tool(declaration, signature, spec, on_loop)


def _misspelt_hooks(module: Any) -> _ProblemList:
    """Functions that look like hooks and would never be called; a guard that is not there is worse than none."""
    tools = {id(each.function) for each in declared_in(module)}
    found = []
    for name, function in vars(module).items():
        if name in HOOK_NAMES or not inspect.isfunction(function) or function.__module__ != module.__name__:
            continue
        near = difflib.get_close_matches(name.lower(), HOOK_NAMES, n=1, cutoff=0.8)
        if id(function) in tools or not (near or name.startswith(_HOOK_BEGINNINGS)):
            continue
        known = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(f'`{each}`' for each in HOOK_NAMES)}"
        text = f"`{name}` looks like a hook and is none: {known} Begin its name with `_` if it is not meant as one."
        found.append(_problem(module, function, text))
    return found


def _effect_key(declaration: Declaration, signature: Signature) -> Callable[[Mapping[str, Any]], Any] | None:
    declared = declaration.idempotency_key
    if declared is None:
        return None
    if callable(declared):
        return lambda arguments: declared(**arguments)
    unknown = sorted(set(declared) - set(signature.parameters.get("properties", {})))
    if unknown:
        raise Unreadable(f"`idempotency_key` names `{unknown[0]}`, which is no parameter")
    return lambda arguments: [arguments.get(name) for name in declared]


def _compensation(declaration: Declaration) -> str:
    if declaration.compensate is None:
        return ""
    name = tool_named(declaration.compensate)
    if name is None:
        raise Unreadable("`compensate` must be a function with @tool, or a tool's name")
    return name


def _source_hash(file: Path) -> str:
    """What a plugin's code consists of: its file, the rest of its package, and the `_` files it may share with others."""
    around = file.parent.rglob("*.py") if file.name == "__init__.py" else file.parent.glob("_*.py")
    digest = hashlib.sha256(file.read_bytes())
    for each in sorted(around):
        digest.update(each.read_bytes())
    return digest.hexdigest()


def _problem(module: Any, function: Any, text: str) -> Problem:
    code = getattr(function, "__code__", None)
    return Problem(told(module.__file__ or module.__name__), code.co_firstlineno if code else 0, text)
