"""Every tool of one version of the gateway, by name.

Knows specs, who runs them and who may be offered them. Does not run anything, and never changes: a reload builds another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from gateway.config.models import ToolsConfig
from gateway.errors import ConfigError, Problem
from gateway.security.principal import Principal
from gateway.tools.provider import HOOK_NAMES, Hook, ToolProvider
from gateway.tools.spec import TOOL_NAME_PATTERN, ToolSpec
from gateway.tools.validate import ArgumentValidator, SchemaInvalid


class Registry:
    """An immutable snapshot of tools.

    Attributes:
        specs: every tool by name.
        digest: hex SHA-256 over all of them and the providers' fingerprints; part of the version.
        hooks: the hooks that came with the tools, by hook name, in the order they run.
        max_result_bytes: most bytes of a result that a model sees.
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
        self._providers = dict(providers)
        self._validators = dict(validators)
        self.max_result_bytes = config.max_result_bytes
        self._default = config.default
        self._max_offered = config.max_offered

    @classmethod
    async def build(cls, providers: Sequence[ToolProvider], config: ToolsConfig, *, start: bool = True) -> Registry:
        """List every provider's tools and start the providers.

        Args:
            providers: in the order their tools are listed.
            config: limits and defaults.
            start: False looks only, as `hermes-gateway check` does; calls are then not possible.

        Raises:
            ConfigError: with every problem of every provider; nothing stays open.
        """
        problems: list[Problem] = []
        specs: dict[str, ToolSpec] = {}
        validators: dict[str, ArgumentValidator] = {}
        built = False
        try:
            for provider in providers:
                try:
                    listed = await provider.list()
                except ConfigError as error:
                    problems.extend(error.problems)
                    continue
                for spec in listed:
                    problems.extend(_add(spec, specs, validators))
            problems.extend(_unknown_defaults(config, specs))
            if problems:
                raise ConfigError(tuple(problems))
            if start:
                for provider in providers:
                    await provider.open()
            built = True
        finally:
            if not built:
                for provider in reversed(providers):
                    await provider.close()
        return cls(specs, {provider.name: provider for provider in providers}, validators, config)

    def offered(
        self,
        names: Sequence[str] | None,
        principal: Principal,
        narrowed: Collection[str] | None = None,
    ) -> tuple[ToolSpec, ...]:
        """The tools a turn may use, in the order named, at most `tools.max_offered`.

        Args:
            names: what the route or model names; None for `tools.default`. Unknown names are left out: who names them
                has checked them against `specs`.
            principal: whose roles and permissions count.
            narrowed: what the request wants to be left with (none of them, if empty); None for all.
        """
        chosen: dict[str, ToolSpec] = {}
        for name in self._default if names is None else names:
            spec = self.specs.get(name)
            if spec is not None and _may_use(spec, principal) and (narrowed is None or name in narrowed):
                chosen[name] = spec
        return tuple(chosen.values())[: self._max_offered]

    def allowed(self, spec: ToolSpec, principal: Principal) -> bool:
        """Whether this caller may be offered a tool at all."""
        return _may_use(spec, principal)

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


def _may_use(spec: ToolSpec, principal: Principal) -> bool:
    if spec.allowed_roles and spec.allowed_roles.isdisjoint(principal.roles):
        return False
    return principal.tools is None or spec.name in principal.tools


def _add(spec: ToolSpec, specs: dict[str, ToolSpec], validators: dict[str, ArgumentValidator]) -> list[Problem]:
    file, line = split_origin(spec.origin)
    if not TOOL_NAME_PATTERN.fullmatch(spec.name):
        wanted = "letters, digits, `_` and `-`, at most 64"
        return [Problem(file, line, f"tool `{spec.name}`: models can call names of {wanted}; give it `name=`")]
    before = specs.get(spec.name)
    if before is not None:
        return [Problem(file, line, f"tool `{spec.name}` is already declared at {before.origin}")]
    try:
        validators[spec.name] = ArgumentValidator(spec.parameters)
    except SchemaInvalid as error:
        return [Problem(file, line, f"tool `{spec.name}`: its parameters are no usable JSON Schema: {error}")]
    specs[spec.name] = spec
    return []


def _unknown_defaults(config: ToolsConfig, specs: Mapping[str, ToolSpec]) -> list[Problem]:
    return [
        Problem("tools.default", 0, f"there is no tool `{name}`; there are {', '.join(specs) or 'none'}")
        for name in config.default
        if name not in specs
    ]


def split_origin(origin: str) -> tuple[str, int]:
    """`file:line` as two values; the line is 0 where there is none."""
    file, _, line = origin.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (origin, 0)


def _digest(specs: Iterable[ToolSpec], fingerprints: Iterable[str]) -> str:
    joined = "\n".join([*sorted(f"{spec.name} {spec.spec_hash}" for spec in specs), *sorted(fingerprints)])
    return hashlib.sha256(joined.encode()).hexdigest()
