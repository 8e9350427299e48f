"""Whole turns through providers that litellm translates for: the gateway runs the tools, the client sees one answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.backends.litellm_dialect import Dialect, Said
from tests.backends.test_litellm_dialects import KINDS, TWO, _imported, pytestmark
from tests.replies import Reply
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream, UpstreamRequest

__all__ = ["_imported", "pytestmark"]

CALCULATOR = """
from gateway.tools import tool

@tool(description="Compute an arithmetic expression.")
async def calculator(expression: str) -> dict:
    left, _, right = expression.partition("+")
    return {"sum": int(left) + int(right)}

def register(registry):
    registry.add(calculator)
"""
ROUTE = {"model": "m", "keywords": ["sum"], "tools": ["calculator"]}


def config_of(dialect: Dialect, port: int) -> dict[str, Any]:
    backend = dialect.config(port).model_dump(exclude_defaults=True, mode="json")
    config = native_config("http://127.0.0.1:1")
    config["backends"]["b1"] = backend
    return config


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streamed", [False, True], ids=["json", "sse"])
async def test_a_turn_with_tools_and_thoughts_is_one_answer(tmp_path: Path, kind: str, streamed: bool) -> None:
    dialect = KINDS[kind]()
    thought = "" if kind == "azure" else "two sums"
    asks = Said("Let me see. ", TWO, thought=thought, signature="c2lnbmVk" if thought else "", tokens=(20, 7))
    says = Said("2 and 4.", tokens=(40, 6))

    def script(request: UpstreamRequest) -> Reply:
        asked = dialect.read(request)
        said = says if asked.results else asks
        return dialect.streamed(dialect.steps(said)) if asked.streams else dialect.whole(said)

    async with (
        ScriptedUpstream(then=script) as upstream,
        serving(tmp_path, config_of(dialect, upstream.port), {"r": ROUTE}, {"calc": CALCULATOR}) as served,
    ):
        body = {"model": "auto", "messages": [{"role": "user", "content": "sum, please"}]}
        if thought:
            body["reasoning_effort"] = "low"
        text, usage = await (_sse if streamed else _json)(served, body)
        requests = [dialect.read(request) for request in upstream.requests]
    assert text == "Let me see. 2 and 4."
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (60, 13)
    assert len(requests) == 2
    assert json.loads(list(requests[1].results.values())[-1])["result"] == {"sum": 4}
    roles = [role for role, _ in requests[1].turns]
    assert roles in (
        ["user", "assistant", "user"],
        ["user", "model", "user"],
        ["user", "assistant", "tool", "tool"],
    )
    if thought:
        # Sealed as it was: a provider refuses its own thoughts when a letter is missing.
        assert [seal for _, seal in requests[1].thoughts][:1] == ["YzJsbmJtVms=" if kind == "gemini" else "c2lnbmVk"]
    if kind in ("anthropic", "bedrock"):
        assert requests[1].thoughts == [("two sums", "c2lnbmVk")]


async def _json(served: Served, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    status, _, answer = await served.post("/v1/chat/completions", body)
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]
    return choice["message"]["content"], answer["usage"]


async def _sse(served: Served, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    raw = await served.raw_stream({**body, "stream_options": {"include_usage": True}})
    lines = [line[6:] for line in raw.decode().splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]", raw
    chunks = [json.loads(line) for line in lines]
    assert not any("error" in chunk for chunk in chunks), raw
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert not any("tool_calls" in delta for delta in deltas)
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks}) == 1
    return "".join(delta.get("content") or "" for delta in deltas), chunks[-1]["usage"]


async def test_no_secret_of_a_provider_is_shown_anywhere_B013(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dialect = KINDS["bedrock"]()
    caplog.set_level("DEBUG")
    said = f"no: {' '.join(dialect.secrets)} at http://internal.example/x"
    async with (
        ScriptedUpstream(then=dialect.refusal(400, said)) as upstream,
        serving(tmp_path, config_of(dialect, upstream.port)) as served,
    ):
        seen = []
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        for form in ({}, {"stream": True}):
            status, headers, answer = await served.post("/v1/chat/completions", {**body, **form})
            assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
            assert answer["error"]["message"].startswith("no: ")
            seen += [json.dumps(answer), str(dict(headers)), json.dumps(await served.trace(headers["x-gateway-trace"]))]
        seen += [str(await served.get("/metrics")), str(await served.get("/v1/config")), caplog.text]
    for text in seen:
        for secret in (*dialect.secrets, "internal.example"):
            assert secret not in text
