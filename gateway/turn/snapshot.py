"""One version of everything that decides, held together.

A turn takes one and keeps it to its end. Knows what belongs together; does not know how it was loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.backends.pool import Pool
from gateway.config.models import GatewayConfig, RouteConfig
from gateway.config.versions import Version
from gateway.errors import NoSuchModel
from gateway.routing.calibrated import Calibrated
from gateway.routing.router import Router
from gateway.security.keys import KeyRing
from gateway.security.principal import Principal
from gateway.tools.registry import Registry
from gateway.turn.hooks import Hooks


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
        calibration: where the router's thresholds come from.
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
    calibration: Calibrated = field(default_factory=Calibrated)

    def names_for(self, principal: Principal) -> tuple[str, ...]:
        """The model names this caller may ask for, in a stable order."""
        names = (self.config.router.model, *self.config.models, *self.config.aliases)
        return tuple(name for name in names if principal.models is None or name in principal.models)

    def pool_for(self, name: str, principal: Principal) -> Pool:
        """The pool behind a name the client used. The name itself is what has to be allowed, not what it stands for.

        Raises:
            NoSuchModel: unknown, or not this caller's.
        """
        if principal.models is not None and name not in principal.models:
            raise NoSuchModel(name)
        pool = self.pools.get(self.config.aliases.get(name, name))
        if pool is None:
            raise NoSuchModel(name)
        return pool
