"""One version, built from files: read, prove, encode, and only then hand over.

Knows how the parts of a `Snapshot` are made from a `Bundle`. What lives longer than a version is made in `app.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from gateway.backends.attempts import Tier
from gateway.backends.choice import Member
from gateway.backends.factory import BackendShelf
from gateway.backends.pool import Pool
from gateway.backends.price_list import listed_prices
from gateway.backends.watched import WatchedBackend
from gateway.clock import Clock, SystemClock
from gateway.config.bundle import Bundle, no_tool
from gateway.config.context import STRATEGIES
from gateway.config.files import Files
from gateway.config.limits import OidcConfig
from gateway.config.loader import load, load_files
from gateway.config.models import Capabilities, GatewayConfig, SemanticConfig
from gateway.config.names import ModelNames, fallback_order
from gateway.config.privacy import PrivacyConfig
from gateway.config.publishing import Draft
from gateway.config.versions import Version
from gateway.errors import ConfigError, Problem
from gateway.routing.composite import CompositeRouter
from gateway.routing.encoder import Encoder
from gateway.routing.encoders.masked import MaskedEncoder
from gateway.routing.encoders.registry import Encoders
from gateway.routing.fits import Fits
from gateway.routing.linted import warnings_of
from gateway.routing.relevance import Relevance
from gateway.routing.rules import rule_mistakes
from gateway.security.key_book import KeyBook
from gateway.security.keys import KeyRing, Tokens
from gateway.security.masking.masking import Detects
from gateway.security.masking.privacy import Privacy
from gateway.security.masking.recollection import Recollection
from gateway.security.masking.secret import Secret, fresh_secret
from gateway.security.outbound import OutboundGuard
from gateway.security.outbound_gate import addresses_of
from gateway.security.prices import Prices, price_of
from gateway.settings import ENVIRONMENT, Settings
from gateway.tools.lock import LOCK_NAME, Lock, read_lock
from gateway.tools.provider import ToolProvider
from gateway.tools.providers.http import HttpProvider
from gateway.tools.providers.mcp import McpProvider
from gateway.tools.providers.mcp_servers import McpServers
from gateway.tools.providers.python import PythonProvider
from gateway.tools.registry import Registry
from gateway.tools.spec import InvalidArguments
from gateway.tools.threads import Threads
from gateway.turn.gate import pass_gate
from gateway.turn.hooks import Hooks
from gateway.turn.offering import described_as, offers_vary
from gateway.turn.snapshot import Snapshot

# Names that are resolved at the same time, for tools.
MAX_LOOKUPS = 8


class Builder:
    """Builds snapshots. Holds what they share: encoders, backends, threads.

    Args:
        config_path: the gateway's own file.
        routes_path: the folder of route files, or None.
        settings: the environment.
        host: the address the server is bound to.
        port: the port it listens on, or None for the file's; never reached by tools.
        offline: as in `prove`; such snapshots serve nobody.
        book: the keys of the database, or None where there is none to ask.
        secret: reads what placeholders are made with, for the database's URL; None for one of this process's own.
        encoders: those that are there already, to be closed with the builder.

    Attributes:
        root: what relative paths of the configuration start from.
        mcp: the MCP servers of all versions.
        threads: where tools that block run.
        lock_path: the lock of MCP servers' tools, beside the gateway's file.
        told: what the version that was built last does without, for who checks.
    """

    def __init__(
        self,
        config_path: Path,
        routes_path: Path | None,
        settings: Settings,
        clock: Clock,
        *,
        host: str | None = None,
        root: Path | None = None,
        offline: bool = False,
        book: KeyBook | None = None,
        secret: Callable[[str], Secret] | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        self._config_path = config_path
        self._routes_path = routes_path
        self._settings = settings
        self._clock = clock
        self._host = host
        self.root = root or Path()
        self._encoders = encoders or Encoders()
        self._fits = Fits()
        self._shelf = BackendShelf()
        self.threads = Threads()
        self._lookups = Threads(MAX_LOOKUPS)
        self._offline = offline
        self.mcp = McpServers(self.root)
        self.lock_path = config_path.parent / LOCK_NAME
        self.told: tuple[Problem, ...] = ()
        self._book = book
        self._secret_of = secret
        self._secret: Secret | None = None
        self.recollection = Recollection()
        self._tokens: tuple[OidcConfig, Tokens] | None = None

    async def read(self) -> Bundle:
        """What the files on disk say now, proved as far as files can be.

        Raises:
            ConfigError: with every problem.
        """
        return await asyncio.to_thread(
            load, self._config_path, self._routes_path, self._settings, offline=self._offline
        )

    async def first(self) -> Snapshot:
        """A version to look at: its encoder is not loaded yet (see `Snapshot.router`'s `prepare`), nor has it passed a gate.

        Raises:
            ConfigError: with every problem.
        """
        return (await self._build(1, None, await self.read(), prepared=False, gated=False)).value

    async def next(self, generation: int, current: Snapshot) -> Snapshot:
        """The next version, complete with encoded utterances; the current one where nothing changed.

        Raises:
            ConfigError: with every problem; nothing of the new version stays open.
        """
        return (await self._build(generation, current, await self.read(), prepared=True)).value

    async def draft(
        self, generation: int, current: Snapshot | None, files: Files | None, *, prepared: bool = True
    ) -> Draft[Snapshot]:
        """A version with what it was built from.

        Args:
            generation: its number.
            current: answered instead where nothing differs from it; None builds in any case.
            files: what to build from; None for the files on disk.
            prepared: whether its utterances are encoded.

        Raises:
            ConfigError: as `next`.
        """
        if files is None:
            bundle = await self.read()
        else:
            bundle = await asyncio.to_thread(load_files, files, self._settings, offline=self._offline)
        return await self._build(generation, current, bundle, prepared=prepared)

    def prepare_backends(self) -> None:
        """Begin what takes the backends long; for a version that serves, not for one that is only looked at."""
        self._shelf.prepare()

    def encoder(self, config: SemanticConfig) -> Encoder | None:
        """The encoder that these settings name; None where likeness is not asked."""
        remote = self._offline and _is_remote(config.encoder)
        return self._encoders.get(config.encoder) if config.enabled and not remote else None

    async def dismiss(self, snapshot: Snapshot) -> None:
        """Close what only this version used."""
        await snapshot.router.close()
        if snapshot.relevance is not None:
            await snapshot.relevance.close()
        await snapshot.tools.close()
        for name, config in snapshot.config.backends.items():
            await self._shelf.put_back(name, config)

    async def close(self) -> None:
        """Close what versions share."""
        await self._encoders.close()
        await self.mcp.close()

    async def _build(
        self, generation: int, current: Snapshot | None, bundle: Bundle, *, prepared: bool, gated: bool = True
    ) -> Draft[Snapshot]:
        config = bundle.config
        keys = KeyRing(
            config.keys,
            self._host or config.server.host,
            teams=config.teams,
            book=self._book,
            trusted_proxies=config.server.trusted_proxies,
            tokens=self._tokens_of(config.keys.oidc),
        )
        if current is not None:
            await refuse_open_gateway(keys)
        registry, servers = await self._registry(bundle)
        try:
            self.told = (
                *bundle.warnings,
                *(each for server in servers for each in server.told),
                *self._check(bundle, registry, servers),
            )
            version = Version(generation, _digest(bundle, registry))
            if current is not None and version.digest == current.version.digest and config == current.config:
                await registry.close()
                return Draft(current, bundle.files, config.config, failing=False)
            privacy = self._privacy(bundle, registry)
            router = self._router(bundle, version, privacy)
            remote = self._offline and _is_remote(config.router.semantic.encoder)
            gate = bundle.files.gate if gated and not remote else None
            if prepared or gate is not None:
                await router.prepare()
            backends = await self._backends(bundle)
        except BaseException:
            await registry.close()
            raise
        listed = await asyncio.to_thread(listed_prices, config.backends)
        pools = {name: self._pool(name, config, backends) for name in config.models}
        snapshot = Snapshot(
            version=version,
            config=config,
            keys=keys,
            routes={route.route: route for route in bundle.routes},
            router=router,
            tools=registry,
            pools=pools,
            hooks=Hooks(registry.hooks),
            created=int(self._clock.now()),
            names=ModelNames(config.models, config.aliases),
            calibration=router.calibration,
            encoder=_trusted(self.encoder(config.router.semantic), config.router.semantic, privacy),
            relevance=self._relevance(config, registry, privacy),
            offers_vary=offers_vary(bundle.config, bundle.routes, registry),
            privacy=privacy,
            prices=Prices({name: price_of(backend, listed.get(name)) for name, backend in config.backends.items()}),
        )
        if prepared and snapshot.relevance is not None:
            await snapshot.relevance.prepare()
        if gate is not None:
            try:
                await pass_gate(bundle.files.gate_name, gate, snapshot)
            except BaseException:
                await self.dismiss(snapshot)
                raise
        return Draft(snapshot, bundle.files, config.config, failing=router.failure is not None)

    async def _registry(self, bundle: Bundle) -> tuple[Registry, list[McpProvider]]:
        config = bundle.config
        lock = await asyncio.to_thread(read_lock, self.lock_path) if config.tools.mcp else Lock()
        guard = OutboundGuard(config.tools.outbound, resolve=self._resolve)
        providers: list[ToolProvider] = [
            PythonProvider(
                [self.root / place for place in config.tools.plugins],
                timeout_s=config.tools.timeout_s,
                retries=config.tools.retries,
                resources={"outbound": guard},
                threads=self.threads,
                named_at=[
                    bundle.problem(("tools", "plugins", index), "") for index in range(len(config.tools.plugins))
                ],
            )
        ]
        providers += [
            HttpProvider(
                name,
                service,
                guard,
                timeout_s=config.tools.timeout_s,
                retries=config.tools.retries,
                root=self.root,
                place=partial(_service_place, bundle, name),
            )
            for name, service in config.tools.http.items()
        ]
        servers = [self._mcp_provider(name, bundle, lock, guard) for name in config.tools.mcp]
        registry = await Registry.build(
            [*providers, *servers],
            config.tools,
            start=not self._offline,
            may_come=lambda name: _may_come(name, servers),
        )
        return registry, servers

    def _tokens_of(self, config: OidcConfig | None) -> Tokens | None:
        """What reads an identity provider's tokens; the same as long as the provider is, for what it remembers of it."""
        if config is None:
            return None
        if self._tokens is None or self._tokens[0] != config:
            # Cryptography that nobody loads who has no such provider.
            from gateway.security.oidc import OidcTokens

            self._tokens = (config, OidcTokens(config, self._clock))
        return self._tokens[1]

    def _mcp_provider(self, name: str, bundle: Bundle, lock: Lock, guard: OutboundGuard) -> McpProvider:
        """One server's tools; all servers start at the same time."""
        tools = bundle.config.tools
        return McpProvider(
            name,
            tools.mcp[name],
            None if self._offline else self.mcp.take(name, tools.mcp[name], tools, guard),
            lock.tools(name),
            self.mcp.put_back,
            timeout_s=tools.timeout_s,
            retries=tools.retries,
            place=bundle.problem(("tools", "mcp", name), ""),
        )

    async def _resolve(self, host: str, port: int) -> list[str]:
        """The system's resolver, in threads of its own: a name that never answers keeps nothing else waiting."""
        return await self._lookups.run(addresses_of, host, port)

    def _pool(self, name: str, config: GatewayConfig, backends: Mapping[str, WatchedBackend]) -> Pool:
        tiers = []
        for each in fallback_order(name, config.models, config.aliases):
            model = config.models[each]
            members = tuple(Member(backends[member.name], member.weight) for member in model.backends)
            choosy = any(member.backend.config.capabilities != Capabilities() for member in members)
            tiers.append(Tier(each, members, model.balance, model.retries, choosy))
        return Pool(name, tiers, self._clock)

    async def _backends(self, bundle: Bundle) -> dict[str, WatchedBackend]:
        """All backends, or none: what is wrong with one of them must not keep the others."""
        config = bundle.config
        taken: dict[str, WatchedBackend] = {}
        try:
            for name, backend in config.backends.items():
                try:
                    taken[name] = self._shelf.take(name, backend)
                except ConfigError as error:
                    raise ConfigError(tuple(_placed(each, name, bundle) for each in error.problems)) from error
        except BaseException:
            for name in taken:
                await self._shelf.put_back(name, config.backends[name])
            raise
        return taken

    def secret(self, database: str) -> Secret:
        """What placeholders are made with; read once.

        Raises:
            ConfigError: there is none, and none can be made.
        """
        if self._secret is None:
            self._secret = fresh_secret() if self._secret_of is None else self._secret_of(database)
        return self._secret

    def _privacy(self, bundle: Bundle, registry: Registry) -> Privacy | None:
        """What is private; None where nothing is looked for."""
        config = bundle.config
        routes = {route.route: route.privacy for route in bundle.routes if route.privacy is not None}
        modes = {config.privacy.mode, *(route.mode for route in routes.values())}
        sensitive = any(spec.sensitive for spec in registry.specs.values())
        if not sensitive and not modes & {"mask", "block"}:
            return None
        secret = self.secret(config.storage.database)
        secrets_of = registry.secrets_of if sensitive else None
        return Privacy(config.privacy, routes, secret, _detector_of, secrets_of, self.recollection)

    def _relevance(self, config: GatewayConfig, registry: Registry, privacy: Privacy | None) -> Relevance | None:
        if len(registry.specs) <= config.tools.max_offered:
            return None
        semantic = config.router.semantic
        described = {spec.name: described_as(spec) for spec in registry.specs.values()}
        return Relevance(described, _trusted(self.encoder(semantic), semantic, privacy), semantic.timeout_ms / 1000)

    def _check(self, bundle: Bundle, registry: Registry, servers: Sequence[McpProvider]) -> list[Problem]:
        """Raise what is wrong; answer what may be right once every server is there."""
        found = bundle.tool_problems(lambda name: _said_of(name, registry, servers), registry.run_types)
        problems = [problem for problem in found if problem.severity == "error"]
        problems += _strategy_problems(bundle, registry)
        problems += _unknown_types(bundle, registry)
        for route in bundle.routes:
            # The router finds these too, but does not know lines.
            problems += [bundle.route_problem(route.route, path, text) for path, text in rule_mistakes(route)]
        if any(problem.severity == "error" for problem in problems):
            raise ConfigError(tuple(problems))
        return [problem for problem in found if problem.severity != "error"]

    def _router(self, bundle: Bundle, version: Version, privacy: Privacy | None) -> CompositeRouter:
        semantic = bundle.config.router.semantic
        encoder = _trusted(self.encoder(semantic), semantic, privacy)
        files = {route.route: bundle.route_problem(route.route, (), "").file for route in bundle.routes}
        aliases = bundle.config.aliases
        return CompositeRouter(
            [r.model_copy(update={"model": aliases[r.model]}) if r.model in aliases else r for r in bundle.routes],
            bundle.config.router,
            str(version),
            encoder,
            self._clock,
            # An alias may name what a wildcard matches.
            (*bundle.config.models, *aliases.values()),
            files,
            self._fits,
            bundle.calibration,
        )


async def prove(
    config_path: Path, routes_path: Path, settings: Settings, *, offline: bool = False
) -> tuple[Problem, ...]:
    """Build a version and throw it away; what is not wrong enough to refuse it.

    With `offline`, nothing is asked over a network and no MCP server is started (their tools are what the lock says), plugins'
    resources are not opened, and variables without a value are warnings.

    Raises:
        ConfigError: with every problem.
    """
    builder = Builder(config_path, routes_path, settings, SystemClock(), offline=offline)
    try:
        bundle = await builder.read()
        own = [Problem(ENVIRONMENT, 0, text, "warning") for text in settings.warnings]
        if not bundle.whole:
            return (*own, *bundle.warnings)
        draft = await builder.draft(1, None, bundle.files, prepared=False)
        try:
            router = draft.value.router
            found = await warnings_of(bundle, router, offline=offline) if isinstance(router, CompositeRouter) else ()
        finally:
            await builder.dismiss(draft.value)
    finally:
        await builder.close()
    return (*own, *builder.told, *stale_calibration(draft.files, draft.value), *found)


def stale_calibration(files: Files, snapshot: Snapshot) -> tuple[Problem, ...]:
    """A warning where `routes/calibration.json` is there and not used."""
    if snapshot.calibration.state != "stale":
        return ()
    text = f"the calibration is stale and not used: {snapshot.calibration.reason}; run `hermes-gateway calibrate`"
    return (Problem(files.calibration_name, 0, text, "warning"),)


def _detector_of(config: PrivacyConfig) -> Detects:
    # Tables of the world's telephone numbers, which nobody loads who masks nothing.
    from gateway.security.masking.detector import Detector

    return Detector(config.kinds, config.patterns, id_numbers=config.id_numbers, regions=config.phone_regions)


def _strategy_problems(bundle: Bundle, registry: Registry) -> list[Problem]:
    """Strategies for long conversations that nobody brings."""
    known = (*STRATEGIES, *registry.strategies)
    place = ("context", "strategy")

    def text(name: str) -> str:
        return f"there is no strategy `{name}`; there are {', '.join(f'`{each}`' for each in known)}"

    own = bundle.config.context.strategy
    problems = [] if own in known else [bundle.problem(place, text(own))]
    named = [(route.route, route.context.strategy) for route in bundle.routes]
    return problems + [
        bundle.route_problem(route, place, text(said))
        for route, said in named
        if said is not None and said not in known
    ]


def _said_of(name: str, registry: Registry, servers: Sequence[McpProvider]) -> tuple[str, str] | None:
    """What is wrong with naming this tool, and how severe it is; None if nothing is."""
    if registry.find(name) is not None:
        return None
    if name in registry.ambiguous:
        return (
            f"`{name}` may mean {' or '.join(f'`{each}`' for each in registry.ambiguous[name])}: write which",
            "error",
        )
    if _may_come(name, servers):
        return f"there is no tool `{name}` for now: a server is away, or its tools differ from their lock", "warning"
    return no_tool(name, registry.names), "error"


def _unknown_types(bundle: Bundle, registry: Registry) -> list[Problem]:
    """Schedules of types that no plugin adds, or with an input that the type does not take."""
    problems = []
    for name, schedule in bundle.config.runs.schedules.items():
        if schedule.type is None:
            continue
        place = ("runs", "schedules", name)
        kind = registry.run_types.get(schedule.type)
        if kind is None:
            known = ", ".join(f"`{each}`" for each in sorted(registry.run_types)) or "none"
            problems.append(
                bundle.problem((*place, "type"), f"no plugin adds the type `{schedule.type}`; there are: {known}")
            )
            continue
        try:
            kind.validator.validate(dict(schedule.input))
        except InvalidArguments as error:
            where = (*place, "input") if schedule.input else place
            problems.append(bundle.problem(where, f"`{schedule.type}` does not take this input: {error}"))
    return problems


def _may_come(name: str, servers: Sequence[McpProvider]) -> bool:
    return any(fnmatchcase(name, pattern) for server in servers for pattern in server.absent)


async def refuse_open_gateway(keys: KeyRing) -> None:
    """Raise `ConfigError` where this configuration would let anybody in.

    Raises:
        StoreUnavailable: whether there ever was a key cannot be found out.
    """
    reason = await keys.refusal_to_start()
    if reason is not None:
        raise ConfigError((Problem("keys", 0, reason),))


def _placed(problem: Problem, backend: str, bundle: Bundle) -> Problem:
    """A backend knows its keys, not where they stand."""
    own = f"backends.{backend}"
    if problem.line or not problem.file.startswith(own):
        return problem
    keys = problem.file.removeprefix(own).lstrip(".")
    return bundle.problem(("backends", backend, *filter(None, keys.split("."))), problem.message, problem.severity)


def _service_place(bundle: Bundle, service: str, path: tuple[str, ...]) -> Problem:
    """Where a key of an HTTP service stands."""
    return bundle.problem(("tools", "http", service, *path), "")


def _trusted(encoder: Encoder | None, config: SemanticConfig, privacy: Privacy | None) -> Encoder | None:
    """The encoder, which sees nothing private where it is somebody else's server."""
    if encoder is None or privacy is None or privacy.scrub is None or not _is_remote(config.encoder):
        return encoder
    return MaskedEncoder(encoder, privacy.scrub)


def _is_remote(encoder: object) -> bool:
    return not isinstance(encoder, str)


def _digest(bundle: Bundle, registry: Registry) -> str:
    return hashlib.sha256(f"{bundle.digest}\n{registry.digest}".encode()).hexdigest()
