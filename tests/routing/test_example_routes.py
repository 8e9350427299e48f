"""The routes that are shipped: what a newcomer tries first must go where it should."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from gateway.config.models import RouteConfig
from gateway.routing.composite import CompositeRouter
from gateway.routing.encoders.registry import Encoders
from gateway.routing.facts import Facts
from tests.routing.tables import router

FOLDER = Path(__file__).resolve().parents[2] / "routes"


def shipped() -> list[RouteConfig]:
    return [RouteConfig.model_validate(yaml.safe_load(path.read_text())) for path in sorted(FOLDER.glob("*.yaml"))]


@pytest.fixture
async def examples() -> AsyncIterator[CompositeRouter]:
    encoders = Encoders()
    made = router(shipped(), encoders.get("auto"), models=["demo", "fallback"], timeout_ms=20_000)
    await made.prepare()
    assert made.failure is None
    yield made
    await made.close()
    await encoders.close()


def test_each_file_holds_the_route_of_its_name() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(each.route for each in shipped())
    assert len(shipped()) >= 6


RULES = [
    ("what is 12.5% of 18,640?", "calculate"),
    ("我的订单 SO-2024-0318 到哪了，一共多少钱？", "orders"),
    ("Where is SO-2024-0318, and what did it cost?", "orders"),
    ("so-2024-0318", "orders"),
    ("12 * (3 + 4)", "calculate"),
    ("１２＋７等于几", "calculate"),
    ("What is 90/3?", "calculate"),
    ("what is 17 plus 5", "calculate"),
    ("12乘以7", "calculate"),
    ("算一下 100-37", "calculate"),
    ("what time is it in Paris?", "time"),
    ("现在几点了", "time"),
    ("Summarise https://example.com/2024/03/18 for me", "web"),
    ("list the files please", "files"),
    ("列出文件", "files"),
    ("search the notes for the warranty", "search"),
    ("在知识库里找退货政策", "search"),
]


@pytest.mark.parametrize(("text", "expected"), RULES)
async def test_rules_of_the_examples(text: str, expected: str) -> None:
    decision = await router(shipped(), models=["demo", "fallback"]).decide(Facts(text))
    assert (decision.route, decision.strategy) == (expected, "rule")


@pytest.mark.parametrize(
    "text", ["hello", "the meeting is on 2024-03-18", "in 2024", "你好", "write a poem about 3 birds"]
)
async def test_small_talk_and_dates_match_no_rule(text: str) -> None:
    assert (await router(shipped(), models=["demo", "fallback"]).decide(Facts(text))).route is None


async def test_random_sums_and_orders_go_to_their_tools() -> None:
    made = router(shipped(), models=["demo", "fallback"])
    draw = random.Random(3)
    for _ in range(200):
        one, other = draw.randint(1, 10**6), draw.randint(1, 999)
        sign = draw.choice(["+", "-", "*", "/", "×", "÷"])
        for text in (
            f"what is {one} {sign} {other}?",
            f"{one:,} {sign} {other}",
            f"{other}% of {one:,}",
            f"{one}的{other}%是百分之几",
        ):
            assert (await made.decide(Facts(text))).route == "calculate", text
        number = f"SO-{draw.randint(2000, 2030)}-{draw.randint(0, 9999):04d}"
        for text in (f"Where is {number}?", f"{number} 到哪了", f"what is the total of {number}, and its status?"):
            assert (await made.decide(Facts(text))).route == "orders", text


async def test_other_words_are_found_by_meaning(examples: CompositeRouter) -> None:
    for text, expected in [
        ("where's my package", "orders"),
        ("when does my stuff arrive", "orders"),
        ("快点发货", "orders"),
        ("show me the files in this directory", "files"),
        ("退货有什么规定", "search"),
        ("find the section about refunds", "search"),
    ]:
        decision = await examples.decide(Facts(text))
        assert (decision.route, decision.strategy) == (expected, "semantic"), text
    for text in ("tell me a joke", "write a poem about spring", "how are you?", "给我讲个笑话", "今天天气怎么样"):
        assert (await examples.decide(Facts(text))).strategy == "default", text


@pytest.mark.parametrize("encoder", ["minilm", "multilingual", "auto"])
async def test_opposites_are_told_apart_or_left_to_the_default(encoder: str) -> None:
    """B005."""
    routes = [
        RouteConfig(route="enable", model="m", utterances=("How do I turn on two-factor login?",)),
        RouteConfig(route="disable", model="m", utterances=("How do I turn off two-factor login?",)),
    ]
    encoders = Encoders()
    made = router(routes, encoders.get(encoder), timeout_ms=20_000)
    await made.prepare()
    for warm in ("How do I turn on two-factor login?", "How do I turn off two-factor login?"):
        await made.decide(Facts(warm))
    expected: list[tuple[str, set[str | None]]] = [
        ("how to switch two-factor login off", {"disable"}),
        ("How do I turn on 2FA?", {"enable"}),
        ("don't disable two-factor login", {"enable", None}),
        ("I do NOT want to turn it on", {"disable", None}),
    ]
    for text, right in expected:
        decision = await made.decide(Facts(text))
        assert decision.route in right, text
        assert not decision.cached
    await encoders.close()
