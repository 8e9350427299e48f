"""Routers and routes for tests: short to write, quick to build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.config.models import RouteConfig, RouterConfig
from gateway.routing.composite import CompositeRouter
from gateway.routing.encoder import Encoder
from gateway.routing.fits import Fits


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def route(name: str, *keywords: str, **fields: Any) -> RouteConfig:
    """A route to the model `m`, as its YAML would give it."""
    return RouteConfig.model_validate({"route": name, "model": "m", "keywords": list(keywords), **fields})


def router(
    routes: Sequence[RouteConfig],
    encoder: Encoder | None = None,
    *,
    version: str = "1-test",
    clock: HandClock | None = None,
    models: Sequence[str] = ("m", "fallback", "other"),
    fits: Fits | None = None,
    **semantic: Any,
) -> CompositeRouter:
    """A router whose default is the model `fallback`."""
    config = RouterConfig.model_validate({"default": "fallback", "semantic": semantic})
    return CompositeRouter(routes, config, version, encoder, clock or HandClock(), models, fits=fits)
