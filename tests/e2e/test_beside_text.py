"""What stands beside an empty text in a stream reaches the client, with tools of the gateway's own and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving import NOW, native_config, serving
from tests.upstream import DONE, Frame, ScriptedUpstream, chunk, stream

LIKELY = {"content": [{"token": "x", "logprob": -0.1, "bytes": [240], "top_logprobs": []}], "refusal": None}


def said(delta: dict[str, Any], reason: str | None = None, **beside: Any) -> Frame:
    return chunk(choices=[{"index": 0, "delta": delta, "finish_reason": reason, **beside}])


@pytest.mark.parametrize("glued", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("tools", [["now"], []], ids=["tools", "no tools"])
@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_what_stands_beside_an_empty_text_is_not_lost(
    tmp_path: Path, dialect: str, tools: list[str], glued: bool
) -> None:
    """A character's first bytes are a token without a text: its probability comes with an empty one."""
    frames = [
        said({"role": "assistant", "content": ""}),
        said({"content": ""}, logprobs=LIKELY),
        said({"reasoning_content": ""}, logprobs=LIKELY),
        said({"content": "x"}, logprobs=LIKELY),
        said({"content": "", "refusal": "no"}),
        said({"content": "", "vendor": 3}, token_ids=[1]),
        said({"content": ""}, "stop", logprobs=LIKELY),
    ]
    whole = stream(stream(*frames, DONE).body) if glued else stream(*frames, DONE)
    async with ScriptedUpstream(whole) as upstream:
        config = native_config(
            upstream.base_url,
            backend={"dialect": dialect},
            models={"m": {"backends": ["b1"], "retries": 0, "tools": tools}},
        )
        async with serving(tmp_path, config, plugins={"now": NOW}) as gateway:
            raw = await gateway.raw_stream({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    assert ("tools" in upstream.requests[0].json) is bool(tools)
    events = [json.loads(part.removeprefix(b"data: ")) for part in raw.split(b"\n\n")[:-2]]
    choices = [choice for event in events for choice in event["choices"]]
    assert [choice["delta"]["role"] for choice in choices if "role" in choice["delta"]] == ["assistant"]
    assert choices[0]["delta"]["role"] == "assistant"
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "x"
    assert [choice["logprobs"] for choice in choices if choice.get("logprobs")] == [LIKELY] * 4
    assert [choice["delta"]["refusal"] for choice in choices if choice["delta"].get("refusal")] == ["no"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    if dialect == "openai":  # of any other server only what is known is passed on
        assert [choice["delta"]["vendor"] for choice in choices if "vendor" in choice["delta"]] == [3]
        assert [choice["token_ids"] for choice in choices if "token_ids" in choice] == [[1]]
