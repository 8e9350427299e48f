"""Rules, then meaning, then the conversation's own route, then the default: the router of one version.

Knows the order of the parts and when each is asked. Does not know how keywords are found, how texts become vectors, or
who asks. What only a rule needs is decided without waiting and without numpy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gateway.clock import Clock
from gateway.config.calibration import CalibrationFile, EncoderCalibration
from gateway.config.models import RouteConfig, RouterConfig
from gateway.errors import ConfigError, Problem
from gateway.routing.cache import DecisionCache, Key, cache_key
from gateway.routing.calibrated import Calibrated
from gateway.routing.conditions import UsedFacts, allowed
from gateway.routing.decision import Candidate, Decision
from gateway.routing.encoder import Encoder
from gateway.routing.encoders.window import ends_of_text
from gateway.routing.facts import Facts
from gateway.routing.fits import Fits
from gateway.routing.following import follows
from gateway.routing.likeness import NO_ROUTE, Outcome
from gateway.routing.normalise import normalise
from gateway.routing.rules import Rule, RuleTable, Scan
from gateway.routing.semantic import NOT_KEPT, Semantic
from gateway.routing.text import both_ends

if TYPE_CHECKING:
    from gateway.routing.strays import Stray

# What the turn before a short question may clear up.
_UNDECIDED = frozenset({"below_threshold", "ambiguous"})
_BEFORE_CHARS = 400
_QUICK_CHARS = 5000
# How much more alike another route must be than the one a conversation is on. Measured: see "Sticky" in docs/routing.md.
CLEARLY_BETTER = 0.3


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
        calibration: CalibrationFile | None = None,
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
            calibration: thresholds that were fitted before; used where they belong to these utterances and the encoder.

        Raises:
            ConfigError: a pattern, keyword, condition, model or threshold is wrong; it names all of them.
        """
        self.version = version
        self._default = config.default
        self._no_text, self._disabled = self._fallback("no_text"), self._fallback("semantic_disabled")
        self._rules = RuleTable(routes, files)
        semantic = config.semantic
        self.cache = DecisionCache(semantic.cache_size, semantic.cache_ttl_s, clock.monotonic)
        self._semantic = Semantic(routes, semantic, encoder if semantic.enabled else None, files, fits, calibration)
        rules = [self._rules.rules[self._rules.rank[route]] for route in self._semantic.routes]
        self._meant = frozenset(rule.rank for rule in rules)
        self._conditional = frozenset(rule.rank for rule in rules if rule.when is not None)
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

    @property
    def calibration(self) -> Calibrated:
        """Where thresholds come from."""
        return self._semantic.calibration

    async def prepare(self) -> None:
        """Load the encoder and read the utterances. Never raises: without them, decisions fall through and say so."""
        await self._semantic.prepare()

    async def calibrate(self, lines: Sequence[tuple[Facts, str | None]]) -> dict[str, EncoderCalibration]:
        """What fits the utterances and these labelled lines, by encoder.

        Lines that a rule decides say nothing about likeness and are passed over.

        Raises:
            EncoderFailed: an encoder cannot load or encode.
        """
        asked = [(self._scan(facts), facts, route) for facts, route in lines]
        return await self._semantic.calibrate(
            [(scan.text, route) for scan, facts, route in asked if self._rules.winner(scan, facts) is None]
        )

    async def read_ahead(self, many: Sequence[Facts]) -> None:
        """Encode together what `decide` will ask the encoder for; it then waits for nothing, and changes no decision."""
        texts = []
        for facts in many:
            scan = self._scan(facts)
            if self._rules.winner(scan, facts) is None:
                texts.append(scan.text)
                if facts.before and follows(scan.text):
                    texts.append(_together(scan, facts))
        await self._semantic.read_ahead(list(dict.fromkeys(texts)))

    async def strays(self) -> list[Stray]:
        """Utterances that would go to another route if they were not there. Takes as long as learning does."""
        return await self._semantic.strays()

    def unread(self) -> list[tuple[str, str]]:
        """Routes and utterances that no encoder reads."""
        return self._semantic.unread()

    async def close(self) -> None:
        """Stop what still computes. The encoder belongs to the app and stays open."""
        await self._semantic.close()

    async def decide(self, facts: Facts, *, explain: bool = False) -> Decision:
        """Decide. With `explain`, `candidates` and `matched` are filled in and nothing else changes."""
        scan = self._scan(facts)
        won = self._rules.winner(scan, facts)
        asked = scan.text
        if won is not None:
            rule, why = won
            decision = Decision(rule.route, rule.model, "rule", self.version, reason=why)
        else:
            if not asked or not self._semantic.enabled:
                decision = self._disabled if asked else self._no_text
            else:
                key = cache_key(self.version, asked, self._facts.key(facts))
                decision = self.cache.get(key) or await self._by_meaning(key, asked, scan, facts)
                if facts.before and decision.route is None and decision.reason in _UNDECIDED and follows(asked):
                    decision, asked = await self._with_before(decision, scan, facts)
            if facts.kept is not None and facts.kept != decision.route:
                decision = await self._stay(facts.kept, decision, asked, scan, facts)
        return await self._explained(decision, asked, scan, facts) if explain else decision

    def _scan(self, facts: Facts) -> Scan:
        return self._rules.scan(normalise(both_ends(facts.text)))

    async def _with_before(self, decision: Decision, scan: Scan, facts: Facts) -> tuple[Decision, str]:
        """The decision about a short question and what was said before it, or the one without; and what it was made about."""
        together = _together(scan, facts)
        # `none_of` looks at the question alone, and two pairs of texts may be one when joined.
        key = (*cache_key(self.version, together, self._facts.key(facts)), scan.text)
        longer = self.cache.get(key) or await self._by_meaning(key, together, scan, facts)
        return (longer, together) if longer.route is not None else (decision, scan.text)

    async def _by_meaning(self, key: Key, text: str, scan: Scan, facts: Facts) -> Decision:
        """A decision about a normalised text, kept under its key."""
        decision = self._decided(await self._semantic.match(text, self._barred(scan, facts)))
        if decision.reason not in NOT_KEPT:
            self.cache.put(key, replace(decision, cached=True))
        return decision

    async def _stay(self, kept: str, decision: Decision, asked: str, scan: Scan, facts: Facts) -> Decision:
        """The conversation's own route, unless it is gone, may not be used here, or another one is clearly better."""
        rank = self._rules.rank.get(kept)
        if rank is None or self._rules.bars(self._rules.rules[rank], scan, facts):
            return decision
        why = f"the conversation stays on {kept!r}: {decision.reason}"
        if decision.route is not None:
            outcome = await self._semantic.match(asked, self._barred(scan, facts), views=True)
            score = next((view.score for view in outcome.views if view.route == kept), None)
            if score is None or decision.score is None or decision.score - score >= CLEARLY_BETTER:
                return decision
            why = f"the conversation stays on {kept!r}: {decision.route!r} is only {decision.score - score:.3f} ahead"
        return Decision(kept, self._rules.rules[rank].model, "sticky", self.version, reason=why)

    def _barred(self, scan: Scan, facts: Facts) -> frozenset[str]:
        """Routes whose utterances do not count for this text."""
        ranks = self._meant
        if facts.allowed_routes is None and facts.allowed_models is None:
            # Only these can be barred, and asking all of many routes takes as long as comparing the text with them.
            ranks = self._conditional | (self._meant & scan.barred)
        rules = (self._rules.rules[rank] for rank in ranks)
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
        if len(facts.text) > _QUICK_CHARS:
            # Leading positions back takes a microsecond a character.
            found = await asyncio.to_thread(self._rules.found, scan, facts.text)
        else:
            found = self._rules.found(scan, facts.text)
        barred = self._barred(scan, facts)
        outcome = Outcome()
        if asked and self._semantic.enabled:
            outcome = await self._semantic.match(asked, barred, views=True)
        similar = {view.route: view for view in outcome.views}
        candidates: list[Candidate] = []
        for rule in self._rules.rules:
            if not allowed(rule.route, rule.model, facts):
                continue  # its words are none of this key's business
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
        if (nowhere := similar.get(NO_ROUTE)) is not None:
            verdict = nowhere.verdict if decision.strategy in {"semantic", "default"} else "no_match"
            candidates.append(Candidate(NO_ROUTE, nowhere.score, None, nowhere.margin, nowhere.nearest, (), verdict))
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
        said = self.calibration.said if self._semantic.enabled else ""
        return replace(decision, candidates=tuple(candidates), matched=matched, calibration=said)

    def _verdict(self, rule: Rule, scan: Scan, facts: Facts, decision: Decision, by_meaning: str) -> str:
        if rule.route == decision.route:
            return "chosen"
        if self._rules.bars(rule, scan, facts):
            return "barred"
        if decision.strategy == "rule" and self._rules.matches(rule, scan, facts):
            return "lower_priority"
        if decision.strategy == "sticky" and by_meaning == "chosen":
            return "not_clearly_better"
        return by_meaning if decision.strategy != "rule" else "no_match"


def _together(scan: Scan, facts: Facts) -> str:
    """A short question with what the user said before it."""
    return normalise(f"{ends_of_text(facts.before, _BEFORE_CHARS)}\n{scan.text}")


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
