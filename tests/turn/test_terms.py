from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.config.models import GatewayConfig, RouteConfig
from gateway.config.names import Meant, ModelNames
from gateway.routing.decision import Decision
from gateway.turn.terms import terms_of
from tests.fakes import ScriptedBackend
from tests.turn.stage import stage


def route(**said: Any) -> RouteConfig:
    return RouteConfig.model_validate({"route": "r", "model": "m", "keywords": ["hi"], **said})


@pytest.mark.parametrize(
    ("said", "term", "value"),
    [
        ({"tools": ["a", "b"]}, "tools", ("a", "b")),
        ({"tools": ["a"], "tool_choice": "none"}, "tools", ()),
        ({"tools": ["a"], "max_rounds": 0}, "tools", ()),
        ({"max_turn_cost": 2}, "max_cost", 2_000_000_000),
        ({"max_turn_tokens": 9}, "max_tokens", 9),
        ({"cache": {"ttl_s": 0}}, "cache", None),
        ({"context": {"strategy": "none"}}, "window", None),
        ({"params": {"top_p": 0.5}}, "params", {"top_p": b"0.5"}),
        ({"on_failure": "ask"}, "on_failure", "ask"),
        ({"on_failure": "ask"}, "on_failure_of_runs", "ask"),
        ({}, "on_failure", "keep"),
        ({}, "on_failure_of_runs", "compensate"),
    ],
)
async def test_the_routes_word_holds_where_it_says_one(said: dict[str, Any], term: str, value: object) -> None:
    async with stage(ScriptedBackend()) as on:
        version = on.snapshot
        terms = terms_of(version.config, version.names, version.pools, "m", route(**said))
        found = getattr(terms, term)
        assert ({name: bytes(raw) for name, raw in found.items()} if term == "params" else found) == value


async def test_terms_are_found_once_a_version() -> None:
    async with stage(ScriptedBackend()) as on:
        first = on.snapshot.terms("m", "r")
        assert on.snapshot.terms("m", "r") is first
        assert first.route is on.snapshot.routes["r"]
        changed = replace(on.snapshot, routes={"r": route(max_rounds=3)})
        assert changed.terms("m", "r").max_rounds == 3


async def test_routes_that_hooks_invent_fill_no_memory() -> None:
    async with stage(ScriptedBackend()) as on:
        kept = len(on.snapshot._terms)
        assert on.snapshot.terms("m", "made up").route is None
        assert len(on.snapshot._terms) == kept


async def test_the_way_of_a_name_is_found_once_and_that_of_a_wildcard_by_what_was_asked_for() -> None:
    async with stage(ScriptedBackend()) as on:
        config = GatewayConfig.model_validate(
            {
                "backends": {"b1": {"provider": "demo"}},
                "models": {"m": {"backends": ["b1"]}, "any/*": {"backends": ["b1"]}},
                "aliases": {"fast": "any/small"},
                "router": {"default": "m"},
            }
        )
        pools = {"m": on.snapshot.pools["m"], "any/*": on.snapshot.pools["m"]}
        version = replace(on.snapshot, config=config, pools=pools, names=ModelNames(config.models, config.aliases))

        def way(model: str, asked: str = "auto", to: str | None = "r") -> Any:
            return version.way(Decision(to, model, "explicit", "1"), asked)

        assert way("m") is way("m")
        assert way("m") is not way("m", to=None)
        assert way("m")[0] == Meant("m")
        assert way("m")[1] is version.terms("m", "r")
        assert [way("any/*", f"any/{name}")[0].wanted for name in ("a", "b")] == ["a", "b"]
        assert way("any/c")[0] == way("fast", "any/a")[0]._replace(wanted="c") == Meant("any/*", "c")
        assert way("m", to="made up")[1].route is None
        assert way("any/*") is way("gone") is None
        assert sorted(version._ways, key=str) == [("m", "r"), ("m", None)]
