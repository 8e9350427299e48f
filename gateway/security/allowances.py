"""Who is counted under which name, and by which limits: what a turn has to ask of the counters.

Pure. Knows callers, keys, end users, teams, tags, models and routes. Does not count.

| counted | by |
| --- | --- |
| each caller: a key, or an end user of a key; without a key, an address | `limits`, `budgets` |
| a key with all its end users | the key's own |
| a team | `teams.NAME` |
| a tag | `budgets.tags` |
| a model, a route | their `limits` |

All of them count, so the strictest decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from gateway.config.limits import Budgets, Limits
from gateway.config.models import GatewayConfig, RouteConfig
from gateway.security.counters import Slot, Take
from gateway.security.principal import NO_BUDGETS, NO_LIMITS, Principal
from gateway.store.usage_records import NANO

Period = Literal["day", "month", "total"]
_PERIODS: Final[tuple[Period, ...]] = ("day", "month", "total")
# Seconds that a counter of money is remembered which nobody asks: longer than its period matters.
_KEPT_S: Final[Mapping[Period, int]] = {"day": 2 * 86_400, "month": 40 * 86_400, "total": 40 * 86_400}
# A caller's name may be as long as it likes; a counter's may not.
_LONGEST: Final = 96
_CACHED: Final = 4096


class Purse(msgspec.Struct, frozen=True):
    """A budget.

    Attributes:
        scope: `owner`, `key`, `team` or `tag`.
        whose: of that scope.
        limit: billionths of the currency.
        prefix: what its counter's name begins with.
    """

    scope: str
    whose: str
    period: Period
    limit: int

    prefix: str

    @property
    def kept_s(self) -> int:
        """Seconds that its counter is remembered when nobody asks it."""
        return _KEPT_S[self.period]

    def counter(self, today: Today) -> str:
        """The name of its counter today."""
        return self.prefix + today.names[self.period]


class Allowance(msgspec.Struct, frozen=True):
    """Everything that one turn is counted by.

    Attributes:
        requests: one out of each of these buckets.
        tokens: out of these, as many as it takes; `amount` is none yet.
    """

    requests: tuple[Take, ...] = ()
    tokens: tuple[Take, ...] = ()
    slots: tuple[Slot, ...] = ()
    purses: tuple[Purse, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to count by."""
        return bool(self.requests or self.tokens or self.slots or self.purses)


NOTHING: Final = Allowance()


class Today(msgspec.Struct, frozen=True):
    """The day by the configured clock on the wall, as in 2025-01-31.

    Attributes:
        since: when it began, epoch seconds; `until` when it ends.
        names: how counters call the periods that it is in.
    """

    day: str
    since: float
    until: float
    names: Mapping[Period, str]

    def first_day(self, period: Period) -> str | None:
        """The first day of the period that today is in; None for ever."""
        return {"day": self.day, "month": f"{self.day[:7]}-01", "total": None}[period]


class Allowances:
    """The limits and budgets of one version.

    Args:
        config: the gateway's file.
        routes: by name.

    Attributes:
        binds_all: whether turns may be counted by something that is not their key's own.
    """

    def __init__(self, config: GatewayConfig, routes: Mapping[str, RouteConfig]) -> None:
        self._config = config
        self._zone = ZoneInfo(config.budgets.timezone)
        self._today: Today | None = None
        self._models = {name: model.limits for name, model in config.models.items() if model.limits != NO_LIMITS}
        self._routes = {name: route.limits for name, route in routes.items() if route.limits != NO_LIMITS}
        self._teams = {
            name: (team.limits, team.budgets)
            for name, team in config.teams.items()
            if team.limits != NO_LIMITS or team.budgets != NO_BUDGETS
        }
        self._tags = config.budgets.tags
        caller = Limits(**{name: getattr(config.limits, name) for name in Limits.model_fields})
        money = Budgets(**{name: getattr(config.budgets, name) for name in Budgets.model_fields})
        self._caller = (caller, money)
        self.binds_all = bool(self._models or self._routes or self._teams or self._tags) or self._caller != (
            NO_LIMITS,
            NO_BUDGETS,
        )
        self._cache: dict[tuple[object, ...], Allowance] = {}

    def of(self, principal: Principal, tags: frozenset[str], model: str, route: str | None) -> Allowance:
        """What a turn of this caller is counted by that goes to this model by this route."""
        limits, budgets = principal.limits, principal.budgets
        place = (principal.owner, principal.address, principal.team, tags, model, route, limits, budgets)
        found = self._cache.get(place)
        if found is None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            found = self._cache[place] = self._found(principal, tags, model, route)
        return found

    def today(self, now: float) -> Today:
        """The day of this moment."""
        today = self._today
        if today is None or not today.since <= now < today.until:
            local = datetime.fromtimestamp(now, self._zone)
            begin = datetime(local.year, local.month, local.day, tzinfo=self._zone)
            midnight = begin + timedelta(days=1)
            day = local.strftime("%Y-%m-%d")
            names: dict[Period, str] = {"day": day, "month": day[:7], "total": "ever"}
            since, until = begin.astimezone(UTC).timestamp(), midnight.astimezone(UTC).timestamp()
            today = self._today = Today(day, since, until, names)
        return today

    def _found(self, principal: Principal, tags: frozenset[str], model: str, route: str | None) -> Allowance:
        caller = f"address {principal.address}" if principal.address and not principal.user else principal.owner
        limited: list[tuple[str, str, Limits]] = [("caller", caller, self._caller[0])]
        purses = [*_purses("owner", principal.owner, self._caller[1])]
        limited.append(("key", principal.key_id, principal.limits))
        purses += _purses("key", principal.key_id, principal.budgets)
        if principal.team in self._teams:
            limits, budgets = self._teams[principal.team]
            limited.append(("team", principal.team, limits))
            purses += _purses("team", principal.team, budgets)
        for tag in sorted(tags & self._tags.keys()):
            purses += _purses("tag", tag, self._tags[tag])
        if model in self._models:
            limited.append(("model", model, self._models[model]))
        if route is not None and route in self._routes:
            limited.append(("route", route, self._routes[route]))
        named = [(_short(scope, name), limits) for scope, name, limits in limited]
        return Allowance(
            tuple(Take(f"r:{name}", limits.requests_per_min, 1) for name, limits in named if limits.requests_per_min),
            tuple(Take(f"t:{name}", limits.tokens_per_min, 0) for name, limits in named if limits.tokens_per_min),
            tuple(Slot(f"c:{name}", limits.concurrent_turns) for name, limits in named if limits.concurrent_turns),
            tuple(purses),
        )


def _purses(scope: str, whose: str, budgets: Budgets) -> Iterable[Purse]:
    for period in _PERIODS:
        limit = getattr(budgets, period)
        if limit is not None:
            yield Purse(scope, whose, period, round(limit * NANO), f"{_short(scope, whose)}:")


def _short(scope: str, name: str) -> str:
    if len(name) > _LONGEST:
        name = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{scope}:{name}"
