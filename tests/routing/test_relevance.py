from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.routing.encoder import EncoderFailed
from gateway.routing.encoders.registry import Encoders
from gateway.routing.relevance import Relevance

TOOLS = {
    "weather": "Tell the weather when the user asks about rain or sunshine.",
    "shares": "Tell the price of shares when the user asks about the stock market.",
    "recipes": "Find a recipe when the user asks how to cook a dish.",
    "trains": "Find trains when the user asks about a railway journey.",
}


class Failing:
    """An encoder that answers what it is told to."""

    name = "failing"
    dimensions = 2

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def load(self) -> None:
        return

    def reads(self, text: str) -> bool:
        return True

    async def encode(self, texts: Sequence[str]) -> Any:
        import numpy as np

        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return np.array(answer, dtype=np.float32)

    async def close(self) -> None:
        return


async def test_the_router_s_encoder_knows_what_a_question_is_about() -> None:
    asked = {
        "will I need an umbrella tomorrow?": "weather",
        "what can I make from eggs and flour?": "recipes",
        "明天会下雨吗": "weather",
        "去上海的高铁几点出发": "trains",
    }
    encoders = Encoders()
    relevance = Relevance(TOOLS, encoders.get("auto"), 30)
    try:
        await relevance.prepare()
        for text, first in asked.items():
            ranked = await relevance.rank(text, [*TOOLS])
            assert (ranked.names[0], ranked.by) == (first, "encoder"), text
            assert sorted(ranked.names) == sorted(TOOLS)
    finally:
        await relevance.close()
        await encoders.close()


async def test_without_an_encoder_shared_words_decide_and_equal_ones_keep_their_order() -> None:
    relevance = Relevance(TOOLS, None, 1)
    assert (await relevance.rank("Which SHARES should I buy?", [*TOOLS])).names[0] == "shares"
    assert (await relevance.rank("xyz", ["trains", "recipes"])) == (("trains", "recipes"), "words")
    assert (await relevance.rank("", [*TOOLS])).names == tuple(TOOLS)
    await relevance.close()


async def test_words_without_spaces_are_compared_by_their_neighbours() -> None:
    relevance = Relevance({"a": "查询订单状态", "b": "查询天气预报"}, None, 1)
    assert (await relevance.rank("今天天气怎么样", ["a", "b"])).names == ("b", "a")


async def test_an_encoder_that_fails_is_no_reason_to_offer_nothing() -> None:
    failing = Relevance(TOOLS, Failing(EncoderFailed("no weights")), 1)
    await failing.prepare()
    assert (await failing.rank("a railway journey", [*TOOLS])).by == "words"
    later = Relevance(TOOLS, Failing([[1, 0], [0, 1], [0, 1], [0, 1]], ValueError("damaged"), [[1, 0]]), 1)
    await later.prepare()
    ranked = await later.rank("a railway journey", [*TOOLS])
    assert (ranked.names[0], ranked.by) == ("trains", "words")
    assert (await later.rank("a railway journey", [*TOOLS])) == (tuple(TOOLS), "encoder")
    for each in (failing, later):
        await each.close()
