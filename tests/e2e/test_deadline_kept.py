"""What a client is willing to wait is kept to, whatever an upstream does with the time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.serving import native_config, serving
from tests.upstream import Reply, ScriptedUpstream, answer, error, stream

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
TOOL = {"type": "function", "function": {"name": "theirs", "parameters": {"type": "object", "properties": {}}}}


async def took_s(folder: Path, upstream: ScriptedUpstream, deadline_s: float, **body: Any) -> tuple[int, float]:
    """The status, and how long it took."""
    async with serving(folder, native_config(upstream.base_url)) as gateway:
        asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
        started = time.monotonic()
        headers = {"x_gateway_deadline_ms": f"{deadline_s * 1000:.0f}"}
        status, _, _ = await gateway.post("/v1/chat/completions", asked, **headers)
        return status, time.monotonic() - started


@BOTH
async def test_reason_of_a_refusal_that_does_not_come_is_not_waited_for(tmp_path: Path, streamed: bool) -> None:
    async with ScriptedUpstream(error(500, "why?").stall_at(5)) as upstream:
        status, seconds = await took_s(tmp_path, upstream, 0.3, stream=streamed)
    assert status in (502, 504)
    assert seconds < 2


@BOTH
async def test_model_that_turns_out_to_take_no_tools_is_asked_again_in_what_is_left(
    tmp_path: Path, streamed: bool
) -> None:
    refused = error(400, "this model does not support tools").delayed(1.0)
    silent: Reply = (stream() if streamed else answer("late")).held()
    async with ScriptedUpstream(refused, silent) as upstream:
        status, seconds = await took_s(tmp_path, upstream, 1.5, stream=streamed, tools=[TOOL])
        assert len(upstream.requests) == 2
    assert status == 504
    assert seconds < 2.2
