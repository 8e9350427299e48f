"""One version of everything that decides, held together.

A turn takes one and keeps it to its end. Knows what belongs together; does not know how it was loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.backends.pool import Pool
from gateway.config.models import GatewayConfig, RouteConfig
from gateway.config.names import WILDCARD, Meant, ModelNames, matched
from gateway.config.versions import Version
from gateway.errors import NoSuchModel
from gateway.routing.calibrated import Calibrated
from gateway.routing.conditions import UsedFacts
from gateway.routing.decision import Decision
from gateway.routing.encoder import Encoder
from gateway.routing.relevance import Relevance
from gateway.routing.router import Router
from gateway.scribe.pins import PinPatterns
from gateway.security.allowances import Allowances
from gateway.security.keys import KeyRing
from gateway.security.masking.privacy import Privacy
from gateway.security.prices import Bound, Prices
from gateway.security.principal import Principal
from gateway.tools.registry import Registry
from gateway.turn.hooks import Hooks
from gateway.turn.terms import Terms, terms_of


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a turn is decided by.

    Attributes:
        version: generation and hash; its text is what `x-gateway-version` shows.
        keys: who may call.
        config: the configuration.
        routes: by name.
        router: decides for `router.model`.
        tools: the registry.
        pools: one per model.
        hooks: what plugins want to see or change.
        created: seconds since the epoch; `created` of the model list.
        names: which model a name means.
        calibration: where the router's thresholds come from.
        relevance: which tools a text is about, where there may be more of them than are offered.
        offers_vary: whether requests of one thread may be offered different tools although nothing has failed.
        prices: what the backends cost.
        privacy: what is private, or None where nothing is looked for.
        encoder: the router's, as far as it may see what people say; None where likeness is not asked.
        allowances: who is limited by what.
        used: which facts of a request its routes ask for.
        routed: the name that leaves a model open, where nothing but the router has a say in where such a request goes; else None.
        patterns: what pins are found by.
        body_limit_bytes: no request's body may be larger.
        turn_timeout_s: no turn may take longer.
    """

    version: Version
    config: GatewayConfig
    keys: KeyRing
    routes: Mapping[str, RouteConfig]
    router: Router
    tools: Registry
    pools: Mapping[str, Pool]
    hooks: Hooks
    created: int
    names: ModelNames
    calibration: Calibrated = field(default_factory=Calibrated)
    relevance: Relevance | None = None
    offers_vary: bool = True
    prices: Prices = field(default_factory=Prices)
    privacy: Privacy | None = None
    encoder: Encoder | None = None
    allowances: Allowances = field(init=False)
    used: UsedFacts = field(init=False)
    routed: str | None = field(init=False)
    patterns: PinPatterns = field(init=False)
    body_limit_bytes: int = field(init=False)
    turn_timeout_s: float = field(init=False)
    _terms: dict[tuple[str, str | None], Terms] = field(default_factory=dict, init=False, repr=False)
    _ways: dict[tuple[str, str | None], tuple[Meant, Terms]] = field(default_factory=dict, init=False, repr=False)
    _bounds: dict[tuple[str, bool], Bound] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Lay out who is limited by what, and what is asked for."""
        object.__setattr__(self, "allowances", Allowances(self.config, self.routes))
        object.__setattr__(self, "used", UsedFacts(route.when for route in self.routes.values()))
        alone = not (self.config.router.sticky or self.hooks.on_decision)
        object.__setattr__(self, "routed", self.config.router.model if alone else None)
        object.__setattr__(self, "patterns", PinPatterns(self.config.context.pins))
        object.__setattr__(self, "body_limit_bytes", int(self.config.server.body_limit_mb * 1024 * 1024))
        object.__setattr__(self, "turn_timeout_s", self.config.server.turn_timeout_s)

    def terms(self, model: str, route: str | None) -> Terms:
        """What holds for every turn that goes to this model, by this route where it exists."""
        terms = self._terms.get((model, route))
        if terms is None:
            found = self.routes.get(route) if route is not None else None
            terms = terms_of(self.config, self.names, self.pools, model, found)
            if found is not None or route is None:  # a hook may name what it likes
                self._terms[model, route] = terms
        return terms

    def way(self, decision: Decision, asked: str) -> tuple[Meant, Terms] | None:
        """The model that a decision means, and what holds on the way there; None where there is no such model.

        Args:
            decision: what was decided.
            asked: the name the client asked for: what a wildcard stands for is in it.
        """
        found = self._ways.get((decision.model, decision.route))
        if found is None and (meant := self.meant_of(decision, asked)) is not None:
            found = meant, self.terms(meant.model, decision.route)
            # As many as the configuration has names and routes; what stands in the place of a `*` may be anything.
            if not meant.wanted and (decision.route is None or decision.route in self.routes):
                self._ways[decision.model, decision.route] = found
        return found

    def meant_of(self, decision: Decision, asked: str) -> Meant | None:
        """The model that a decision means, or None; see `way`."""
        if WILDCARD not in decision.model:
            return self.names.find(decision.model)
        meant = self.names.find(asked)
        return meant if meant is not None and meant.model == decision.model else None

    def bound_of(self, pool: Pool, *, fallbacks: bool) -> Bound:
        """What a token costs at most where this pool answers, or with `fallbacks` what stands in for it."""
        place = (pool.name, fallbacks)
        if place not in self._bounds:
            self._bounds[place] = self.prices.bound(pool.backend_names(fallbacks=fallbacks))
        return self._bounds[place]

    def names_for(self, principal: Principal) -> tuple[str, ...]:
        """The model names this caller may ask for, in a stable order. A wildcard is no name."""
        names = (self.config.router.model, *self.config.models, *self.config.aliases)
        return tuple(name for name in names if WILDCARD not in name and may_use(principal, name))

    def meant_by(self, name: str, principal: Principal) -> Meant:
        """The model behind a name the client used. The name itself is what has to be allowed, not what it stands for.

        Raises:
            NoSuchModel: unknown, or not this caller's.
        """
        meant = self.names.find(name) if may_use(principal, name) else None
        if meant is None:
            raise NoSuchModel(name)
        return meant


def may_use(principal: Principal, name: str) -> bool:
    """Whether a caller may ask for a model by this name; a key's own list may hold wildcards too."""
    if principal.models is None or name in principal.models:
        return True
    return any(WILDCARD in allowed and matched(allowed, name) is not None for allowed in principal.models)
