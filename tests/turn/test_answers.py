"""The exact cache, through a whole gateway on sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import StoreUnavailable
from gateway.store.answers import MemoryAnswers
from gateway.store.valkey_answers import ValkeyAnswers
from tests.clocks import HandClock
from tests.serving import Served, native_config, serving, write_route
from tests.upstream import DONE, ScriptedUpstream, answer, error, f, stream, u, words
from tests.valkey import valkey

CHAT = "/v1/chat/completions"
KEYS = {
    "ann": {"key": "k-ann-12345", "roles": ["set_user", "admin"]},
    "bob": {"key": "k-bob-12345"},
}
ANN, BOB = "Bearer k-ann-12345", "Bearer k-bob-12345"


def cached(base_url: str, **more: Any) -> dict[str, Any]:
    cache = more.pop("cache", {"ttl_s": 60})
    models = {"m": {"backends": ["b1"], "retries": 0, "cache": cache}}
    return native_config(base_url, models=models, keys={"auth": "required", "static": KEYS}, **more)


def asking(question: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": question}], **fields}


async def ask(served: Served, key: str = ANN, question: str = "hello", **fields: Any) -> tuple[bool, dict[str, Any]]:
    """Whether the answer was given again, and its body."""
    headers = fields.pop("headers", {})
    status, got, body = await served.post(CHAT, asking(question, **fields), Authorization=key, **headers)
    assert status == 200, body
    return got.get("x-gateway-replayed") == "true", body


async def test_equal_request_is_answered_once_under_ids_of_its_own(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(answer("first"), answer("second"), answer("third")) as upstream,
        serving(tmp_path, cached(upstream.base_url)) as served,
    ):
        replayed, first = await ask(served, temperature=0, seed=1)
        # Order of fields and spaces between them are not the request.
        body = b'{"seed":1, "temperature":0,"messages":[{"content":"hello","role":"user"}],"model":"m"}'
        async with served.http.post(served.url + CHAT, data=body, headers={"Authorization": ANN}) as response:
            assert response.headers["x-gateway-replayed"] == "true"
            assert response.headers["x-gateway-backend"] == "b1"
            again = await response.json()
            trace = response.headers["x-gateway-trace"]
        assert not replayed
        assert again["id"] == f"chatcmpl-{trace}" != first["id"]
        assert {**again, "id": "", "created": 0} == {**first, "id": "", "created": 0}
        # Another value, another question, another kind of number: another request.
        assert (await ask(served, temperature=0.5, seed=1))[1]["choices"][0]["message"]["content"] == "second"
        assert (await ask(served, question="Hello", temperature=0, seed=1))[0] is False
        assert len(upstream.requests) == 3
        _, _, metrics = await served.get("/metrics", Authorization=ANN)
        assert 'hermes_answer_cache_total{result="hit"} 1.0' in metrics
        assert 'hermes_answer_cache_total{result="miss"} 3.0' in metrics


async def test_stream_is_given_again_as_a_stream_with_the_same_chunks(tmp_path: Path) -> None:
    said = stream(*words("Hel lo"), f("stop"), u(3, 2), DONE)
    async with (
        ScriptedUpstream(said, answer("in one piece")) as upstream,
        serving(tmp_path, cached(upstream.base_url)) as served,
    ):
        streams = []
        for usage in (True, True, False):
            raw = await served.raw_stream(asking(stream_options={"include_usage": usage}), Authorization=ANN)
            streams.append(_chunks(raw))
        assert len(upstream.requests) == 1
        assert {json.dumps([c["choices"] for c in chunks if c["choices"]]) for chunks in streams} == {
            json.dumps([c["choices"] for c in streams[0] if c["choices"]])
        }
        ids = [{c["id"] for c in chunks} for chunks in streams]
        assert all(len(each) == 1 for each in ids)
        assert len(set.union(*ids)) == 3
        assert streams[0][-1]["usage"] == streams[1][-1]["usage"]
        assert streams[1][-1]["usage"]["completion_tokens"] == 2
        assert streams[2][-1]["choices"]
        # A request that is not streamed is another one.
        assert (await ask(served))[0] is False


def _chunks(raw: bytes) -> list[dict[str, Any]]:
    events = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    return [json.loads(event) for event in events[:-1]]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_with_a_key_that_a_kept_answer_was_given_to_gets_the_same_one_again(
    tmp_path: Path, streamed: bool
) -> None:
    said = stream(*words("Hel lo"), f("stop"), u(3, 2), DONE) if streamed else answer("Hel lo")
    asked = asking(stream=True, stream_options={"include_usage": True}) if streamed else asking()
    async with ScriptedUpstream(said) as upstream, serving(tmp_path, cached(upstream.base_url)) as served:

        async def keyed(key: str) -> tuple[str | None, set[str], str, Any]:
            headers = {"Authorization": ANN, "Idempotency-Key": key}
            async with served.http.post(served.url + CHAT, json=asked, headers=headers) as response:
                assert response.status == 200, await response.text()
                parts = _chunks(await response.read()) if streamed else [await response.json()]
            place = "delta" if streamed else "message"
            text = "".join(c[place].get("content") or "" for part in parts for c in part["choices"])
            return response.headers.get("x-gateway-replayed"), {part["id"] for part in parts}, text, parts[-1]["usage"]

        first, kept = await keyed("one"), await keyed("two")
        write_route(served.folder, "r", {"model": "m", "keywords": ["zebra"]})
        assert (await served.post("/v1/reload", {}, Authorization=ANN))[0] == 200
        again = await keyed("two")  # a new version has forgotten every answer, but the turn is known by its key
        assert (first[0], kept[0], again[0]) == (None, "true", "true")
        assert first[1] != kept[1] == again[1]
        assert first[2:] == kept[2:] == again[2:]
        assert len(upstream.requests) == 1
        status, _, body = await served.post(
            CHAT, asking("something else"), Authorization=ANN, **{"Idempotency-Key": "two"}
        )
        assert (status, body["error"]["code"]) == (409, "idempotency_conflict")


@pytest.mark.parametrize("shared", [False, True])
async def test_owners_share_only_what_is_declared_shared(tmp_path: Path, shared: bool) -> None:
    config = {"ttl_s": 60, "shared": shared}
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, cached(upstream.base_url, cache=config)) as served,
    ):
        assert (await ask(served, ANN, user="x"))[0] is False
        assert (await ask(served, BOB, user="y"))[0] is shared
        assert (await ask(served, ANN, headers={"x-gateway-user": "carol"}, user="x"))[0] is shared
        assert (await ask(served, ANN, headers={"x-gateway-user": "carol"}, user="x"))[0] is True


async def test_new_version_forgets_every_answer(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, cached(upstream.base_url)) as served,
    ):
        assert [(await ask(served))[0] for _ in range(2)] == [False, True]
        write_route(served.folder, "r", {"model": "m", "keywords": ["zebra"]})
        status, _, _ = await served.post("/v1/reload", {}, Authorization=ANN)
        assert status == 200
        assert [(await ask(served))[0] for _ in range(2)] == [False, True]


async def test_route_s_own_cache_comes_before_the_model_s(tmp_path: Path) -> None:
    routes = {"never": {"model": "m", "keywords": ["zebra"], "cache": {"ttl_s": 0}}}
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, cached(upstream.base_url), routes) as served,
    ):
        for question, again in (("a zebra", False), ("a horse", True)):
            asked = [await ask(served, question=question, model="auto") for _ in range(2)]
            assert [replayed for replayed, _ in asked] == [False, again]


TOOL = {"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {}}}}
USED = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "1"},
]


@pytest.mark.parametrize("fields", [{"tools": [TOOL]}, {"messages": USED}])
async def test_turn_with_tools_is_never_given_again(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, cached(upstream.base_url)) as served,
    ):
        assert [(await ask(served, **fields))[0] for _ in range(2)] == [False, False]


async def test_what_went_wrong_is_asked_for_again(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(
            error(500, "no"), answer("cut", finish="length"), answer("cut", finish="content_filter")
        ) as upstream,
        serving(tmp_path, cached(upstream.base_url)) as served,
    ):
        status, _, _ = await served.post(CHAT, asking(), Authorization=ANN)
        assert status >= 500
        assert [(await ask(served))[0] for _ in range(2)] == [False, False]
        upstream.enqueue(stream(*words("half"), f("length"), DONE), stream(*words("half")))
        upstream.enqueue(stream(*words("whole"), f("stop"), DONE))
        for text, whole in ((b"half", False), (b"half", False), (b"whole", True), (b"whole", True)):
            raw = await served.raw_stream(asking(), Authorization=ANN)
            assert text in raw
            assert (b'"finish_reason":"stop"' in raw) is whole
        assert len(upstream.requests) == 6


async def test_stand_in_s_answer_is_not_kept(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(error(503, "away"), then=answer("own")) as first,
        ScriptedUpstream(then=answer("stand-in")) as second,
    ):
        config = cached(first.base_url)
        config["backends"]["b2"] = {**config["backends"]["b1"], "base_url": second.base_url}
        config["models"]["m"]["fallbacks"] = ["n"]
        config["models"]["n"] = {"backends": ["b2"]}
        async with serving(tmp_path, config) as served:
            said = [(await ask(served))[1]["choices"][0]["message"]["content"] for _ in range(3)]
        assert said == ["stand-in", "own", "own"]


async def test_valkey_keeps_answers_over_processes_and_is_not_needed(tmp_path: Path) -> None:
    with valkey() as server:
        async with ScriptedUpstream(then=answer("ok")) as upstream:
            for number, expected in enumerate((False, True)):
                (tmp_path / str(number)).mkdir()
                storage = {"database": f"sqlite:///{tmp_path}/{number}/x.db", "redis": server.url}
                config = cached(upstream.base_url, storage=storage)
                async with serving(tmp_path / str(number), config) as served:
                    assert (await ask(served))[0] is expected
            assert len(upstream.requests) == 1


async def test_valkey_that_is_away_is_left_alone_for_a_while() -> None:
    clock = HandClock()
    with valkey() as server:
        answers = ValkeyAnswers(server.url, "t:", clock)
        await answers.put("k", b"v", 60)
        assert await answers.get("k") == b"v"
        assert await answers.get("other") is None
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await answers.get("k")
    await answers.close()


async def test_memory_is_bounded_in_bytes_and_time() -> None:
    clock = HandClock()
    answers = MemoryAnswers(clock, most_bytes=10_000)
    await answers.put("large", b"x" * 20_000, 60)
    assert await answers.get("large") is None
    for number in range(10):
        await answers.put(f"k{number}", b"x" * 1000, 10 + number)
    kept = [number for number in range(10) if await answers.get(f"k{number}")]
    assert kept == [3, 4, 5, 6, 7, 8, 9]
    clock.at += 15.5
    assert [number for number in range(10) if await answers.get(f"k{number}")] == [6, 7, 8, 9]
