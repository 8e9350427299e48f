"""Every tool of one version of the gateway, by name.

Knows specs, who runs them and who may be offered them. Does not run anything, and never changes: a reload builds another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from gateway.config.limits import ROLES
from gateway.config.models import ToolLimitConfig, ToolsConfig
from gateway.errors import ConfigError, Problem
from gateway.security.principal import Principal
from gateway.tools.prerequisites import unknown_compensations, unmet_requirements
from gateway.tools.provider import HOOK_NAMES, Bringing, Choosing, Hook, Running, ToolProvider
from gateway.tools.run_types import RunType
from gateway.tools.short_names import ShortNames, short_name
from gateway.tools.spec import TOOL_NAME_PATTERN, ToolSpec, asking_confidence, split_origin
from gateway.tools.validate import ArgumentValidator, SchemaInvalid


class Registry:
    """An immutable snapshot of tools.

    Attributes:
        specs: every tool by name.
        digest: hex SHA-256 over all of them and the providers' fingerprints; part of the version.
        hooks: the hooks that came with the tools, by hook name, in the order they run.
        config: limits and defaults, as `tools` in the gateway's file has them.
        max_result_bytes: most bytes of a result that a model sees.
        forward_headers: the client's headers that some tool is handed, lower case.
        gated: whether some tool's calls may have to wait for a human; `compensated` whether some tool's effects can be undone.
        asking: tools with a `confidence_gate` as models are told of them that have to say how sure they are, by name.
        names: every name a tool may be named by: its own, and the short one of a server's tool while that is unique.
        ambiguous: what a short name may mean that is not unique.
        run_types: types of background runs by name.
        strategies: what chooses what is sent of a long conversation, by name.
    """

    def __init__(
        self,
        specs: Mapping[str, ToolSpec],
        providers: Mapping[str, ToolProvider],
        validators: Mapping[str, ArgumentValidator],
        config: ToolsConfig,
    ) -> None:
        self.specs = MappingProxyType(dict(specs))
        self.digest = _digest(specs.values(), [each.fingerprint for each in providers.values()])
        self.hooks: Mapping[str, tuple[Hook, ...]] = MappingProxyType(
            {
                name: tuple(hook for each in providers.values() for hook in each.hooks.get(name, ()))
                for name in HOOK_NAMES
            }
        )
        self.run_types: Mapping[str, RunType] = MappingProxyType(
            {kind.name: kind for each in providers.values() if isinstance(each, Running) for kind in each.run_types}
        )
        self.strategies: Mapping[str, Callable[..., Iterable[int]]] = MappingProxyType(
            {
                name: choose
                for each in providers.values()
                if isinstance(each, Choosing)
                for name, choose in each.strategies.items()
            }
        )
        self._providers = dict(providers)
        self._validators = dict(validators)
        self.config = config
        self.max_result_bytes = config.max_result_bytes
        self.forward_headers = frozenset(name for spec in specs.values() for name in spec.forward_headers)
        self.gated = any(spec.gated for spec in specs.values())
        self.asking = {spec.name: asking_confidence(spec) for spec in specs.values() if spec.confidence_gate}
        self.compensated = any(spec.compensate for spec in specs.values())
        self._short = ShortNames(specs)
        self.names = frozenset([*specs, *self._short.names])
        self.ambiguous = self._short.ambiguous
        self._limits = {
            spec.name: limit for name, limit in config.limits.items() if (spec := self.find(name)) is not None
        }
        self._default = config.default

    @classmethod
    async def build(
        cls,
        providers: Sequence[ToolProvider],
        config: ToolsConfig,
        *,
        start: bool = True,
        may_come: Callable[[str], bool] = lambda _: False,
    ) -> Registry:
        """List every provider's tools and start the providers.

        Args:
            providers: in the order their tools are listed.
            config: limits and defaults.
            start: False looks only, as `hermes-gateway check` does; calls are then not possible.
            may_come: whether a name that no tool has now may be a tool's later on.

        Raises:
            ConfigError: with every problem of every provider; nothing stays open.
        """
        problems: list[Problem] = []
        specs: dict[str, ToolSpec] = {}
        validators: dict[str, ArgumentValidator] = {}
        queue = list(providers)
        built = False
        try:
            # Grows while it is gone through: some bring others.
            for provider in queue:
                try:
                    listed = await provider.list()
                except ConfigError as error:
                    problems.extend(error.problems)
                    continue
                if isinstance(provider, Bringing):
                    problems.extend(_bring(provider, queue))
                for spec in listed:
                    problems.extend(_add(spec, specs, validators))
            if not problems:
                # Where a provider's tools are missing, those that need them are not at fault.
                problems.extend(unmet_requirements(specs, may_come))
                problems.extend(unknown_compensations(specs, may_come))
            if problems:
                raise ConfigError(tuple(problems))
            if start:
                for provider in queue:
                    await provider.open()
            built = True
        finally:
            if not built:
                for provider in reversed(queue):
                    await provider.close()
        return cls(specs, {provider.name: provider for provider in queue}, validators, config)

    def fitting(
        self,
        names: Sequence[str] | None,
        principal: Principal,
        narrowed: Collection[str] | None = None,
    ) -> tuple[ToolSpec, ...]:
        """The tools a turn may use, in the order named.

        Args:
            names: what the route or model names; None for `tools.default`. Unknown names are left out: whoever read the
                files has checked them against `names`.
            principal: whose roles and permissions count.
            narrowed: what the request wants to be left with (none of them, if empty); None for all.
        """
        chosen: dict[str, ToolSpec] = {}
        for name in self._default if names is None else names:
            spec = self.find(name)
            if spec is not None and self.fits(spec, principal, narrowed):
                chosen[spec.name] = spec
        return tuple(chosen.values())

    def fits(self, spec: ToolSpec, principal: Principal, narrowed: Collection[str] | None) -> bool:
        """Whether this caller may be offered a tool, and wants to be."""
        return self.allowed(spec, principal) and (narrowed is None or self._is_among(spec, narrowed))

    def required(self, spec: ToolSpec) -> frozenset[str]:
        """The tools, by name, that must have succeeded before this one; a name that no tool has for now is one too."""
        return frozenset(found.name if (found := self.find(name)) is not None else name for name in spec.requires)

    def allowed(self, spec: ToolSpec, principal: Principal) -> bool:
        """Whether this caller may be offered a tool at all."""
        if spec.allowed_roles and spec.allowed_roles.isdisjoint(principal.roles):
            return False
        return principal.tools is None or self._is_among(spec, principal.tools)

    def short_offer(self, offered: Mapping[str, ToolSpec], taken: Collection[str]) -> Mapping[str, ToolSpec]:
        """Further names that a model may call offered tools by: short ones that are unique, and not `taken` by the client."""
        if not self._short.names:
            return {}
        shorts = {short_name(spec): spec for spec in offered.values()}
        return {
            short: spec
            for short, spec in shorts.items()
            if short in self._short.names and short not in taken and short not in offered
        }

    def find(self, name: str) -> ToolSpec | None:
        """The tool that a name in a file, a key or a header means, or None."""
        return self.specs.get(name) or self._short.find(name)

    def secrets_of(self, name: str) -> tuple[str, ...]:
        """The sensitive parameters and result fields of the tool that a model knows by this name."""
        spec = self.find(name) or self.find(name.rpartition("__")[2])
        return () if spec is None else spec.sensitive

    def _is_among(self, spec: ToolSpec, names: Collection[str]) -> bool:
        return spec.name in names or (bool(spec.remote_name) and any(self.find(name) is spec for name in names))

    def may_run(self, kind: RunType, principal: Principal) -> bool:
        """Whether this caller may ask for runs of a type; a key that lists its tools lists these among them."""
        if kind.allowed_roles and kind.allowed_roles.isdisjoint(principal.roles):
            return False
        return principal.tools is None or kind.name in principal.tools

    def limit_of(self, spec: ToolSpec) -> ToolLimitConfig | None:
        """How much a tool may be used, or None where that is not said."""
        return self._limits.get(spec.name)

    def provider(self, spec: ToolSpec) -> ToolProvider:
        """Who runs a tool."""
        return self._providers[spec.provider]

    def validator(self, spec: ToolSpec) -> ArgumentValidator:
        """What validates a tool's arguments."""
        return self._validators[spec.name]

    async def check(self) -> tuple[Problem, ...]:
        """Run every tool's self-check; empty when all is well."""
        found: list[Problem] = []
        for provider in self._providers.values():
            found.extend(await provider.check())
        return tuple(found)

    async def close(self) -> None:
        """Close the providers, the last one first."""
        for provider in reversed(self._providers.values()):
            await provider.close()


def _bring(provider: Bringing, queue: list[ToolProvider]) -> list[Problem]:
    """Add what a provider brings; a name is one provider's alone."""
    problems = []
    for brought in provider.brought:
        if any(brought.name == each.name for each in queue):
            problems.append(Problem("tools.plugins", 0, f"there are two tool providers called `{brought.name}`"))
        else:
            queue.append(brought)
    return problems


def _add(spec: ToolSpec, specs: dict[str, ToolSpec], validators: dict[str, ArgumentValidator]) -> list[Problem]:
    file, line = split_origin(spec.origin)
    if not TOOL_NAME_PATTERN.fullmatch(spec.name):
        wanted = "letters, digits, `_` and `-`, at most 64"
        return [Problem(file, line, f"tool `{spec.name}`: models can call names of {wanted}; give it `name=`")]
    nobodys = sorted(spec.allowed_roles - ROLES)
    if nobodys:
        text = f"there is no role `{nobodys[0]}`; there are {', '.join(sorted(ROLES))}"
        return [Problem(file, line, f"tool `{spec.name}`: `allowed_roles`: {text}")]
    before = specs.get(spec.name)
    if before is not None:
        return [Problem(file, line, f"tool `{spec.name}` is already declared at {before.origin}")]
    try:
        validators[spec.name] = ArgumentValidator(spec.parameters)
    except SchemaInvalid as error:
        return [Problem(file, line, f"tool `{spec.name}`: its parameters are no usable JSON Schema: {error}")]
    specs[spec.name] = spec
    return []


def _digest(specs: Iterable[ToolSpec], fingerprints: Iterable[str]) -> str:
    joined = "\n".join([*sorted(f"{spec.name} {spec.spec_hash}" for spec in specs), *sorted(fingerprints)])
    return hashlib.sha256(joined.encode()).hexdigest()
