"""The published check of an OpenAI-compatible server, run against the gateway: a program of its own that knows the schemas."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.backends import anthropic_wire as wire
from tests.chat.recordings import FOLDER, needs_recordings, upstream_recordings
from tests.replies import Reply, body, stream
from tests.serving import native_config, serving
from tests.upstream import ScriptedUpstream, UpstreamRequest

_CHECK = FOLDER.parent / "tools" / "spec_check.py"
_CHAT_CHECKS = 12

pytestmark = needs_recordings


async def failures(
    url: str, model: str, skip: str = "responses,embeddings", checks: int = _CHAT_CHECKS
) -> tuple[list[str], str]:
    """The checks that failed, and everything the program said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        _CHECK,
        f"{url}/v1",
        model,
        "--skip",
        skip,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(120):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = printed.decode()
    lines = [line.split(maxsplit=1) for line in said.splitlines() if line.startswith(("ok ", "FAIL "))]
    assert len(lines) == checks, said
    return [name for word, name in lines if word == "FAIL"], said


async def test_demo_passes_every_chat_check(tmp_path: Path) -> None:
    config = {**native_config("http://127.0.0.1:9"), "backends": {"b1": {"provider": "demo"}}}
    async with serving(tmp_path, config) as gateway:
        failed, said = await failures(gateway.url, "m")
    assert failed == [], said


async def test_demo_passes_every_check_of_responses(tmp_path: Path) -> None:
    config = {**native_config("http://127.0.0.1:9"), "backends": {"b1": {"provider": "demo"}}}
    async with serving(tmp_path, config) as gateway:
        failed, said = await failures(gateway.url, "m", "embeddings", _CHAT_CHECKS + 2)
    assert failed == [], said


def _replayed(request: UpstreamRequest) -> Reply:
    """What llama.cpp answered to a request like this."""
    asked = request.json
    if asked.get("stream"):
        case = "tools-required-stream" if "tools" in asked else "stream-usage"
    elif "tools" in asked:
        case = "tools-auto"
    else:
        case = "json-schema" if "response_format" in asked else "chat"
    [found] = [each for each in upstream_recordings("llama.cpp") if each["case"] == case]
    if "lines" in found:
        return stream("".join(f"{line}\n" for line in found["lines"]).encode() + b"\n")
    return body(found["body"])


async def test_recorded_llama_cpp_passes_every_chat_check_but_calls_it_never_made(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=_replayed) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as gateway,
    ):
        failed, said = await failures(gateway.url, "m")
    assert failed == ["chat: tool call", "stream: tool call"], said


def _claude(request: UpstreamRequest) -> Reply:
    asked: dict[str, Any] = request.json
    tools = asked.get("tools")
    if tools and (asked.get("tool_choice") or {}).get("type") in ("any", "tool"):
        properties = tools[0]["input_schema"]["properties"]
        arguments = {name: each.get("enum", ["Paris"])[0] for name, each in properties.items()}
        said = wire.use("toolu_1", tools[0]["name"], **arguments)
    else:
        said = wire.text(json.dumps({"city": "Paris", "hot": True}))
    return wire.streamed(said) if asked.get("stream") else wire.whole(said)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
async def test_provider_behind_litellm_passes_every_chat_check(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=_claude) as upstream:
        claude = {"provider": "anthropic", "base_url": f"http://127.0.0.1:{upstream.port}", "api_key": "any"}
        config = native_config(upstream.base_url, backend={**claude, "model": "claude-sonnet-4-5"})
        async with serving(tmp_path, config) as gateway:
            failed, said = await failures(gateway.url, "m")
    assert failed == [], said
