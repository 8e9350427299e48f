"""Metrics, as a subscriber of finished traces.

Knows the metrics' names, and that every label value comes from the configuration or a fixed list: whatever clients or
models invent is `other`. Does not know HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, filterfalse, repeat
from operator import attrgetter, is_, is_not, itemgetter, sub
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import Gauge, disable_created_metrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.config.versions import Version
from gateway.observe.encoding import LAST
from gateway.observe.events import Recorder
from gateway.observe.tally import Count, Counter, Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OTHER: Final = "other"
NONE: Final = "-"

_STRATEGIES: Final = frozenset({"rule", "semantic", "default", "explicit", "sticky"})
# As `gateway/backends/retry.py` names failures.
_OUTCOMES: Final = frozenset(
    {
        "answered",
        "refused",
        "too_long",
        "denied",
        "not_found",
        "limited",
        "queue_full",
        "timeout",
        "broken",
        "unavailable",
    }
)
_ENDPOINTS: Final = frozenset(
    {
        "/v1/chat/completions",
        "/v1/route",
        "/v1/models",
        "/v1/traces",
        "/v1/reload",
        "/v1/tools",
        "/v1/config/rollback",
        "/v1/effects",
    }
)
_GUARDS: Final = frozenset(
    {"name", "arguments", "cache", "limit", "breaker", "retry", "timeout", "size", "extract", "repeat", "approval"}
)
_GUARD_DECISIONS: Final = frozenset(
    {
        "refused",
        "salvaged",
        "escalated",
        "hit",
        "kept",
        "waited",
        "opened",
        "again",
        "expired",
        "shortened",
        "condensed",
        "failed",
        "told",
    }
)
# Traces of what was done outside of any turn.
_NO_TURNS: Final = frozenset({"approval.executed", "compensation.ended"})
_EFFECT_STATUSES: Final = frozenset({"done", "failed", "unknown"})
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_OVERHEAD_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
_ROUNDS: Final = (1, 2, 3, 4, 5, 8, 12, 20, 50, 100)


# What a trace's last event says of a turn: by what turns are told apart, and what is measured of each; and what
# `decision.made` says.
_LABELS: Final = ("model", "route", "status", "stream")
_MEASURED: Final = (
    "seconds",
    "upstream_s",
    "tool_s",
    "first_token_s",
    "prompt_tokens",
    "completion_tokens",
    "rounds",
)
_DECIDED: Final = ("route", "strategy", "cached")
# What is counted of nearly all turns.
_PLAIN: Final = ["decision.made", "round.answered"]
# Label values that are remembered, and turns of the same labels that wait to be counted.
_MOST_KEPT: Final = 4096
_MOST_ALIKE: Final = 64
# Shapes of traces that are remembered, and the events of the longest.
_MOST_SHAPES: Final = 256
_LONGEST_SHAPE: Final = 64

_name_of, _data_of = attrgetter("type"), attrgetter("data")
_decided_of, _labels_of, _measured_of = itemgetter(*_DECIDED), itemgetter(*_LABELS), itemgetter(*_MEASURED)
_is_none = partial(is_, None)
# `_OR_0(value, value)` is the value, or 0.0 for None.
_OR_0: Final = {None: 0.0}.get


class BackendStanding(NamedTuple):
    """How one backend stands: `open` 0, 0.5 (half-open) or 1; `first_token_s` None where nobody knows."""

    open: float
    busy: int
    waiting: int
    first_token_s: float | None


class Metrics:
    """Everything `/metrics` shows. Each gateway has its own registry, so two can live in one process.

    A finished trace costs some ten microseconds: label values are looked up once and then kept.
    """

    def __init__(
        self,
        turns: Callable[[], Mapping[str, int]] = dict,
        backends: Callable[[], Mapping[str, BackendStanding]] = dict,
    ) -> None:
        """Make the metrics. Both are asked at each scrape.

        Args:
            turns: how many turns are in which state.
            backends: how each backend stands.
        """
        # Half of all series would say when each was first counted, and nobody draws that.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "hermes_requests_total",
            "Requests that were answered, refused or cancelled.",
            ("endpoint", "model", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "hermes_request_seconds",
            "Seconds from the request to the end of its answer.",
            ("model",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._first_token = Histogram(
            "hermes_first_token_seconds",
            "Seconds from asking the backend to the first piece of a streamed answer.",
            ("model",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._overhead = Histogram(
            "hermes_overhead_seconds",
            "Seconds of a request that neither an upstream nor a tool took.",
            buckets=_OVERHEAD_SECONDS,
            registry=registry,
        ).labels()
        self._tokens = Counter("hermes_tokens_total", "Tokens.", ("direction", "model"), registry=registry)
        self._decisions = Counter(
            "hermes_decisions_total", "Decisions of the router.", ("route", "strategy"), registry=registry
        )
        self._cache = Counter(
            "hermes_route_cache_total", "Decisions by whether a cache answered.", ("result",), registry=registry
        )
        self._answers = Counter(
            "hermes_answer_cache_total",
            "Turns whose answer may be kept, by whether one was given again.",
            ("result",),
            registry=registry,
        )
        self._attempts_failed = Counter(
            "hermes_attempts_failed_total", "Calls to a backend that failed.", ("backend",), registry=registry
        )
        self._attempts = Counter(
            "hermes_attempts_total",
            "Calls to a backend by how they ended.",
            ("backend", "outcome"),
            registry=registry,
        )
        self._attempt_tokens = Counter(
            "hermes_attempt_tokens_lost_total",
            "Tokens that upstreams counted for calls that failed before they were of use.",
            ("backend",),
            registry=registry,
        )
        self._tool_calls = Counter("hermes_tool_calls_total", "Calls of tools.", ("tool", "outcome"), registry=registry)
        self._tool_seconds = Histogram(
            "hermes_tool_seconds", "Seconds that a tool call took.", ("tool",), buckets=_SECONDS, registry=registry
        )
        self._tool_guards = Counter(
            "hermes_tool_guards_total",
            "What the guards around tool calls decided.",
            ("tool", "guard", "decision"),
            registry=registry,
        )
        self._effects = Counter(
            "hermes_effects_total",
            "Effects of writing tools, by how they ended.",
            ("tool", "status"),
            registry=registry,
        )
        self._compensations = Counter(
            "hermes_compensations_total",
            "Effects that were undone, or could not be, by the tool that undoes.",
            ("tool", "status"),
            registry=registry,
        )
        self._approvals = Counter(
            "hermes_approvals_total",
            "Calls that a human had to approve: asked for, and executed.",
            ("tool", "what"),
            registry=registry,
        )
        self._rounds = Histogram(
            "hermes_turn_rounds", "Model calls per turn.", buckets=_ROUNDS, registry=registry
        ).labels()
        self._info = Gauge(
            "hermes_config_info", "The active version; always 1.", ("version", "generation"), registry=registry
        )
        self._scraped = _Scraped(turns, backends)
        registry.register(self._scraped)
        self._known_models: frozenset[str] = frozenset()
        self._known_routes: frozenset[str] = frozenset()
        self._known_tools: frozenset[str] = frozenset()
        self._known_backends: frozenset[str] = frozenset()
        self._children: dict[tuple[Any, ...], Any] = {}
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._alike: dict[tuple[Any, ...], _Alike] = {}
        self._counting: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "tool.finished": self._tool,
            "guard.decided": self._guard,
            "effect.finished": self._effect,
            "effect.unknown": self._effect,
            "approval.requested": lambda data: self._human("requested", data),
            "approval.executed": lambda data: self._human("executed", data),
            "compensation.finished": self._compensated,
            "decision.made": self._decision,
            "cache.asked": lambda data: self._answers.labels("hit" if data.get("hit") else "miss").inc(),
            "cache.failed": lambda _: self._answers.labels("failed").inc(),
            "attempt.failed": self._attempt_failed,
            "round.answered": lambda data: self._attempt_ended(data, "answered"),
        }

    def configure(
        self,
        version: Version,
        *,
        models: Collection[str],
        routes: Collection[str],
        tools: Collection[str],
        backends: Collection[str],
    ) -> None:
        """Take the names that may be label values from now on, and the active version."""
        self._fold()
        self._known_models = frozenset(models)
        self._known_routes = frozenset(routes)
        self._known_tools = frozenset(tools)
        self._known_backends = frozenset(backends)
        self._children = {}
        self._info.clear()
        self._info.labels(str(version), str(version.generation)).set(1)

    def count_traces_dropped(self, read: Callable[[], int]) -> None:
        """Where the count of lost traces is read at each scrape."""
        self._scraped.counters["hermes_traces_dropped_total"] = ("Traces that could not be kept.", read)

    def count_reload_failures(self, read: Callable[[], int]) -> None:
        """Where the count of refused reloads is read at each scrape."""
        self._scraped.counters["hermes_reload_failures_total"] = ("Reloads that were refused.", read)

    def show_config(
        self,
        generation: Callable[[], float],
        age_s: Callable[[], float],
        replicas: Callable[[], float],
        stale: Callable[[], float],
    ) -> None:
        """Where the state of the active version is read at each scrape."""
        self._scraped.gauges |= {
            "hermes_config_generation": ("The generation that serves here.", generation),
            "hermes_config_age_seconds": ("Seconds since it took over here.", age_s),
            "hermes_config_replicas": ("Replicas that hold a lease.", replicas),
            "hermes_config_stale": ("1 where this replica may be behind the others.", stale),
        }

    def show_calls(
        self, threads: Callable[[], float], abandoned: Callable[[], float], left_behind: Callable[[], float]
    ) -> None:
        """Where the standing of tool calls is read at each scrape."""
        self._scraped.gauges |= {
            "hermes_tool_threads": ("Plain functions that run in threads and that somebody waits for.", threads),
            "hermes_tool_threads_abandoned": ("Those that still run though nobody waits any more.", abandoned),
            "hermes_tool_calls_left_behind": ("Calls that ignore that they were cancelled.", left_behind),
        }

    def show_servers(self, up: Callable[[], Mapping[str, bool]], refused: Callable[[], Mapping[str, int]]) -> None:
        """Where the state of MCP servers is read at each scrape, by their configured names."""
        self._scraped.by_server |= {
            "hermes_mcp_server_up": ("1 where an MCP server can be reached.", up),
            "hermes_mcp_tools_refused": ("Tools that differ from the lock of their pinned MCP server.", refused),
        }

    def render(self) -> bytes:
        """Prometheus' text format."""
        self._fold()
        # An HTTP server comes with it, which nobody needs who is not scraped.
        from prometheus_client.exposition import generate_latest

        return generate_latest(self.registry)

    def finished(self, trace: Recorder) -> None:
        """Count one finished trace."""
        events = trace.events
        # Turns come in few shapes: which of their events are counted is looked up once for each shape.
        names = tuple(map(_name_of, events))
        shape = self._shapes.get(names) or self._shape(names)
        plain = shape.plain
        if plain is None:
            for position, count in shape.counted:
                count(events[position].data)
            if shape.is_turn:
                last = events[-1].data
                self._turns(events[0].data.get("endpoint", NONE), last, [tuple(map(last.get, _MEASURED))])
            return
        first, made, by, last = map(_data_of, plain(events))
        try:
            alike = self._alike[first["endpoint"], by["backend"], _decided_of(made), _labels_of(last)]
            measured = alike.measured
            measured.append(_measured_of(last))
        except KeyError:
            alike = self._first_alike(first.get("endpoint", NONE), made, by, last)
            measured = alike.measured
        if len(measured) >= _MOST_ALIKE:
            self._count_alike(alike)

    def _first_alike(
        self, endpoint: str, made: Mapping[str, Any], by: Mapping[str, Any], last: Mapping[str, Any]
    ) -> _Alike:
        """Keep the first of turns that are to be counted together, or one of which less is said."""
        if len(self._alike) >= _MOST_KEPT:
            self._fold()
        labels = endpoint, by.get("backend"), tuple(map(made.get, _DECIDED)), tuple(map(last.get, _LABELS))
        alike = self._alike.setdefault(labels, _Alike(endpoint, made, by, last, []))
        alike.measured.append(tuple(map(last.get, _MEASURED)))
        return alike

    def _shape(self, names: tuple[str, ...]) -> _Shape:
        counted = tuple((place, self._counting[name]) for place, name in enumerate(names) if name in self._counting)
        found = _Shape(counted, bool(names) and names[-1] in LAST and names[-1] not in _NO_TURNS)
        if names[-1:] == ("turn.finished",) and [names[place] for place, _ in counted] == _PLAIN:
            found = found._replace(plain=itemgetter(0, counted[0][0], counted[1][0], -1))
        if len(names) <= _LONGEST_SHAPE:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[names] = found
        return found

    def _fold(self) -> None:
        """Count what waits to be counted."""
        for alike in self._alike.values():
            self._count_alike(alike)
        self._alike.clear()

    def _count_alike(self, alike: _Alike) -> None:
        times = len(alike.measured)
        if times:
            self._decision(alike.made, times)
            self._attempt_ended(alike.by, "answered", times)
            self._turns(alike.endpoint, alike.last, alike.measured)
            alike.measured.clear()

    def _human(self, what: str, data: Mapping[str, Any]) -> None:
        """What waited for a human."""
        self._approvals.labels(_one_of(data.get("name"), self._known_tools), what).inc()

    def _compensated(self, data: Mapping[str, Any]) -> None:
        tool = _one_of(data.get("tool"), self._known_tools)
        self._compensations.labels(tool, _one_of(data.get("status"), _EFFECT_STATUSES)).inc()

    def _turns(self, endpoint: str, last: Mapping[str, Any], measured: Sequence[tuple[Any, ...]]) -> None:
        """Count turns that differ from one whose end was `last` by what was measured: without a step for each of them."""
        model, route, status, stream = map(last.get, _LABELS)
        seconds, upstream_s, tool_s, first_token_s, prompt, completion, rounds = zip(*measured, strict=True)
        key = (endpoint, model, route, status)
        requests, seconds_of, first_token_of, prompt_of, completion_of = self._children.get(key) or self._series(*key)
        requests.inc(len(measured))
        prompt_of.inc(sum(filter(None, prompt)))
        completion_of.inc(sum(filter(None, completion)))
        seconds_of.add(filterfalse(_is_none, seconds))
        self._rounds.add(filter(None, rounds))
        if stream:
            first_token_of.add(filterfalse(_is_none, first_token_s))
        if status == 200:
            took, upstream, tools = (map(_OR_0, each, each) for each in (seconds, upstream_s, tool_s))
            overhead = map(max, map(sub, map(sub, took, upstream), tools), repeat(0.0))
            self._overhead.add(compress(overhead, map(is_not, seconds, repeat(None))))

    def _series(self, endpoint: str, model: Any, route: Any, status: Any) -> tuple[Any, ...]:
        known = _one_of(model, self._known_models)
        found = (
            self._requests.labels(
                _one_of(endpoint, _ENDPOINTS),
                known,
                _one_of(route, self._known_routes),
                _status(status),
            ),
            self._seconds.labels(known),
            self._first_token.labels(known),
            self._tokens.labels("prompt", known),
            self._tokens.labels("completion", known),
        )
        self._keep((endpoint, model, route, status), found)
        return found

    def _decision(self, data: Mapping[str, Any], times: int = 1) -> None:
        key = route, strategy, cached = tuple(map(data.get, _DECIDED))
        found = self._children.get(key)
        if found is None:
            asked = strategy in {"semantic", "default"}
            found = (
                self._decisions.labels(_one_of(route, self._known_routes), _one_of(strategy, _STRATEGIES)),
                self._cache.labels("hit" if cached else "miss") if asked else Count(),
            )
            self._keep(key, found)
        made, answered = found
        made.inc(times)
        answered.inc(times)

    def _tool(self, data: Mapping[str, Any]) -> None:
        name, ok = data.get("name"), bool(data.get("ok"))
        key = (self._tool_calls, name, ok)
        found = self._children.get(key)
        if found is None:
            known = _one_of(name, self._known_tools)
            found = (self._tool_calls.labels(known, "ok" if ok else "error"), self._tool_seconds.labels(known))
            self._keep(key, found)
        found[0].inc()
        if (seconds := data.get("seconds")) is not None:
            found[1].observe(seconds)

    def _guard(self, data: Mapping[str, Any]) -> None:
        known = _one_of(data.get("name"), self._known_tools)
        guard, decision = _one_of(data.get("guard"), _GUARDS), _one_of(data.get("decision"), _GUARD_DECISIONS)
        self._tool_guards.labels(known, guard, decision).inc()

    def _effect(self, data: Mapping[str, Any]) -> None:
        status = data.get("status", "unknown")
        known = _one_of(data.get("tool"), self._known_tools)
        self._effects.labels(known, _one_of(status, _EFFECT_STATUSES)).inc()

    def _attempt_ended(self, data: Mapping[str, Any], outcome: Any, times: int = 1) -> None:
        key = (data.get("backend"), outcome)
        found = self._children.get(key)
        if found is None:
            known = _one_of(key[0], self._known_backends)
            found = self._attempts.labels(known, _one_of(outcome, _OUTCOMES))
            self._keep(key, found)
        found.inc(times)

    def _attempt_failed(self, data: Mapping[str, Any]) -> None:
        self._attempt_ended(data, data.get("outcome"))
        known = _one_of(data.get("backend"), self._known_backends)
        self._attempts_failed.labels(known).inc()
        lost = (data.get("prompt_tokens") or 0) + (data.get("completion_tokens") or 0)
        if lost:
            self._attempt_tokens.labels(known).inc(lost)

    def _keep(self, key: tuple[Any, ...], found: Any) -> None:
        # Names that clients invent would fill it; the series themselves are bounded by `_one_of`.
        if len(self._children) >= _MOST_KEPT:
            self._children = {}
        self._children[key] = found


class _Shape(NamedTuple):
    """What is counted of traces whose events have the same names: which and how, and whether they are turns.

    `plain` takes, of turns that were answered in one round, the first event, the decision, the answer and the last event.
    """

    counted: tuple[tuple[int, Callable[[Mapping[str, Any]], None]], ...]
    is_turn: bool
    plain: itemgetter[Any] | None = None


class _Alike(NamedTuple):
    """Plain turns that are counted alike: what is said of the first of them, and what was `measured` of all."""

    endpoint: str
    made: Mapping[str, Any]
    by: Mapping[str, Any]
    last: Mapping[str, Any]
    measured: list[tuple[Any, ...]]


class _Scraped(Collector):
    """What is read when somebody looks, and costs nothing otherwise."""

    def __init__(
        self, turns: Callable[[], Mapping[str, int]], backends: Callable[[], Mapping[str, BackendStanding]]
    ) -> None:
        self.counters: dict[str, tuple[str, Callable[[], int]]] = {}
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self.by_server: dict[str, tuple[str, Callable[[], Mapping[str, int]]]] = {}
        self._turns = turns
        self._backends = backends

    def collect(self) -> Iterator[Metric]:
        states = GaugeMetricFamily("hermes_turns", "Turns under way, by state.", labels=("state",))
        for state, count in self._turns().items():
            states.add_metric((state,), count)
        yield states
        yield from self._standing()
        for name, (text, read) in self.counters.items():
            yield CounterMetricFamily(name, text, value=read())
        for name, (text, read_figure) in self.gauges.items():
            yield GaugeMetricFamily(name, text, value=read_figure())
        for name, (text, read_servers) in self.by_server.items():
            servers = GaugeMetricFamily(name, text, labels=("server",))
            for server, figure in read_servers().items():
                servers.add_metric((server,), figure)
            yield servers

    def _standing(self) -> Iterator[Metric]:
        texts = {
            "hermes_backend_open": "1 where a backend's breaker lets nothing through, 0.5 where it lets a probe through.",
            "hermes_backend_busy": "Calls under way at a backend.",
            "hermes_backend_waiting": "Calls that wait for a place at a backend.",
            "hermes_backend_first_token_seconds": "Moving average of seconds to the first content of a stream.",
        }
        families = [GaugeMetricFamily(name, text, labels=("backend",)) for name, text in texts.items()]
        for name, standing in self._backends().items():
            for family, value in zip(families, standing, strict=True):
                if value is not None:
                    family.add_metric((name,), value)
        yield from families
        yield GaugeMetricFamily("hermes_tasks", "Tasks of the process's event loop.", value=_tasks())


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0  # asked from outside the loop


def _one_of(value: Any, known: frozenset[str]) -> str:
    if value is None or value == NONE:
        return NONE
    return value if isinstance(value, str) and value in known else OTHER


def _status(status: Any) -> str:
    return str(status) if isinstance(status, int) and 100 <= status < 600 else OTHER
