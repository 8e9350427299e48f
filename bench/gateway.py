"""The gateway as it is measured: its configuration, routes and plugin, written to a directory of their own.

Routing is on with 1,000 keyword rules, a key is required, traces go to SQLite, the access log is off.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from bench.request import KEY

RULES: Final = 1000
_RULES_PER_ROUTE: Final = 20

# A word in the prompt chooses the backend by a rule, as prompts do; without one the default model answers.
LANES: Final = {
    "lanelong": "long",
    "lanepaced": "paced",
    "lanesteady": "steady",
    "laneslow": "slow",
    "lanecompatible": "compatible",
    "lanetool": "tool",
    "lanewrite": "write",
}
# What each of these models calls.
TOOLS: Final = {"tool": ["noop"], "write": ["noop_write"]}

_PLUGIN: Final = '''"""Tools that do nothing, so that what is measured is the round around them."""

from gateway.tools import tool


@tool(name="noop")
async def noop(text: str) -> str:
    """Give back the text.

    text: any text
    """
    return text


@tool(name="noop_write", writes=True)
async def noop_write(text: str) -> str:
    """Give back the text, as if that changed something.

    text: any text
    """
    return text


def register(registry):
    registry.add(noop, noop_write)
'''


# Something for meaning to decide by: texts that have nothing to do with the prompt.
_MEANT: Final = {
    "refunds": ["I want my money back", "please refund my order", "the parcel came broken, pay me back"],
    "weather": ["will it rain tomorrow", "how warm is it in Lisbon", "do I need an umbrella today"],
    "travel": ["book me a flight to Rome", "which train goes to Paris", "find a hotel near the station"],
    "cooking": ["how long do I boil an egg", "a recipe for tomato soup", "what can I cook with rice and beans"],
}


def write(
    place: Path, mock_url: str, redis: str | None = None, *, semantic: bool = False, traces: bool = True
) -> tuple[Path, Path]:
    """Write everything below `place`; answers the configuration file and the routes folder.

    With `redis`, a server's URL, its key is limited in every way there is, by counters in that server. With `semantic`, meaning
    decides where no rule does. Without `traces` none is kept.
    """
    plugins = place / "plugins"
    plugins.mkdir()
    (plugins / "noop.py").write_text(_PLUGIN)
    routes = place / "routes"
    routes.mkdir()
    for number in range(RULES // _RULES_PER_ROUTE):
        first = number * _RULES_PER_ROUTE
        keywords = [f"keyword number {i}" for i in range(first, first + _RULES_PER_ROUTE)]
        _write(routes / f"rules-{number}.yaml", {"route": f"rules-{number}", "model": "mock", "keywords": keywords})
    for word, model in LANES.items():
        route: dict[str, Any] = {"route": word, "model": model, "keywords": [word], "priority": 10}
        _write(routes / f"{word}.yaml", route | ({"tools": TOOLS[model]} if model in TOOLS else {}))
    for name, utterances in _MEANT.items() if semantic else ():
        _write(routes / f"{name}.yaml", {"route": name, "model": "mock", "utterances": utterances})
    config = place / "gateway.yaml"
    _write(config, _config(place, mock_url, redis, semantic=semantic, traces=traces))
    return config, routes


def serving(config: Path, routes: Path) -> list[str]:
    """The program's module and its arguments, to serve what `write` wrote."""
    return ["gateway", "serve", "--config", str(config), "--routes", str(routes), "--host", "127.0.0.1"]


def _config(place: Path, mock_url: str, redis: str | None, *, semantic: bool, traces: bool) -> dict[str, Any]:
    def backend(path: str, dialect: str) -> dict[str, Any]:
        url = f"{mock_url}{path}"
        known = {"provider": "openai", "base_url": url, "model": "mock-model", "api_key": "none", "dialect": dialect}
        return known | ({"price": {"input_per_mtok": 1, "output_per_mtok": 2}} if redis else {})

    key: dict[str, Any] = {"key": KEY}
    if redis:
        much = 1_000_000_000
        key["limits"] = {"requests_per_min": much, "tokens_per_min": much, "concurrent_turns": 100_000}
        key["budgets"] = {"month": much}
    return {
        "storage": {"database": f"sqlite:///{place / 'traces.db'}", "redis": redis},
        "backends": {
            "mock": backend("/v1", "openai"),
            "long": backend("/long/v1", "openai"),
            "paced": backend("/paced/v1", "openai"),
            "steady": backend("/steady/v1", "openai"),
            "slow": backend("/slow/v1", "openai"),
            "compatible": backend("/v1", "compatible"),
            "tool": backend("/tools/v1", "openai"),
            "write": backend("/writes/v1", "openai"),
        },
        "models": {name: {"backends": [name]} for name in ("mock", *LANES.values())},
        # Without utterances there is nothing for an encoder to do; switched off, none is loaded either.
        # What comes again is to be remembered for as long as anybody measures.
        "router": {"model": "auto", "default": "mock", "semantic": {"enabled": semantic, "cache_ttl_s": 86_400}},
        "tools": {"plugins": [str(place / "plugins")], "offer": "routed"},
        "keys": {"auth": "required", "static": {"bench": key}},
        "observe": {
            "log": {"format": "json", "level": "warning", "requests": False},
            "traces": {"sample": float(traces)},
        },
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    """JSON is YAML, and needs no library to be written."""
    path.write_text(json.dumps(value, indent=2) + "\n")
