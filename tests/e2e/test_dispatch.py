"""Pools over sockets: what clients see of backends that fail, and upstreams of clients that leave."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import openai
import pytest
from yarl import URL

from tests.serving import Served, native_config, serving
from tests.upstream import (
    DONE,
    Pause,
    Reply,
    ScriptedUpstream,
    UpstreamRequest,
    answer,
    call,
    d,
    error,
    f,
    hang_up,
    stream,
    tc,
    u,
    words,
)

HI = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"
BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
TOO_LONG = (
    "input tokens exceed the configured limit (100000 / 123456)",
    "the input is longer than the model's context length",
    "the prompt is too long: 123456 tokens > 100000 maximum",
    "the prompt is too large for the model",
)
TOOLS = """
from gateway.tools import tool

@tool
async def now() -> str:
    "The time."
    return "noon"

def register(registry):
    registry.add(now)
"""


def config(
    *upstreams: ScriptedUpstream, fallbacks: bool = False, model: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Model `m` over `b1`, `b2` ...; with `fallbacks`, over `b1` alone, and `n` over the others stands in."""
    names = [f"b{number}" for number in range(1, len(upstreams) + 1)]
    backends = {
        name: {"provider": "openai", "base_url": upstream.base_url, "model": f"upstream-{name}"}
        for name, upstream in zip(names, upstreams, strict=True)
    }
    models: dict[str, Any] = {"m": {"backends": names, "retries": 0, **(model or {})}}
    if fallbacks:
        models["m"] |= {"backends": names[:1], "fallbacks": ["n"]}
        models["n"] = {"backends": names[1:], "retries": 0}
    return {
        "backends": backends,
        "models": models,
        "router": {"default": "m", "semantic": {"enabled": False}},
        "tools": {"plugins": []},
    }


def said(text: str, *, streamed: bool) -> Reply:
    return stream(words(text), f("stop"), u(3, 2), DONE) if streamed else answer(text)


async def ask(on: Served, *, streamed: bool = False, **more: Any) -> str:
    """The answer's text through the SDK."""
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    async with on.sdk() as client:
        if not streamed:
            whole = await client.chat.completions.create(**HI, extra_headers=headers)  # type: ignore[call-overload]
            return str(whole.choices[0].message.content)
        text = ""
        async for chunk in await client.chat.completions.create(**HI, stream=True, extra_headers=headers):  # type: ignore[call-overload]
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        return text


@BOTH
@pytest.mark.parametrize(
    ("headers", "seconds", "status"),
    [({"retry-after": "17"}, "17", 429), ({"retry-after-ms": "1700"}, "2", 429), ({"retry-after": "17"}, "17", 503)],
)
async def test_retry_after_reaches_the_sdk_and_nothing_else_of_the_upstream_s_headers_B009(
    tmp_path: Path, headers: dict[str, str], seconds: str, status: int, *, streamed: bool
) -> None:
    more = {"set-cookie": "a=b", "server": "theirs", "access-control-allow-origin": "*", "x-theirs": "1"}
    code = "rate_limit_exceeded" if status == 429 else None
    refusal = error(status, "slow down", kind="rate_limit_error", code=code, headers={**headers, **more})
    async with ScriptedUpstream(refusal, refusal) as up, serving(tmp_path, config(up)) as on:
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(on, streamed=streamed)
        response = caught.value.response
        assert (response.status_code, response.headers["retry-after"]) == (status, seconds)
        assert response.headers["content-type"].startswith("application/json")
        assert not response.headers.keys() & (more.keys() - {"server"})
        assert response.headers.get("server") != "theirs"
        told = json.loads(response.content)["error"]
        assert told["message"] == "slow down"
        if status == 429:
            assert isinstance(caught.value, openai.RateLimitError)
            assert told["code"] == "rate_limit_exceeded"


async def test_date_in_retry_after_becomes_seconds_B009(tmp_path: Path) -> None:
    from email.utils import formatdate

    refusal = error(429, headers={"retry-after": formatdate(time.time() + 100, usegmt=True)})
    async with ScriptedUpstream(refusal) as up, serving(tmp_path, config(up)) as on:
        status, headers, _ = await on.post(PATH, HI)
    assert status == 429
    assert 80 <= int(headers["retry-after"]) <= 100


@BOTH
async def test_failing_model_is_replaced_by_its_fallback_unless_the_client_forbids_it(
    tmp_path: Path, *, streamed: bool
) -> None:
    good = said("from b2", streamed=streamed)
    async with (
        ScriptedUpstream(then=hang_up()) as bad,
        ScriptedUpstream(then=good) as up,
        serving(tmp_path, config(bad, up, fallbacks=True)) as on,
    ):
        assert await ask(on, streamed=streamed) == "from b2"
        async with on.http.post(on.url + PATH, json={**HI, "stream": streamed}) as response:
            await response.read()
            shown = (response.headers["x-gateway-backend"], response.headers["x-gateway-model"])
        assert shown == ("b2", "n")
        trace = await on.trace(response.headers["x-gateway-trace"])
        kinds = [event["type"] for event in trace["events"]]
        assert kinds.index("attempt.failed") < kinds.index("round.answered")
        with pytest.raises(openai.APIStatusError):
            await ask(on, streamed=streamed, x_gateway_fallbacks="none")
        assert len(up.requests) == 2


async def test_all_backends_failing_is_one_error_after_a_bounded_number_of_attempts_B010(tmp_path: Path) -> None:
    down = error(503, "no capacity")
    async with ScriptedUpstream(then=down) as a, ScriptedUpstream(then=down) as b, ScriptedUpstream(then=down) as c:
        settings = config(a, b, c, fallbacks=True)
        settings["models"]["m"]["retries"] = settings["models"]["n"]["retries"] = 2
        settings["models"]["n"]["backends"] += ["b1"]
        async with serving(tmp_path, settings) as on:
            status, _, body = await on.post(PATH, HI)
            assert (status, body["error"]["code"]) == (503, "upstream_unavailable")
            assert "127.0.0.1" not in json.dumps(body)
        assert [len(each.requests) for each in (a, b, c)] == [3, 3, 3]


@pytest.mark.parametrize("keeps_role", [False, True])
async def test_stream_that_dies_before_content_is_another_backend_s_clean_stream_B011(
    tmp_path: Path, *, keeps_role: bool
) -> None:
    begun = stream(d({"role": "assistant", "content": ""}))
    broken = begun.reset_at(len(begun.body)) if keeps_role else hang_up()
    async with (
        ScriptedUpstream(broken) as one,
        ScriptedUpstream(said("Paris is it", streamed=True)) as two,
        serving(tmp_path, config(one, two)) as on,
    ):
        raw = await on.raw_stream(HI)
    chunks = [json.loads(event[6:]) for event in raw.split(b"\n\n") if event and event != b"data: [DONE]"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert [delta["role"] for delta in deltas if delta.get("role")] == ["assistant"]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Paris is it"
    assert raw.endswith(b"data: [DONE]\n\n")


async def test_stream_that_dies_after_content_ends_with_an_error_and_never_repeats_B011(tmp_path: Path) -> None:
    begun = stream(d({"role": "assistant", "content": "The capital"}), d({"content": " of France"}))
    broken = begun.reset_at(len(begun.body))
    whole = said("The capital of France is Paris.", streamed=True)
    async with (
        ScriptedUpstream(broken) as one,
        ScriptedUpstream(then=whole) as two,
        serving(tmp_path, config(one, two)) as on,
    ):
        raw = await on.raw_stream(HI)
        assert two.requests == []
    events = [event[6:] for event in raw.split(b"\n\n") if event]
    assert events[-1] == b"[DONE]"
    assert set(json.loads(events[-2])["error"]) == {"message", "type", "param", "code"}
    text = "".join(json.loads(e)["choices"][0]["delta"].get("content") or "" for e in events[:-2])
    assert text == "The capital of France"


async def test_registry_call_the_client_never_saw_may_be_asked_for_anew_B011(tmp_path: Path) -> None:
    begun = stream(d({"role": "assistant"}), tc(0, id="a", name="now", arguments="{"), u(70, 0))
    calls = stream(d({"role": "assistant"}), tc(0, id="b", name="now", arguments="{}"), f("tool_calls"), u(5, 1), DONE)
    done = said("It is noon", streamed=True)
    async with ScriptedUpstream(begun.reset_at(len(begun.body))) as one, ScriptedUpstream(calls, done) as two:
        settings = config(one, two)
        settings["models"]["m"]["tools"] = ["now"]
        async with serving(tmp_path, settings, plugins={"now": TOOLS}) as on:
            assert await ask(on, streamed=True) == "It is noon"
            assert (len(one.requests), len(two.requests)) == (1, 2)
            # What the lost attempt has cost is booked, and not shown as the answer's usage.
            [turn] = (await on.get("/v1/traces"))[2]["data"]
            events = (await on.trace(turn["id"]))["events"]
            [lost] = [event["data"] for event in events if event["type"] == "attempt.failed"]
            assert (lost["prompt_tokens"], turn["prompt_tokens"]) == (70, 5 + 3)
            assert 'hermes_attempt_tokens_lost_total{backend="b1"} 70.0' in (await on.get("/metrics"))[2]


@BOTH
async def test_thoughts_of_a_round_are_back_in_the_next_where_the_server_misses_them(
    tmp_path: Path, *, streamed: bool
) -> None:
    message = {"role": "assistant", "reasoning_content": "hmm", "tool_calls": [call("a", "now", "{}")]}
    calls = (
        stream(
            d({"role": "assistant", "reasoning_content": "hm"}),
            d({"reasoning_content": "m"}),
            tc(0, id="a", name="now", arguments="{}"),
            f("tool_calls"),
            DONE,
        )
        if streamed
        else answer(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}])
    )

    def deepseek(request: UpstreamRequest) -> Reply:
        if request.messages[-1]["role"] != "tool":
            return calls
        if "reasoning_content" not in request.messages[-2]:
            return error(400, "The reasoning_content in the thinking mode must be passed back to the API.")
        assert request.messages[-2]["reasoning_content"] == "hmm"
        return said("noon", streamed=streamed)

    async with ScriptedUpstream(then=deepseek) as up:
        async with serving(tmp_path, config(up, model={"tools": ["now"]}), plugins={"now": TOOLS}) as on:
            for _ in range(2):
                assert await ask(on, streamed=streamed) == "noon"
        assert len(up.requests) == 5, "it is told once"


@BOTH
@pytest.mark.parametrize("words", TOO_LONG)
async def test_prompt_that_does_not_fit_goes_to_the_fallback_and_is_named_without_one_B012(
    tmp_path: Path, words: str, *, streamed: bool
) -> None:
    refusal = error(400, words, kind="invalid_request_error")
    async with (
        ScriptedUpstream(then=refusal) as one,
        ScriptedUpstream(then=said("fits", streamed=streamed)) as two,
        serving(tmp_path, config(one, two, fallbacks=True, model={"retries": 3})) as on,
    ):
        assert await ask(on, streamed=streamed) == "fits"
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(on, streamed=streamed, x_gateway_fallbacks="none")
        assert (caught.value.code, caught.value.type) == ("context_length_exceeded", "invalid_request_error")
        assert len(one.requests) == 2


async def test_unrelated_refusal_passes_unchanged_and_cools_nothing_down_B012(tmp_path: Path) -> None:
    refusal = error(400, "invalid temperature", kind="invalid_request_error", param="temperature")
    async with (
        ScriptedUpstream(then=refusal) as one,
        ScriptedUpstream() as two,
        serving(tmp_path, config(one, two, fallbacks=True, model={"retries": 3})) as on,
    ):
        for _ in range(8):
            status, _, body = await on.post(PATH, HI)
            assert (status, body["error"]["message"]) == (400, "invalid temperature")
            assert body["error"]["param"] == "temperature"
        assert len(one.requests) == 8


@BOTH
@pytest.mark.parametrize("how", ["refused", 404, 400, 401, "frame"])
async def test_no_key_is_seen_anywhere_B013(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    how: int | str,
    *,
    streamed: bool,
) -> None:
    keys = ["TEST-SECRET-123", "TEST-SECRET-456", "TEST-SECRET-789"]
    encoded = [base64.b64encode(key.encode()).decode() for key in keys]

    def reply(request: UpstreamRequest) -> Reply:
        echo = f"bad key in http://{request.headers['host']}{request.path}: {', '.join(keys + encoded)}"
        if how == "frame":
            return stream(b'data: {"error": {"message": "%s"}}\n\n' % echo.encode())
        return error(how if isinstance(how, int) else 500, echo)

    caplog.set_level(logging.DEBUG)
    async with ScriptedUpstream(then=reply) as up:
        base = "http://127.0.0.1:9/v1" if how == "refused" else up.base_url
        backend = {"base_url": f"{base}?key={keys[0]}", "headers": {"x-api-key": keys[1]}, "api_keys": keys[2:]}
        more = {"observe": {"log": {"level": "debug", "requests": True, "format": "json"}}}
        async with serving(tmp_path, native_config(up.base_url, backend=backend, **more)) as on:
            async with on.http.post(on.url + PATH, json={**HI, "stream": streamed}) as response:
                seen = [await response.text(), str(response.headers)]
            assert response.status == (how if how in {400, 404} else 502)
            assert "error" in json.loads(seen[0])
            seen.append(json.dumps(await on.trace(response.headers["x-gateway-trace"])))
            seen += [str(await on.get(path)) for path in ("/metrics", "/v1/config", "/v1/models", "/readyz")]
    seen += [caplog.text, *capfd.readouterr()]
    assert "127.0.0.1" not in seen[0]
    for key in keys + encoded:
        assert not [text for text in seen if key in text]


@BOTH
async def test_client_that_leaves_ends_a_wait_for_a_retry_within_a_second(tmp_path: Path, *, streamed: bool) -> None:
    limited = error(429, headers={"retry-after": "2"})
    async with ScriptedUpstream(then=limited) as up, serving(tmp_path, config(up, model={"retries": 5})) as on:
        task = asyncio.create_task(_read(on, streamed=streamed))
        await up.received(1, timeout_s=10)
        await _gone(on, task)
        assert len(up.requests) == 1


@BOTH
async def test_client_that_leaves_the_queue_takes_no_place_with_it(tmp_path: Path, *, streamed: bool) -> None:
    good = said("at last", streamed=streamed)
    async with ScriptedUpstream(good.held(), then=good) as up:
        settings = config(up)
        settings["backends"]["b1"]["max_concurrency"] = 1
        async with serving(tmp_path, settings) as on:
            first = asyncio.create_task(_read(on, streamed=streamed))
            await up.received(1, timeout_s=10)
            second = asyncio.create_task(_read(on, streamed=streamed))
            third = asyncio.create_task(_read(on, streamed=streamed))
            await _running(on, 3)
            second.cancel()
            await _running(on, 2)
            up.release()
            async with asyncio.timeout(10):
                await first
                assert b"last" in await third
            assert len(up.requests) == 2
            status, _, metrics = await on.get("/metrics")
            assert status == 200
            assert 'hermes_backend_busy{backend="b1"} 0.0' in metrics
            assert 'hermes_backend_waiting{backend="b1"} 0.0' in metrics


async def _read(on: Served, *, streamed: bool) -> bytes:
    async with on.http.post(on.url + PATH, json={**HI, "stream": streamed}) as response:
        return await response.read()


async def _running(on: Served, count: int, within_s: float = 10) -> None:
    async with asyncio.timeout(within_s):
        while len(on.gateway.turns.running) != count:
            await asyncio.sleep(0.005)


async def _gone(on: Served, task: asyncio.Task[Any]) -> None:
    [turn] = on.gateway.turns.running.values()
    async with asyncio.timeout(10):
        while turn.record.events[-1].type != "attempt.failed":
            await asyncio.sleep(0.005)
    task.cancel()
    left = time.monotonic()
    await _running(on, 0)
    assert time.monotonic() - left < 1
    await asyncio.gather(task, return_exceptions=True)


async def test_what_a_client_got_before_it_left_is_booked(tmp_path: Path) -> None:
    reply = stream(words("one two three"), Pause(30), f("stop"), DONE)
    async with ScriptedUpstream(reply) as up, serving(tmp_path, config(up)) as on:
        async with on.http.post(on.url + PATH, json={**HI, "stream": True}) as response:
            trace_id = response.headers["x-gateway-trace"]
            while b"three" not in await response.content.readany():
                pass
        await _running(on, 0)
        trace = await on.trace(trace_id)
        assert (trace["status"], trace["events"][-1]["type"]) == (499, "turn.cancelled")
        assert trace["completion_tokens"] > 0
        assert trace["prompt_tokens"] > 0


async def test_deadline_of_the_client_bounds_retries_and_waits(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("late").held()) as up, serving(tmp_path, config(up)) as on:
        started = time.monotonic()
        status, _, body = await on.post(PATH, HI, x_gateway_deadline_ms="300")
        assert (status, body["error"]["code"]) == (504, "upstream_timeout")
        assert time.monotonic() - started < 5


async def test_each_key_of_a_backend_takes_its_turn_and_a_limited_one_is_left_out(tmp_path: Path) -> None:
    def reply(request: UpstreamRequest) -> Reply:
        limited = request.headers["authorization"] == "Bearer key-1"
        return error(429, headers={"retry-after": "60"}) if limited else answer("ok")

    async with ScriptedUpstream(then=reply) as up:
        settings = config(up)
        settings["backends"]["b1"]["api_keys"] = ["key-1", "key-2", "key-3"]
        async with serving(tmp_path, settings) as on:
            for _ in range(6):
                assert await ask(on) == "ok"
        used = [request.headers["authorization"][-1] for request in up.requests]
        assert (used.count("1"), sorted({"2", "3"} & set(used))) == (1, ["2", "3"])


async def shown(on: Served, name: str, key: str) -> tuple[int, str]:
    """What is said of one model: its name, or why not."""
    url = URL(f"{on.url}/v1/models/{quote(name, safe='')}", encoded=True)
    async with on.http.get(url, headers={"authorization": f"Bearer {key}"}) as response:
        body = await response.json()
        return response.status, body["id"] if response.status == 200 else body["error"]["code"]


async def test_wildcard_name_reaches_the_upstream_and_comes_back_as_it_was_asked_for(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("ok")) as up:
        settings = config(up)
        settings["backends"]["b1"]["model"] = "vendor-*"
        settings["models"] = {"openai/*": {"backends": ["b1"]}, "m": {"backends": ["b2"]}}
        settings["backends"]["b2"] = {"provider": "demo"}
        settings["aliases"] = {"big": "openai/gpt-big"}
        settings["router"] = {"default": "m", "semantic": {"enabled": False}}
        settings["keys"] = {
            "static": {
                "app": {"key": "secret-app", "models": ["openai/*"]},
                "all": {"key": "secret-all"},
                "every": {"key": "secret-every", "models": ["*"]},
            }
        }
        async with serving(tmp_path, settings) as on:
            for asked, sent in (("openai/gpt-4o", "gpt-4o"), ("big", "gpt-big"), ("openai/a/b:c", "a/b:c")):
                status, headers, body = await on.post(PATH, {**HI, "model": asked}, authorization="Bearer secret-all")
                assert (status, body["model"], headers["x-gateway-model"]) == (200, asked, asked)
                assert up.requests[-1].json["model"] == f"vendor-{sent}"
                assert await shown(on, asked, "secret-all") == (200, asked)
            for asked in ("openai/", "openai/../x", "openai/*", "openai/a b", "other/x", "*"):
                status, _, body = await on.post(PATH, {**HI, "model": asked}, authorization="Bearer secret-all")
                assert (status, body["error"]["code"]) == (404, "model_not_found")
                assert await shown(on, asked, "secret-all") == (404, "model_not_found")
            for asked, right in (("openai/gpt-4o", 200), ("big", 404), ("m", 404)):
                status, _, _ = await on.post(PATH, {**HI, "model": asked}, authorization="Bearer secret-app")
                assert (status, (await shown(on, asked, "secret-app"))[0]) == (right, right)
            status, headers, _ = await on.post(PATH, {**HI, "model": "auto"}, authorization="Bearer secret-every")
            assert (status, headers["x-gateway-model"]) == (200, "m")
            _, _, listed = await on.get("/v1/models", authorization="Bearer secret-all")
            assert [model["id"] for model in listed["data"]] == ["auto", "m", "big"]


async def test_breaker_and_pace_outlive_a_version_that_leaves_the_backend_alone(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=error(500)) as up, serving(tmp_path, config(up)) as on:
        for _ in range(5):
            await on.post(PATH, HI)
        [tier] = on.gateway.versions.current.pools["m"]._tiers
        tier.members[0].backend.breaker._opens_until = time.monotonic() + 1000
        text = (on.folder / "gateway.yaml").read_text()
        (on.folder / "gateway.yaml").write_text(text + "aliases: {other: m}\n")
        assert (await on.post("/v1/reload", {}))[0] == 200
        status, headers, _ = await on.post(PATH, {**HI, "model": "other"})
        assert (status, len(up.requests)) == (503, 5)
        assert 900 <= int(headers["retry-after"]) <= 1000
        assert 'hermes_backend_open{backend="b1"} 1.0' in (await on.get("/metrics"))[2]
        (on.folder / "gateway.yaml").write_text(text.replace("upstream-b1", "another"))
        await on.post("/v1/reload", {})
        assert (await on.post(PATH, HI))[0] == 502, "a changed backend starts anew"


async def test_comments_bridge_a_slow_start_and_do_not_keep_others_from_answering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = hang_up().delayed(0.5)
    async with (
        ScriptedUpstream(late, late) as one,
        ScriptedUpstream(said("here", streamed=True), error(500)) as two,
        serving(tmp_path, config(one, two)) as on,
    ):
        _silence(on, 0.1)
        raw = await on.raw_stream(HI)
        assert raw.startswith(b": keep-alive\n\n")
        assert (raw.count(b'"content":"here"'), raw.endswith(b"data: [DONE]\n\n")) == (1, True)
        # Once a comment was sent the status is 200: the failure comes in the stream.
        raw = await on.raw_stream(HI)
        assert raw.startswith(b": keep-alive\n\n")
        assert b'data: {"error":' in raw


def _silence(on: Served, seconds: float) -> None:
    from gateway.api.chat_completions import ChatCompletions

    chats = [endpoint for endpoint in on.gateway.app._hot.values() if isinstance(endpoint, ChatCompletions)]
    assert chats
    for chat in chats:
        chat._silence_s = seconds


async def test_usage_of_a_failed_attempt_is_booked_and_not_shown_B078(tmp_path: Path) -> None:
    def round_of(number: int, *last: Any) -> Reply:
        said = {
            "prompt_tokens_details": {"cached_tokens": 40 + 10 * number},
            "completion_tokens_details": {"reasoning_tokens": number},
        }
        frame = u(100 * number, 10 * number)
        assert isinstance(frame.payload, dict)
        frame.payload["usage"].update(said)
        return stream(d({"role": "assistant"}), *last, frame, DONE)

    def a_call(number: int) -> tuple[Any, ...]:
        return tc(0, id=f"c{number}", name="now", arguments="{}"), f("tool_calls")

    begun = stream(d({"role": "assistant"}), u(200, 0))
    lost = begun.reset_at(len(begun.body))
    last = round_of(3, d({"content": "noon"}), f("stop"))
    async with ScriptedUpstream(round_of(1, *a_call(1)), lost, round_of(2, *a_call(2)), last) as up:
        settings = config(up, model={"retries": 1, "tools": ["now"]})
        async with serving(tmp_path, settings, plugins={"now": TOOLS}) as on:
            raw = await on.raw_stream({**HI, "stream_options": {"include_usage": True}})
            chunks = [json.loads(event[6:]) for event in raw.split(b"\n\n") if event.startswith(b"data: {")]
            [usage] = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
            assert [usage[f"{name}_tokens"] for name in ("prompt", "completion", "total")] == [600, 60, 660]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 180
            assert usage["completion_tokens_details"]["reasoning_tokens"] == 6
            listed = (await on.get("/v1/traces"))[2]["data"]
            trace = await on.trace(listed[0]["id"])
            by_kind = [(e["type"], e["data"].get("prompt_tokens")) for e in trace["events"]]
            rounds = [pair for pair in by_kind if pair[0] in {"attempt.failed", "round.answered"}]
            assert rounds == [
                ("round.answered", 100),
                ("attempt.failed", 200),
                ("round.answered", 200),
                ("round.answered", 300),
            ]
            metrics = (await on.get("/metrics"))[2]
            assert 'hermes_attempt_tokens_lost_total{backend="b1"} 200.0' in metrics
            assert 'hermes_attempts_total{backend="b1",outcome="answered"} 3.0' in metrics
            assert 'hermes_attempts_total{backend="b1",outcome="broken"} 1.0' in metrics
