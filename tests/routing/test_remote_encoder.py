from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from gateway.config.models import RemoteEncoderConfig
from gateway.routing.encoder import EncoderFailed
from gateway.routing.encoders.embeddings_wire import read_vectors
from gateway.routing.encoders.registry import Encoders
from gateway.routing.encoders.remote import RemoteEncoder
from gateway.routing.facts import Facts
from tests.routing.embeddings_server import Embeddings, embeddings
from tests.routing.hashing_encoder import HashingEncoder
from tests.routing.tables import HandClock, route, router

SECRET = "sk-very-secret-1"


@asynccontextmanager
async def remote(**config: Any) -> AsyncIterator[tuple[RemoteEncoder, Embeddings, HandClock]]:
    clock = HandClock()
    async with embeddings() as server:
        made = RemoteEncoder(
            RemoteEncoderConfig.model_validate(
                {"base_url": server.url, "model": "embed-1", "api_key": SECRET, **config}
            ),
            clock,
        )
        try:
            yield made, server, clock
        finally:
            await made.close()


async def own(*texts: str) -> Any:
    """What the server's model makes of these texts."""
    model = HashingEncoder()
    await model.load()
    return await model.encode(texts)


async def test_vectors_come_in_order_in_batches_and_as_unit_vectors() -> None:
    async with remote(dimensions=64, headers={"X-Team": "a"}) as (encoder, server, _):
        await encoder.load()
        server.asked.clear()
        texts = [f"text {number}" for number in range(150)]
        assert np.allclose(await encoder.encode(texts), await own(*texts), atol=1e-6)
        assert sorted(map(len, server.asked)) == [22, 64, 64]
        assert np.allclose(await encoder.encode(["one"]), await own("one"), atol=1e-6)
        assert (await encoder.encode([])).shape == (0, 64)
        assert encoder.dimensions == 64
        assert encoder.name == "remote:embed-1"
        assert encoder.reads("अ")
        assert {**server.bodies[-1], "input": 0} == {
            "model": "embed-1",
            "input": 0,
            "encoding_format": "float",
            "dimensions": 64,
        }
        assert server.headers[-1]["authorization"] == f"Bearer {SECRET}"
        assert server.headers[-1]["x-team"] == "a"


@pytest.mark.parametrize("script", ["a", "订"])
async def test_what_is_too_long_is_sent_by_its_beginning_and_its_end(script: str) -> None:
    """B004."""
    text = "BEGIN " + script * 60_000 + " END"
    async with remote() as (encoder, server, _):
        await encoder.load()
        server.longest = 300
        server.asked.clear()
        one = await encoder.encode([text])
        assert [len(texts[0]) for texts in server.asked] == [1001, 501, 251]
        sent = server.asked[-1][0]
        assert sent.startswith("BEGIN ")
        assert sent.endswith(" END")
        # Among others, it gets the same vector, and the others get theirs.
        vectors = await encoder.encode(["short", text])
        assert np.array_equal(vectors[1:], one)
        assert np.allclose(vectors[:1], await own("short"), atol=1e-6)
        server.longest = 10
        with pytest.raises(EncoderFailed, match="answered 400"):
            await encoder.encode([text])


GOOD = [0.5] * 64
RUBBISH = {
    "not json": "<html>",
    "an error": '{"error": {"message": "no"}}',
    "a NaN": json.dumps({"data": [{"index": 0, "embedding": [*GOOD[1:], float("nan")]}]}),
    "null": json.dumps({"data": [{"index": 0, "embedding": [*GOOD[1:], None]}]}),
    "too large": json.dumps({"data": [{"index": 0, "embedding": GOOD}]}).replace("0.5", "1e308"),
    "zeros": json.dumps({"data": [{"index": 0, "embedding": [0.0] * 64}]}),
    "short": json.dumps({"data": [{"index": 0, "embedding": GOOD[1:]}]}),
    "long": json.dumps({"data": [{"index": 0, "embedding": [*GOOD, 0.5]}]}),
    "empty": json.dumps({"data": [{"index": 0, "embedding": []}]}),
    "none": json.dumps({"data": []}),
    "two": json.dumps({"data": [{"index": 0, "embedding": GOOD}, {"index": 1, "embedding": GOOD}]}),
    "wrong number": json.dumps({"data": [{"index": 1, "embedding": GOOD}]}),
    "base64": json.dumps({"data": [{"index": 0, "embedding": "AAAA"}]}),
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("what", RUBBISH)
async def test_what_is_no_vector_is_refused(what: str) -> None:
    """B004."""
    async with remote() as (encoder, server, _):
        await encoder.load()
        server.answer = lambda _: RUBBISH[what]
        with pytest.raises(EncoderFailed):
            await encoder.encode(["text"])
        server.answer = None
        assert (await encoder.encode(["text"])).shape == (1, 64)


def test_embeddings_without_numbers_are_taken_in_their_order() -> None:
    body = json.dumps({"data": [{"embedding": [1, 0]}, {"embedding": [0, 2]}]}).encode()
    assert read_vectors(body, 2, None).tolist() == [[1, 0], [0, 1]]
    half = json.dumps({"data": [{"embedding": [1, 0]}, {"embedding": [0, 2], "index": 1}]}).encode()
    with pytest.raises(EncoderFailed, match="numbered"):
        read_vectors(half, 2, None)
    twice = json.dumps({"data": [{"embedding": [1, 0], "index": 1}, {"embedding": [0, 2], "index": 1}]}).encode()
    with pytest.raises(EncoderFailed, match="numbered"):
        read_vectors(twice, 2, None)


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 500])
async def test_refusals_name_the_model_and_no_secret_text_or_address(status: int) -> None:
    """B013."""
    async with remote() as (encoder, server, _):
        await encoder.load()
        server.statuses = [status]
        with pytest.raises(EncoderFailed, match=f"'embed-1' answered {status}") as failed:
            await encoder.encode(["my private text"])
        said = repr(failed.value)
        assert SECRET not in said
        assert "private" not in said
        assert "127.0.0.1" not in said
        assert len(server.asked[-1]) == 1


async def test_a_server_that_is_away_is_named_without_its_address() -> None:
    """B013."""
    config = {"base_url": f"http://user:{SECRET}@127.0.0.1:9/v1?key={SECRET}", "model": "embed-1"}
    clock = HandClock()
    encoder = RemoteEncoder(RemoteEncoderConfig.model_validate(config), clock)
    with pytest.raises(EncoderFailed, match="cannot be reached") as failed:
        await encoder.load()
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__
    assert SECRET not in str(failed.value) + repr(encoder._config)
    assert clock.time == pytest.approx(1003.5)
    await encoder.close()
    with pytest.raises(EncoderFailed, match="closed"):
        await encoder.load()


async def test_utterances_are_asked_for_again_and_questions_are_not() -> None:
    async with remote() as (encoder, server, clock):
        server.statuses = [503, 429]
        await encoder.load()
        server.statuses = [503, 503]
        assert len(await encoder.encode(["a", "b"])) == 2
        before = clock.time
        server.statuses = [503] * 5
        for _ in range(5):
            with pytest.raises(EncoderFailed, match="503"):
                await encoder.encode(["a"])
        asked = len(server.asked)
        with pytest.raises(EncoderFailed, match="left alone"):
            await encoder.encode(["a"])
        assert (len(server.asked), clock.time) == (asked, before)
        clock.time += 6
        assert len(await encoder.encode(["a"])) == 1


async def test_another_model_behind_the_name_is_noticed() -> None:
    """B007."""
    async with remote() as (encoder, server, clock):
        await encoder.load()
        await encoder.load()
        server.salt = "another model says "
        await encoder.encode(["a"])
        clock.time += 61
        with pytest.raises(EncoderFailed, match="other vectors"):
            await encoder.encode(["a"])
        with pytest.raises(EncoderFailed, match="other vectors"):
            await encoder.encode(["a"])
        with pytest.raises(EncoderFailed, match="restart"):
            await encoder.load()
        server.salt = ""
        await encoder.load()
        assert len(await encoder.encode(["a"])) == 1


async def test_texts_go_one_by_one_where_company_changes_a_vector() -> None:
    async with remote() as (encoder, server, _):
        server.alike = False
        await encoder.load()
        server.asked.clear()
        assert np.allclose(await encoder.encode(["a", "b", "c"]), await own("a", "b", "c"), atol=1e-6)
        assert sorted(server.asked) == [["a"], ["b"], ["c"]]


async def test_a_router_decides_by_a_server_s_vectors_and_falls_through_when_it_fails() -> None:
    """B004."""
    routes = [
        route("orders", utterances=["where is my parcel", "where is my package", "parcel not here"]),
        route("music", utterances=["put on some jazz", "start a jazz song", "some jazz song"]),
    ]
    async with embeddings() as server:
        encoders = Encoders()
        config = RemoteEncoderConfig.model_validate({"base_url": server.url, "model": "embed-1"})
        assert encoders.get(config) is encoders.get(config.model_copy())
        made = router(routes, encoders.get(config), timeout_ms=20_000)
        await made.prepare()
        assert made.failure is None
        assert (await made.decide(Facts("where is my parcel"))).route == "orders"
        server.answer = lambda _: RUBBISH["a NaN"]
        decision = await made.decide(Facts("some jazz please"))
        assert (decision.strategy, decision.reason) == ("default", "encoder_failed")
        server.answer = None
        assert (await made.decide(Facts("some jazz please"))).route == "music"
        # Utterances that are known already are not sent again.
        server.asked.clear()
        again = router(routes, encoders.get(config), timeout_ms=20_000)
        await again.prepare()
        assert all(texts[0].startswith("where is my order") for texts in server.asked)
        await encoders.close()
