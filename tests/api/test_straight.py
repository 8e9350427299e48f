"""Text on its straight way from an upstream's socket to a client's, past everybody who would only pass it on."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.tap import Tap
from tests.chat.recordings import needs_recordings, upstream_streams
from tests.frames import DONE, Frame, d, f, u, words
from tests.replies import Reply, Step
from tests.serving import Served, native_config, serving
from tests.upstream import Pause, ScriptedUpstream, Stall, UpstreamRequest, stream

HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
HOOK = """
from gateway.tools import look_ahead

@look_ahead(4)
async def on_answer(message, principal):
    return message
"""


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what taps took."""
    sizes: list[int] = []
    takes = Tap.takes

    def counted(self: Tap, pieces: list[bytes]) -> bool:
        size = sum(map(len, pieces))
        taken = takes(self, pieces)
        if taken:
            sizes.append(size)
        return taken

    monkeypatch.setattr(Tap, "takes", counted)
    return sizes


def slowly(*frames: Frame) -> list[Frame | Step]:
    """Frames that arrive each by itself."""
    return [each for frame in frames for each in (frame, Pause(0.004))]


async def asked(on: Served, version: str = "1.1", **more: Any) -> tuple[str, bytes]:
    """The trace's id and the bytes of an answer's body, unframed; a client of HTTP/1.0 is never written to straight."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(on.url.rpartition(":")[2]))
    body = json.dumps({**HI, **more}).encode()
    head = f"POST /v1/chat/completions HTTP/{version}\r\nhost: localhost\r\nconnection: close\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
    try:
        async with asyncio.timeout(20):
            answer = await reader.read()
    finally:
        writer.close()
    named, _, rest = answer.partition(b"\r\n\r\n")
    trace = re.search(rb"x-gateway-trace: (\w+)", named)
    assert trace is not None, answer
    if b"transfer-encoding: chunked" in named:
        rest = unframed(rest)
    return trace[1].decode(), rest


def unframed(body: bytes) -> bytes:
    """What was sent in chunks; each of them ends whole events, and nothing follows the last."""
    parts = []
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        assert body[length : length + 2] == b"\r\n"
        body = body[length + 2 :]
        if not length:
            assert body == b""
            return b"".join(parts)
        assert parts[-1].endswith(b"\n\n")


def anonymous(body: bytes) -> bytes:
    return re.sub(rb'"created":\d+', b'"created":0', re.sub(rb"chatcmpl-\w+", b"chatcmpl-x", body))


async def told(on: Served, trace_id: str) -> dict[str, Any]:
    """What a trace says of the answer, without its times."""
    async with asyncio.timeout(5):
        while on.gateway.turns.running:
            await asyncio.sleep(0.005)
    events = {event["type"]: event["data"] for event in (await on.trace(trace_id))["events"]}
    told = ("content", "finish_reason", "prompt_tokens", "completion_tokens", "tool_calls")
    return {name: events.get("round.answered", {}).get(name) for name in told}


def config(upstream: ScriptedUpstream, dialect: str = "openai", **more: Any) -> dict[str, Any]:
    return native_config(upstream.base_url, backend={"dialect": dialect, **more.pop("backend", {})}, **more)


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_bytes_and_trace_are_those_of_a_stream_that_is_read(
    tmp_path: Path, passed: list[int], dialect: str
) -> None:
    reply = stream(*slowly(*words('the \u00e9 " \\ end of it'), f("stop"), u(3, 5), DONE))
    async with ScriptedUpstream(then=reply) as upstream, serving(tmp_path, config(upstream, dialect)) as on:
        usage: dict[str, Any] = {"stream_options": {"include_usage": True}}
        read_trace, read = await asked(on, "1.0", **usage)
        assert not passed
        trace, straight = await asked(on, **usage)
        assert len(passed) >= 4
        assert anonymous(straight) == anonymous(read)
        assert await told(on, trace) == await told(on, read_trace)
        assert (await told(on, trace))["content"] == 'the \u00e9 " \\ end of it'


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_thoughts_pass_and_are_noted_as_those_of_a_stream_that_is_read(
    tmp_path: Path, passed: list[int], dialect: str
) -> None:
    thoughts = [d({"reasoning_content": each}) for each in ("first ", "this ", "and ", "that")]
    role, *texts = words("so it is done")
    reply = stream(*slowly(role, *thoughts, *texts, f("stop"), u(3, 5), DONE))
    async with ScriptedUpstream(then=reply) as upstream, serving(tmp_path, config(upstream, dialect)) as on:
        read_trace, read = await asked(on, "1.0")
        assert not passed
        trace, straight = await asked(on)
        assert len(passed) >= 4
        assert anonymous(straight) == anonymous(read)
        assert await told(on, trace) == await told(on, read_trace)
        assert (await told(on, trace))["content"] == "so it is done"


async def test_thoughts_that_passed_count_where_a_client_leaves(tmp_path: Path, passed: list[int]) -> None:
    thoughts = [d({"reasoning_content": f"thought number {at} "}) for at in range(12)]
    role, *texts = words("so")
    reply = stream(*slowly(role, *thoughts), Stall(), *texts, f("stop"), DONE)
    async with ScriptedUpstream(reply) as upstream, serving(tmp_path, config(upstream)) as on:
        task = asyncio.create_task(asked(on))
        await upstream.stalled()
        assert len(passed) >= 8
        task.cancel()
        await upstream.aborted(timeout_s=1)
        async with asyncio.timeout(2):
            while on.gateway.turns.running:
                await asyncio.sleep(0.005)
        rows = (await on.get("/v1/traces"))[2]["data"]
        last = (await on.trace(rows[0]["id"]))["events"][-1]
        assert last["type"] == "turn.cancelled"
        assert last["data"]["completion_tokens"] >= 36


async def test_end_is_sent_though_nothing_follows_it(tmp_path: Path, passed: list[int]) -> None:
    reply = stream(*slowly(*words("some words and an end"), f("stop")), Stall(), u(1, 2), DONE)
    async with ScriptedUpstream(reply) as upstream, serving(tmp_path, config(upstream)) as on:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(on.url.rpartition(":")[2]))
        body = json.dumps(HI).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        got = b""
        async with asyncio.timeout(5):
            await upstream.stalled()
            while b'"finish_reason": "stop"' not in got:
                got += await reader.read(1 << 16)
            assert passed
            assert b"[DONE]" not in got
            upstream.release()
            while not got.endswith(b"0\r\n\r\n"):
                got += await reader.read(1 << 16)
        writer.close()
        said = unframed(got.partition(b"\r\n\r\n")[2])
        assert said.count(b'"finish_reason": "stop"') == 1
        assert said.endswith(b"data: [DONE]\n\n")


async def test_percent_signs_around_a_text_are_what_they_are(tmp_path: Path, passed: list[int]) -> None:
    said: list[Frame] = []
    for each in (*words("10 %d of %% it"), f("stop"), DONE):
        payload = each.payload
        said.append(
            Frame({"%s": "%x", **payload, "system_fingerprint": "100%"} if isinstance(payload, dict) else payload)
        )
    async with ScriptedUpstream(then=stream(*slowly(*said))) as upstream, serving(tmp_path, config(upstream)) as on:
        _, read = await asked(on, "1.0")
        assert not passed
        _, straight = await asked(on)
        assert len(passed) >= 3
        assert anonymous(straight) == anonymous(read)


@needs_recordings
@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_recorded_streams_are_the_same_straight_and_read(tmp_path: Path, passed: list[int], dialect: str) -> None:
    async with ScriptedUpstream() as upstream, serving(tmp_path, config(upstream, dialect)) as on:
        for recorded in upstream_streams()[-12:]:
            frames = [Frame(json.loads(payload)) for payload in recorded[:12]] + [
                Frame(json.loads(payload)) for payload in recorded[-2:] * (len(recorded) > 12)
            ]
            upstream.enqueue(stream(*slowly(*frames, DONE)), stream(*frames, DONE))
            straight_trace, straight = await asked(on)
            read_trace, read = await asked(on, "1.0")
            assert anonymous(straight) == anonymous(read)
            assert await told(on, straight_trace) == await told(on, read_trace)
        assert len(passed) > 5


async def test_client_that_reads_slowly_gets_everything_and_holds_the_upstream_back(
    tmp_path: Path, passed: list[int]
) -> None:
    texts = [f"{at} " + "x" * 20_000 for at in range(1500)]
    reply = stream(*slowly(*words("a b c")), *(d({"content": text}) for text in texts), Stall(), f("stop"), DONE)
    async with ScriptedUpstream(reply) as upstream, serving(tmp_path, config(upstream)) as on:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(on.url.rpartition(":")[2]), limit=1024)
        body = json.dumps(HI).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await upstream.received()
        # Thirty megabytes: more than all buffers on the way, so the upstream does not get rid of them.
        with pytest.raises(AssertionError):
            await upstream.stalled(timeout_s=0.5)
        assert passed
        got = b""
        async with asyncio.timeout(20):
            while texts[-1].encode() not in got[-30_000:]:
                got += await reader.read(1 << 20)
        upstream.release()
        async with asyncio.timeout(20):
            while not got.endswith(b"0\r\n\r\n"):
                got += await reader.read(1 << 20)
        writer.close()
        said = unframed(got.partition(b"\r\n\r\n")[2])
        events = [json.loads(line[6:]) for line in said.split(b"\n\n") if line.startswith(b"data: {")]
        contents = [choice["delta"].get("content", "") for event in events for choice in event["choices"]]
        assert "".join(contents) == "a b c" + "".join(texts)


async def test_client_that_leaves_ends_the_upstreams_answer_and_pays_for_what_it_got(
    tmp_path: Path, passed: list[int]
) -> None:
    reply = stream(*slowly(*words("some words that were sent")), Stall(), f("stop"), DONE)
    async with ScriptedUpstream(reply) as upstream, serving(tmp_path, config(upstream)) as on:
        task = asyncio.create_task(asked(on))
        await upstream.stalled()
        assert passed
        task.cancel()
        await upstream.aborted(timeout_s=1)
        async with asyncio.timeout(2):
            while on.gateway.turns.running:
                await asyncio.sleep(0.005)
        rows = (await on.get("/v1/traces"))[2]["data"]
        trace = await on.trace(rows[0]["id"])
        last = trace["events"][-1]
        assert (trace["status"], last["type"]) == (499, "turn.cancelled")
        # Estimated from all five words, not from those that woke somebody.
        assert last["data"]["completion_tokens"] >= 5


async def test_upstream_that_falls_silent_ends_in_an_error_behind_what_passed(
    tmp_path: Path, passed: list[int]
) -> None:
    reply = stream(*slowly(*words("some words that were sent")), Stall(), DONE)
    backend = {"idle_timeout_s": 0.2}
    async with ScriptedUpstream(reply) as upstream, serving(tmp_path, config(upstream, backend=backend)) as on:
        _, body = await asked(on)
        assert passed
        events = body.split(b"\n\n")
        assert b"sent nothing for 0.2 s" in events[-3]
        assert events[-2:] == [b"data: [DONE]", b""]
        assert b"".join(re.findall(rb'"content": ?"([^"]*)"', body)) == b"some words that were sent"


@pytest.mark.parametrize("case", ["hooks", "kept answers"])
async def test_what_somebody_has_to_look_at_does_not_pass(tmp_path: Path, passed: list[int], case: str) -> None:
    reply = stream(*slowly(*words("some words that were sent"), f("stop"), DONE))
    route = {"r": {"model": "m", "keywords": ["hi"], **({"cache": {"ttl_s": 60}} if case != "hooks" else {})}}
    plugins = {"watch": HOOK} if case == "hooks" else None
    async with ScriptedUpstream(reply) as upstream, serving(tmp_path, config(upstream), route, plugins) as on:
        _, body = await asked(on, model="auto")
        assert not passed
        assert b"".join(re.findall(rb'"content": ?"([^"]*)"', body)) == b"some words that were sent"


async def test_what_was_masked_is_unmasked_before_it_is_sent(tmp_path: Path, passed: list[int]) -> None:
    def echo(request: UpstreamRequest) -> Reply:
        said = f"it begins plainly and then {request.messages[-1]['content']} goes on"
        return stream(*slowly(*words(said), f("stop"), DONE))

    private: dict[str, Any] = {"privacy": {"mode": "mask"}}
    async with ScriptedUpstream(then=echo) as upstream, serving(tmp_path, config(upstream, **private)) as on:
        _, body = await asked(on, messages=[{"role": "user", "content": "13812345678"}])
        assert b"13812345678" not in upstream.requests[0].raw
        assert b"[[" not in body
        assert b"13812345678" in b"".join(re.findall(rb'"content": ?"([^"]*)"', body))
        assert not passed
