from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gateway.routing.encoder import EncoderFailed
from gateway.routing.encoders.batching import BatchingEncoder
from gateway.routing.encoders.remembering import RememberingEncoder
from gateway.routing.facts import Facts
from gateway.routing.fits import Fits, fit_key
from gateway.routing.index import Index
from tests.routing.hashing_encoder import HashingEncoder
from tests.routing.tables import route, router
from tests.routing.test_scoring import cloud


class Counting(HashingEncoder):
    """Notes how many texts each call brought, and fails for a text that is called `bad`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    async def encode(self, texts: Sequence[str]) -> Any:
        self.calls.append(len(texts))
        await asyncio.sleep(0)
        if "bad" in texts:
            raise ValueError("bad text")
        return await super().encode(texts)


async def test_what_arrives_while_the_encoder_works_goes_together() -> None:
    inner = Counting()
    encoder = BatchingEncoder(inner)
    await encoder.load()
    texts = [f"text {number}" for number in range(12)]
    inner.gate.clear()
    asked = [asyncio.create_task(encoder.encode([text])) for text in texts]
    for _ in range(5):
        await asyncio.sleep(0)
    inner.gate.set()
    vectors = await asyncio.wait_for(asyncio.gather(*asked), 5)
    assert sum(inner.calls) == 12
    assert len(inner.calls) <= 3
    for text, vector in zip(texts, vectors, strict=True):
        assert (vector == await encoder.encode([text])).all()
    await encoder.close()


async def test_one_text_s_fault_is_not_the_others() -> None:
    encoder = BatchingEncoder(Counting())
    await encoder.load()
    found = await asyncio.wait_for(
        asyncio.gather(*(encoder.encode([text]) for text in ("a", "bad", "b")), return_exceptions=True), 5
    )
    assert isinstance(found[1], ValueError)
    assert all(isinstance(found[place], np.ndarray) for place in (0, 2))
    await encoder.close()


async def test_who_goes_away_takes_nobody_along() -> None:
    inner = Counting()
    encoder = BatchingEncoder(inner)
    await encoder.load()
    inner.gate.clear()
    asked = [asyncio.create_task(encoder.encode([text])) for text in ("a", "b", "c")]
    for _ in range(3):
        await asyncio.sleep(0)
    asked[0].cancel()
    asked[1].cancel()
    inner.gate.set()
    assert (await asyncio.wait_for(asked[2], 5)).shape == (1, 64)
    await encoder.close()


async def test_closing_leaves_nobody_waiting() -> None:
    inner = Counting()
    encoder = BatchingEncoder(inner)
    await encoder.load()
    inner.gate.clear()
    asked = [asyncio.create_task(encoder.encode([f"text {number}"])) for number in range(20)]
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.wait_for(encoder.close(), 5)
    found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 5)
    assert all(isinstance(error, EncoderFailed) for error in found)


async def test_questions_asked_in_a_batch_are_not_remembered_as_utterances() -> None:
    inner = Counting()
    encoder = RememberingEncoder(BatchingEncoder(inner))
    await encoder.load()
    await asyncio.wait_for(asyncio.gather(*(encoder.encode([text]) for text in ("a", "b", "c"))), 5)
    assert len(encoder._kept) == 0
    await encoder.close()


def test_utterances_that_did_not_change_are_not_learnt_again() -> None:
    texts, vectors, owner = cloud(4, 8)
    pairs = [(f"r{number}", text) for number, text in zip(owner, texts, strict=True)]
    fits = Fits()
    first = Index(pairs, vectors, encoder="one", fits=fits)
    again = Index(list(reversed(pairs)), vectors[::-1], encoder="one", fits=fits)
    assert again.scorer is first.scorer
    assert again.calibration == first.calibration
    assert Index(pairs, vectors, encoder="two", fits=fits).scorer is not first.scorer
    changed = [*pairs[:-1], (pairs[-1][0], "another text")]
    assert Index(changed, vectors, encoder="one", fits=fits).scorer is not first.scorer
    # A threshold of the configuration's own says nothing about what was learnt.
    assert set(Index(pairs, vectors, encoder="one", fits=fits, threshold=0.1, margin=0).thresholds) == {0.1}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("a", "x"), ("b", "y")], [("a", "x"), ("a", "y")]),
        ([("a", "x")], [("a", "x"), ("a", "x")]),
        ([("ab", "c")], [("a", "bc")]),
    ],
)
def test_other_utterances_have_another_key(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> None:
    assert fit_key("e", one) != fit_key("e", other)
    assert fit_key("e", one) != fit_key("f", one)


async def test_a_new_version_decides_alike_with_what_was_learnt_before() -> None:
    fits = Fits()
    routes = [route(f"r{n}", utterances=[f"word{n} thing {m}" for m in range(5)]) for n in range(4)]
    first = router(routes, HashingEncoder(), fits=fits)
    await first.prepare()
    second = router(routes, HashingEncoder(), fits=fits, version="2-test")
    await second.prepare()
    for text in ("word1 thing", "word3 other", "nothing"):
        one, other = await first.decide(Facts(text)), await second.decide(Facts(text))
        assert (one.route, one.score, one.reason) == (other.route, other.score, other.reason)
