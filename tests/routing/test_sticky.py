"""What `router.sticky` makes of a decision, given the route a conversation is on."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.routing.composite import CLEARLY_BETTER, CompositeRouter
from gateway.routing.decision import Decision
from gateway.routing.facts import Facts
from tests.routing.hashing_encoder import HashingEncoder
from tests.routing.tables import route, router

ORDERS = route(
    "orders", "order status", model="other", utterances=["where is my parcel", "where is my package", "no parcel"]
)
MUSIC = route("music", "play music", utterances=["put on some jazz", "start a jazz song", "some jazz song"])


async def prepared(**fields: object) -> CompositeRouter:
    routes = [ORDERS.model_copy(update=fields), MUSIC]
    made = router(routes, HashingEncoder(), timeout_ms=5000, threshold=0.3, margin=0.0)
    await made.prepare()
    return made


async def decided(made: CompositeRouter, text: str, kept: str | None = "orders", **facts: object) -> Decision:
    """The decision, once it is known that explaining it changes nothing and shows one route as chosen."""
    asked = Facts(text, kept=kept, **facts)  # type: ignore[arg-type]
    decision = await made.decide(asked)
    explained = await made.decide(asked, explain=True)
    assert (explained.route, explained.model, explained.strategy, explained.score, explained.reason) == (
        decision.route,
        decision.model,
        decision.strategy,
        decision.score,
        decision.reason,
    )
    chosen = [candidate.route for candidate in explained.candidates if candidate.verdict == "chosen"]
    assert chosen == ([decision.route] if decision.route else [])
    return decision


async def test_what_decides_nothing_stays_where_the_conversation_is() -> None:
    decision = await decided(await prepared(), "philosophy")
    assert (decision.route, decision.model, decision.strategy, decision.score) == ("orders", "other", "sticky", None)
    assert "stays on 'orders'" in decision.reason
    assert "below_threshold" in decision.reason
    assert (await decided(await prepared(), "philosophy", None)).strategy == "default"
    assert (await decided(await prepared(), "")).strategy == "sticky"


async def test_a_rule_always_wins() -> None:
    decision = await decided(await prepared(), "play music")
    assert (decision.route, decision.strategy) == ("music", "rule")


async def test_the_same_route_by_meaning_is_a_semantic_decision() -> None:
    assert (await decided(await prepared(), "where is my parcel")).strategy == "semantic"


async def test_another_route_takes_over_only_if_it_is_clearly_better() -> None:
    made = await prepared()
    clear = await decided(made, "put on some jazz")
    assert (clear.route, clear.strategy) == ("music", "semantic")
    # A text between both: as it is moved from one to the other, the decision changes hands once, at the lead that is asked for.
    seen = []
    for parts in range(11):
        text = " ".join(["jazz"] * parts + ["parcel"] * (10 - parts))
        free = await made.decide(Facts(text), explain=True)
        scores = {candidate.route: candidate.score for candidate in free.candidates}
        assert scores["music"] is not None
        assert scores["orders"] is not None
        lead = scores["music"] - scores["orders"]
        decision = await decided(made, text)
        if free.route == "music":
            assert decision.strategy == ("semantic" if lead >= CLEARLY_BETTER else "sticky"), lead
            seen.append(decision.strategy)
    assert set(seen) == {"semantic", "sticky"}


async def test_explaining_says_that_another_route_was_not_clearly_better() -> None:
    class Close(HashingEncoder):
        def _vector(self, text: str) -> NDArray[np.float32]:
            angle = {"a": 0.0, "b": 1.0, "?": 0.55}[text[0]]
            vector = np.zeros(self.dimensions, np.float32)
            vector[:2] = np.cos(angle), np.sin(angle)
            return vector

    made = router(
        [route("a", utterances=["a"]), route("b", utterances=["b"])], Close(), timeout_ms=5000, threshold=0.3, margin=0
    )
    await made.prepare()
    assert (await made.decide(Facts("?"))).route == "b"
    explained = await made.decide(Facts("?", kept="a"), explain=True)
    assert (explained.route, explained.strategy) == ("a", "sticky")
    assert [(each.route, each.verdict) for each in explained.candidates] == [
        ("a", "chosen"),
        ("b", "not_clearly_better"),
    ]


@pytest.mark.parametrize(
    "facts",
    [
        {"kept": "gone"},
        {"allowed_routes": frozenset({"music"})},
        {"allowed_models": frozenset({"m", "fallback"})},
        {"text": "cancel philosophy"},
    ],
)
async def test_a_route_that_is_gone_or_may_not_be_used_is_not_stayed_on(facts: dict[str, object]) -> None:
    """B082."""
    made = await prepared(none_of=("cancel",))
    decision = await decided(made, **{"text": "philosophy", **facts})  # type: ignore[arg-type]
    assert (decision.route, decision.strategy) == (None, "default")


async def test_a_sticky_decision_is_never_cached_for_others() -> None:
    made = await prepared()
    assert (await made.decide(Facts("philosophy", kept="orders"))).strategy == "sticky"
    assert (await made.decide(Facts("philosophy"))).strategy == "default"
    assert (await made.decide(Facts("philosophy", kept="music"))).route == "music"


async def test_a_conversation_stays_while_the_encoder_fails() -> None:
    encoder = HashingEncoder()
    made = router([ORDERS, MUSIC], encoder, timeout_ms=5000)
    await made.prepare()
    encoder.failing = ValueError("broken")
    decision = await made.decide(Facts("philosophy", kept="orders"))
    assert (decision.route, decision.strategy) == ("orders", "sticky")
    assert "encoder_failed" in decision.reason
