"""Turns that call the client's tools and the gateway's: nothing is lost, nothing foreign is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.mixed_drill import PLUGIN, drill
from tests.frames import DONE, d, f, tc
from tests.replies import answer, call, stream
from tests.serving import native_config, serving
from tests.upstream import ScriptedUpstream

CUSTOM = {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
TOOL: Any = {"type": "custom", "custom": {"name": "sql", "description": "Asks the client's database."}}


async def test_a_strict_upstream_sees_one_growing_history_whatever_the_client_was_shown(tmp_path: Path) -> None:
    report = await drill(tmp_path, 60)
    assert (report.refused[:2], report.failures[:2], report.foreign[:2]) == ([], [], [])
    assert report.mixed > 30
    assert min(report.branches, report.regenerated) > 5


@pytest.mark.parametrize("streamed", [False, True])
async def test_free_text_calls_are_the_clients_and_ours_beside_them_are_run(tmp_path: Path, streamed: bool) -> None:
    said = answer(calls=[call("c0", "lookup", '{"what": "x"}'), CUSTOM])
    if streamed:
        ours = tc(0, id="c0", name="lookup", arguments='{"what": "x"}')
        said = stream(ours, d({"tool_calls": [{"index": 1, **CUSTOM}]}), f("tool_calls"), DONE)
    async with (
        ScriptedUpstream(said, answer("done")) as upstream,
        serving(
            tmp_path,
            native_config(upstream.base_url),
            {"r": {"model": "m", "keywords": ["look"], "tools": ["lookup"]}},
            {"plug": PLUGIN},
        ) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        messages: list[Any] = [{"role": "user", "content": "look"}]
        shown: list[Any]
        if streamed:
            async with client.chat.completions.stream(model="auto", messages=messages, tools=[TOOL]) as events:
                pieces = [
                    piece
                    async for event in events
                    if event.type == "chunk"
                    for piece in event.chunk.choices[0].delta.tool_calls or ()
                ]
            shown = [{name: value for name, value in pieces[0].to_dict().items() if name != "index"}]
            assert (len(pieces), pieces[0].index) == (1, 0)
        else:
            whole = await client.chat.completions.create(model="auto", messages=messages, tools=[TOOL])
            shown = [each.to_dict() for each in whole.choices[0].message.tool_calls or ()]
        assert shown == [CUSTOM]
        messages += [
            {"role": "assistant", "content": None, "tool_calls": shown},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
        ]
        last = await client.chat.completions.create(model="auto", messages=messages, tools=[TOOL])
        assert last.choices[0].message.content == "done"
        sent = upstream.requests[1].messages
        asked = next(message for message in sent if message["role"] == "assistant")
        assert asked["tool_calls"] == [call("c0", "lookup", '{"what": "x"}'), CUSTOM]
        results = {each["tool_call_id"]: each["content"] for each in sent if each["role"] == "tool"}
        assert results["c1"] == "1"
        assert "<" in results["c0"], "ours ran"
