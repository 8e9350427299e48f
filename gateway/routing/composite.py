"""Rules, then meaning, then the default: the router of one version.

Knows the order of the parts and when each is asked. Does not know how keywords are found, how texts become vectors, or
who asks. What only a rule needs is decided without waiting and without numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from gateway.clock import Clock
from gateway.config.models import RouteConfig, RouterConfig
from gateway.errors import ConfigError, Problem
from gateway.routing.cache import DecisionCache, cache_key
from gateway.routing.conditions import UsedFacts
from gateway.routing.decision import Candidate, Decision
from gateway.routing.encoder import Encoder
from gateway.routing.encoders.window import ends_of_text
from gateway.routing.facts import Facts
from gateway.routing.fits import Fits
from gateway.routing.following import follows
from gateway.routing.likeness import Outcome
from gateway.routing.normalise import normalise
from gateway.routing.rules import Rule, RuleTable, Scan
from gateway.routing.semantic import NOT_KEPT, Semantic
from gateway.routing.text import both_ends

# What the turn before a short question may clear up.
_UNDECIDED = frozenset({"below_threshold", "ambiguous"})
_BEFORE_CHARS = 400


class CompositeRouter:
    """Implements `Router` for one version of the routes.

    Attributes:
        version: what every decision of this router names.
        cache: decisions that were made by meaning or by default; its counters feed the metrics.
    """

    def __init__(
        self,
        routes: Sequence[RouteConfig],
        config: RouterConfig,
        version: str,
        encoder: Encoder | None,
        clock: Clock,
        models: Collection[str],
        files: Mapping[str, str] | None = None,
        fits: Fits | None = None,
    ) -> None:
        """Build everything that needs no encoder. `prepare` does the rest.

        Args:
            routes: in any order.
            config: the `router` section.
            version: generation and hash, as answers name it.
            encoder: None, or `semantic.enabled: false`, means that meaning is never asked.
            clock: tells the cache how old its entries are.
            models: names that a decision may name.
            files: file of each route, for problems.
            fits: what earlier versions learnt from the same utterances.

        Raises:
            ConfigError: a pattern, keyword, condition, model or threshold is wrong; it names all of them.
        """
        self.version = version
        self._default = config.default
        self._rules = RuleTable(routes, files)
        semantic = config.semantic
        self.cache = DecisionCache(semantic.cache_size, semantic.cache_ttl_s, clock.monotonic)
        self._semantic = Semantic(routes, semantic, encoder if semantic.enabled else None, files, fits)
        self._facts = UsedFacts(route.when for route in routes)
        problems = self._rules.problems + self._semantic.problems + _missing(routes, config, models, files or {})
        if problems:
            raise ConfigError(tuple(problems))

    @property
    def ready(self) -> bool:
        """Whether meaning can be asked, or never will be: `prepare` is through, well or not, or had nothing to do."""
        return self._semantic.settled

    @property
    def failure(self) -> str | None:
        """Why meaning cannot be asked although it should, or None."""
        return self._semantic.failure

    async def prepare(self) -> None:
        """Load the encoder and read the utterances. Never raises: without them, decisions fall through and say so."""
        await self._semantic.prepare()

    async def close(self) -> None:
        """Stop what still computes. The encoder belongs to the app and stays open."""
        await self._semantic.close()

    async def decide(self, facts: Facts, *, explain: bool = False) -> Decision:
        """Decide. With `explain`, `candidates` and `matched` are filled in and nothing else changes."""
        scan = self._rules.scan(normalise(both_ends(facts.text)))
        won = self._rules.winner(scan, facts)
        asked = scan.text
        if won is not None:
            rule, why = won
            decision = Decision(rule.route, rule.model, "rule", self.version, reason=why)
        else:
            decision, asked = await self._by_meaning(scan, facts)
        return await self._explained(decision, asked, scan, facts) if explain else decision

    async def _by_meaning(self, scan: Scan, facts: Facts) -> tuple[Decision, str]:
        """The decision, and the normalised text it was made about."""
        if not scan.text:
            return self._fallback("no_text"), scan.text
        if not self._semantic.enabled:
            return self._fallback("semantic_disabled"), scan.text
        decision = await self._about(scan.text, scan, facts)
        if decision.route is None and decision.reason in _UNDECIDED and facts.before and follows(scan.text):
            together = normalise(f"{ends_of_text(facts.before, _BEFORE_CHARS)}\n{scan.text}")
            longer = await self._about(together, scan, facts)
            if longer.route is not None:
                return longer, together
        return decision, scan.text

    async def _about(self, text: str, scan: Scan, facts: Facts) -> Decision:
        key = cache_key(self.version, text, self._facts.key(facts))
        if text != scan.text:
            # `none_of` looks at the question alone, and two pairs of texts may be one when joined.
            key = (*key, scan.text)
        kept = self.cache.get(key)
        if kept is not None:
            return kept
        decision = self._decided(await self._semantic.match(text, self._barred(scan, facts)))
        if decision.reason not in NOT_KEPT:
            self.cache.put(key, replace(decision, cached=True))
        return decision

    def _barred(self, scan: Scan, facts: Facts) -> frozenset[str]:
        """Routes whose utterances do not count for this text."""
        rules = (self._rules.rules[self._rules.rank[route]] for route in self._semantic.routes)
        return frozenset(rule.route for rule in rules if self._rules.bars(rule, scan, facts))

    def _decided(self, outcome: Outcome) -> Decision:
        if outcome.route is None:
            return self._fallback(outcome.reason)
        model = self._rules.rules[self._rules.rank[outcome.route]].model
        return Decision(
            outcome.route, model, "semantic", self.version, outcome.score, outcome.margin, reason=outcome.reason
        )

    def _fallback(self, reason: str) -> Decision:
        return Decision(None, self._default, "default", self.version, reason=reason)

    async def _explained(self, decision: Decision, asked: str, scan: Scan, facts: Facts) -> Decision:
        found = self._rules.found(scan, facts.text)
        barred = self._barred(scan, facts)
        outcome = Outcome()
        if asked and self._semantic.enabled:
            outcome = await self._semantic.match(asked, barred, views=True)
        similar = {view.route: view for view in outcome.views}
        candidates: list[Candidate] = []
        for rule in self._rules.rules:
            view = similar.get(rule.route)
            candidates.append(
                Candidate(
                    rule.route,
                    view.score if view else None,
                    view.threshold if view else None,
                    view.margin if view else None,
                    view.nearest if view else None,
                    tuple(found.get(rule.rank, ())),
                    self._verdict(rule, scan, facts, decision, view.verdict if view else "no_match"),
                )
            )
        # Best first: the chosen one, then what rules found, then by likeness.
        candidates.sort(
            key=lambda c: (
                c.verdict != "chosen",
                c.verdict != "lower_priority",
                -(-2 if c.score is None else c.score),
                c.route,
            )
        )
        matched = next((c.matched for c in candidates if decision.strategy == "rule" and c.verdict == "chosen"), ())
        return replace(decision, candidates=tuple(candidates), matched=matched)

    def _verdict(self, rule: Rule, scan: Scan, facts: Facts, decision: Decision, by_meaning: str) -> str:
        if rule.route == decision.route:
            return "chosen"
        if self._rules.bars(rule, scan, facts):
            return "barred"
        if decision.strategy == "rule" and self._rules.matches(rule, scan, facts):
            return "lower_priority"
        return by_meaning if decision.strategy != "rule" else "no_match"


def _missing(
    routes: Sequence[RouteConfig], config: RouterConfig, models: Collection[str], files: Mapping[str, str]
) -> list[Problem]:
    problems = [
        Problem(files.get(route.route, f"routes/{route.route}.yaml"), 0, f"model {route.model!r} does not exist")
        for route in routes
        if route.model not in models
    ]
    if config.default not in models:
        problems.append(Problem("gateway.yaml", 0, f"`router.default`: model {config.default!r} does not exist"))
    return problems
