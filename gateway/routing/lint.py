"""What is well-formed in rules and utterances and probably not meant: words that can never decide, and the same said twice.

Pure, and quick for tens of thousands of keywords: one automaton tells which keywords stand in which others. Knows routes
as they are written; does not know files and lines, encoders, or what a server answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.config.models import RouteConfig, When
from gateway.routing.facts import Facts
from gateway.routing.normalise import normalise
from gateway.routing.rules import RuleTable, Use

Path = tuple[str | int, ...]

# Of the routes before one that share a keyword with it, so many are looked at: thousands would cost minutes.
_MOST_COMPARED = 50
NONE_PATH: Path = ("router", "semantic", "none")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at.

    Attributes:
        route: whose file it stands in; None for the gateway's own.
        path: the place within that file.
        message: the words for it.
        see: route and place of what it collides with, or None.
    """

    route: str | None
    path: Path
    message: str
    see: tuple[str, Path] | None = None


def lint(
    routes: Sequence[RouteConfig],
    none: Sequence[str] = (),
    *,
    router_model: str = "auto",
    keys: Sequence[frozenset[str]] = (),
) -> list[Finding]:
    """Look at routes without mistakes.

    Args:
        routes: in any order.
        none: utterances that belong to no route.
        router_model: the name that asks the router.
        keys: for each key that may not use every route, those it may use.
    """
    table = RuleTable(routes)
    ordered = sorted(routes, key=lambda route: table.rank[route.route])
    found: list[Finding] = []
    shadows = _Shadows(table, ordered, keys)
    for route in ordered:
        found += _rule_findings(route, shadows)
        found += _model_findings(route, router_model)
    return found + list(_utterance_findings(ordered, none, table))


@dataclass(frozen=True, slots=True)
class _Uses:
    """The keywords that stand in one text, those of the three lists apart; `keywords` in the order of ranks."""

    keywords: tuple[Use, ...]
    all_of: tuple[Use, ...]
    none_of: Mapping[int, Use]
    own: Mapping[int, Use]


class _Shadows:
    """Which rules take every text that another rule could win."""

    def __init__(self, table: RuleTable, ordered: Sequence[RouteConfig], keys: Sequence[frozenset[str]]) -> None:
        self.table = table
        self.ordered = ordered
        self._keys = keys
        self._cleared: dict[tuple[int, int], bool] = {}
        self._within: dict[str, _Uses] = {}
        self._patterns: dict[str, list[int]] = {}
        self._conditions = [rank for rank, route in enumerate(ordered) if route.match == "when" and not route.all_of][
            :_MOST_COMPARED
        ]
        for rank, route in enumerate(ordered):
            for expression in route.patterns:
                self._patterns.setdefault(expression, []).append(rank)

    def by_condition(self, rank: int) -> int | None:
        """The first rule that asks for conditions alone and holds wherever this one does."""
        return next((first for first in self._conditions if first < rank and self._always_applies(first, rank)), None)

    def by_pattern(self, rank: int, expression: str) -> int | None:
        """The first rule before this one with the same pattern."""
        for first in self._patterns[expression][:_MOST_COMPARED]:
            if first < rank and not self.ordered[first].all_of and self._always_applies(first, rank):
                return first
        return None

    def within(self, word: str) -> _Uses:
        """What stands in a normalised text."""
        uses = self._within.get(word)
        if uses is None:
            found = sorted(self.table.within(word), key=lambda use: use.rank)
            keywords = tuple(use for use in found if use.kind == "keyword")
            uses = self._within[word] = _Uses(
                keywords,
                tuple(use for use in found if use.kind == "all_of"),
                {use.rank: use for use in found if use.kind == "none_of"},
                {use.rank: use for use in reversed(keywords) if normalise(use.keyword) != word},
            )
        return uses

    def by_keyword(self, rank: int, uses: _Uses, asked: Mapping[int, int]) -> Use | None:
        """The keyword of a rule before this one that stands in every text with these uses in it."""
        bits = dict(asked)
        for use in uses.all_of:
            bits[use.rank] = bits.get(use.rank, 0) | use.bit
        for use in self._earlier(rank, uses):
            wanted = self.table.rules[use.rank].all_of
            if bits.get(use.rank, 0) & wanted == wanted and self._always_applies(use.rank, rank):
                return use
        return None

    def tied(self, rank: int, word: str, uses: _Uses) -> Use | None:
        """The same keyword in a rule that nothing but its name puts before this one."""
        route = self.ordered[rank]
        for use in self._earlier(rank, uses):
            other = self.ordered[use.rank]
            alike = (other.priority, other.when) == (route.priority, route.when)
            if alike and set(other.all_of) == set(route.all_of) and normalise(use.keyword) == word:
                return use
        return None

    def _earlier(self, rank: int, uses: _Uses) -> Sequence[Use]:
        end = bisect_left(uses.keywords, rank, key=lambda use: use.rank)
        return uses.keywords[max(0, end - _MOST_COMPARED // 2) : end] + uses.keywords[: min(end, _MOST_COMPARED // 2)]

    def _always_applies(self, first: int, second: int) -> bool:
        """Whether nothing bars the first rule where nothing bars the second."""
        known = self._cleared.get((first, second))
        if known is None:
            one, other = self.ordered[first], self.ordered[second]
            known = (
                _implied(one.when, other.when)
                and all(one.route in allowed or other.route not in allowed for allowed in self._keys)
                and all(self._bars(second, word) for word in one.none_of)
            )
            self._cleared[first, second] = known
        return known

    def _bars(self, rank: int, word: str) -> bool:
        return rank in self.within(normalise(word)).none_of


def _implied(wanted: When | None, given: When | None) -> bool:
    """Whether `wanted` holds for all facts for which `given` does."""
    if wanted is None:
        return True
    given = given or When()
    for some, others in (
        (wanted.tags, given.tags),
        (wanted.language, given.language),
        (wanted.models, given.models),
    ):
        if some and not (others and set(others) <= set(some)):
            return False
    if wanted.has_tools not in {None, given.has_tools} or wanted.has_image not in {None, given.has_image}:
        return False
    if wanted.min_tokens and (given.min_tokens or 0) < wanted.min_tokens:
        return False
    return wanted.max_tokens is None or (given.max_tokens is not None and given.max_tokens <= wanted.max_tokens)


def _rule_findings(route: RouteConfig, shadows: _Shadows) -> Iterator[Finding]:
    rank = shadows.table.rank[route.route]
    asked: dict[int, int] = {}
    for index, word in enumerate(route.all_of):
        uses = shadows.within(normalise(word))
        for use in uses.all_of:
            asked[use.rank] = asked.get(use.rank, 0) | use.bit
        if (barred := uses.none_of.get(rank)) is not None:
            message = f"must stand in the text, and `none_of` {barred.keyword!r} bars it: the rule can never win"
            yield Finding(route.route, ("all_of", index), f"{word!r} {message}")
            return
    dead: list[str] = []
    seen: set[str] = set()
    for index, keyword in enumerate(route.keywords):
        word, path = normalise(keyword), ("keywords", index)
        if word in seen:
            yield Finding(route.route, path, f"keyword {keyword!r} stands here twice")
            continue
        seen.add(word)
        yield from _keyword_findings(route, path, keyword, shadows, asked, dead)
    for index, expression in enumerate(route.patterns):
        if (first := shadows.by_pattern(rank, expression)) is not None:
            other = shadows.ordered[first]
            dead.append(other.route)
            message = f"pattern {expression!r} stands in route `{other.route}` too, which {_before(other, route)}"
            see = other.route, ("patterns", other.patterns.index(expression))
            yield Finding(route.route, ("patterns", index), message, see)
    yield from _never_wins(route, dead, len(seen) + len(route.patterns), shadows)


def _keyword_findings(
    route: RouteConfig, path: Path, keyword: str, shadows: _Shadows, asked: dict[int, int], dead: list[str]
) -> Iterator[Finding]:
    """What is said of one keyword; `dead` gets the route that takes all its texts, or "" where its own bars them."""
    rank, word = shadows.table.rank[route.route], normalise(keyword)
    uses = shadows.within(word)
    if (barred := uses.none_of.get(rank)) is not None:
        dead.append("")
        message = f"keyword {keyword!r} can never win: `none_of` {barred.keyword!r} bars every text with it"
        yield Finding(route.route, path, message)
    elif (taken := shadows.by_keyword(rank, uses, asked)) is not None:
        dead.append(shadows.ordered[taken.rank].route)
        yield _taken(route, path, keyword, taken, shadows)
    elif (tied := shadows.tied(rank, word, uses)) is not None:
        yield _taken(route, path, keyword, tied, shadows)
    elif (part := uses.own.get(rank)) is not None:
        message = f"keyword {keyword!r} adds nothing: keyword {part.keyword!r} is found in every text with it"
        yield Finding(route.route, path, message)


def _never_wins(route: RouteConfig, dead: Sequence[str], parts: int, shadows: _Shadows) -> Iterator[Finding]:
    if not parts and route.match is None:
        return
    takes_all = shadows.by_condition(shadows.table.rank[route.route])
    path = next(((key,) for key in ("keywords", "patterns", "when") if key in route.model_fields_set), ("route",))
    if takes_all is not None:
        other = shadows.ordered[takes_all]
        yield Finding(
            route.route,
            path,
            f"the rule can never win: route `{other.route}`, by its conditions alone, takes every text and {_before(other, route)}",
            (other.route, ("match",)),
        )
    elif len(dead) == parts and route.match is None:
        others = sorted({name for name in dead if name})
        by = f"; what it asks for is taken by {', '.join(f'`{name}`' for name in others)}" if others else ""
        yield Finding(route.route, path, f"the rule can never win{by}")


def _taken(route: RouteConfig, path: Path, keyword: str, taken: Use, shadows: _Shadows) -> Finding:
    other = shadows.ordered[taken.rank]
    see = (other.route, ("keywords", other.keywords.index(taken.keyword)))
    if normalise(taken.keyword) == normalise(keyword):
        said = f"keyword {keyword!r} stands in route `{other.route}` too, which {_before(other, route)}"
    else:
        said = (
            f"keyword {keyword!r} can never win: keyword {taken.keyword!r} of route `{other.route}`, which "
            f"{_before(other, route)}, is found in every text with it"
        )
    return Finding(route.route, path, said, see)


def _before(other: RouteConfig, route: RouteConfig) -> str:
    if other.priority == route.priority:
        return "comes first by its name"
    return f"comes first (priority {other.priority} over {route.priority})"


def _model_findings(route: RouteConfig, router_model: str) -> Iterator[Finding]:
    if route.when is None:
        return
    for index, model in enumerate(route.when.models):
        if model != router_model:
            path: Path = ("when", "models", index)
            yield Finding(
                route.route,
                path,
                f"`when.models` never holds for {model!r}: only requests for {router_model!r} (`router.model`) are routed",
            )


def _utterance_findings(ordered: Sequence[RouteConfig], none: Sequence[str], table: RuleTable) -> Iterator[Finding]:
    seen: dict[str, tuple[str, Path]] = {}
    for route in sorted(ordered, key=lambda route: route.route):
        for index, text in enumerate(route.utterances):
            word = normalise(text)
            path: Path = ("utterances", index)
            if not word:
                yield Finding(route.route, path, f"utterance {text!r} holds nothing that can be compared")
            elif (first := seen.setdefault(word, (route.route, path))) != (route.route, path):
                where = "here twice" if first[0] == route.route else f"in route `{first[0]}` too"
                yield Finding(route.route, path, f"utterance {text!r} stands {where}", first)
            elif table.rank[route.route] in table.scan(word).barred:
                yield Finding(route.route, path, f"utterance {text!r} is barred by `none_of` of its own route")
            elif (winner := _winner(word, ordered, table)) is not None and winner[0] != route.route:
                yield Finding(route.route, path, f"utterance {text!r} goes to route `{winner[0]}`, by its {winner[1]}")
    yield from _none_findings(none, seen, ordered, table)


def _none_findings(
    none: Sequence[str], utterances: Mapping[str, tuple[str, Path]], ordered: Sequence[RouteConfig], table: RuleTable
) -> Iterator[Finding]:
    if none and not utterances:
        yield Finding(None, NONE_PATH, "`router.semantic.none` does nothing: no route has utterances")
        return
    seen: set[str] = set()
    for index, text in enumerate(none):
        word, path = normalise(text), (*NONE_PATH, index)
        if not word:
            yield Finding(None, path, f"{text!r} holds nothing that can be compared")
        elif word in seen:
            yield Finding(None, path, f"{text!r} stands here twice")
        elif (first := utterances.get(word)) is not None:
            yield Finding(None, path, f"{text!r} belongs to no route, and is an utterance of route `{first[0]}`", first)
        elif (winner := _winner(word, ordered, table)) is not None:
            yield Finding(None, path, f"{text!r} goes to route `{winner[0]}`, by its {winner[1]}: rules come first")
        seen.add(word)


def _winner(word: str, ordered: Sequence[RouteConfig], table: RuleTable) -> tuple[str, str] | None:
    """The route that takes this text by rule whatever the facts are, and by what."""
    scan, facts = table.scan(word), Facts(word)
    for rank in table.asked(scan):
        if ordered[rank].when is None and (why := table.why(table.rules[rank], scan, facts)) is not None:
            return ordered[rank].route, why
    return None
