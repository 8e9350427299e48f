"""What schemas of tools look like upstream, and what of a call they let through."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.litellm import _import_litellm
from tests.backends.litellm_dialect import Said
from tests.backends.litellm_gemini import GeminiDialect
from tests.chat.schemas.test_dialect import TREE
from tests.replies import body as plain_body
from tests.serving import native_config, serving
from tests.tools.mcp_scripted import offer, scripted
from tests.upstream import Reply, ScriptedUpstream, UpstreamRequest, answer, call, strict_history

ASK = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
DEEP = {"mode": "fast", "tree": {"kids": [{"kids": [{"kids": []}]}]}}
CALLS = [{"mode": "fast"}, {"mode": "bad"}, {"mode": "fast", "x": 1}, DEEP]


def served_tool(folder: Path, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A gateway's `tools` with one tool of this schema at an MCP server."""
    (folder / "far").mkdir()
    offer(folder / "far", {"name": name, "description": "Do it.", "inputSchema": schema})
    return {
        "plugins": [],
        "mcp": {"far": scripted(folder / "far")},
        "offer": "always",
        "default": [name],
        "max_rounds": 9,
    }


def one_after_the_other(name: str, calls: list[Any]) -> Any:
    def script(request: UpstreamRequest) -> Reply:
        done = sum(message["role"] == "tool" for message in request.messages)
        if done == len(calls):
            return answer("done")
        return strict_history(request) or answer(calls=[call(f"c{done}", name, json.dumps(calls[done]))])

    return script


@pytest.mark.parametrize("dialect", ["whole", "inlined", "grammar"])
async def test_b029_a_schema_upstream_stands_for_itself_and_calls_are_held_against_all_of_it(
    tmp_path: Path, dialect: str
) -> None:
    tools = served_tool(tmp_path, "plant", TREE)
    async with ScriptedUpstream(then=one_after_the_other("far__plant", CALLS)) as upstream:
        config = native_config(upstream.base_url, tools=tools, backend={"tool_schemas": dialect})
        async with serving(tmp_path, config) as gateway:
            status, _, body = await gateway.post("/v1/chat/completions", ASK)
            assert (status, body["choices"][0]["message"]["content"]) == (200, "done")
    (tool,) = upstream.requests[0].json["tools"]
    said = tool["function"]["parameters"]
    assert said["additionalProperties"] is False
    assert ("$defs" in said, "$ref" in json.dumps(said)) == ((False, False) if dialect == "inlined" else (True, True))
    results = [
        json.loads(message["content"]) for message in upstream.requests[-1].messages if message["role"] == "tool"
    ]
    assert [result["ok"] for result in results] == [True, False, False, True]
    assert "`mode`" in results[1]["error"]
    assert "`x`" in results[2]["error"]
    assert (tmp_path / "far" / "calls").read_text() == "plant\n" * 2


async def test_a_turn_that_fails_over_says_its_tools_as_each_server_takes_them(tmp_path: Path) -> None:
    tools = served_tool(tmp_path, "plant", TREE)
    async with ScriptedUpstream(plain_body({}, status=500)) as first, ScriptedUpstream(answer("done")) as second:
        config = native_config(first.base_url, tools=tools, backend={"tool_schemas": "strict"})
        config["backends"]["b2"] = {**config["backends"]["b1"], "base_url": second.base_url, "tool_schemas": "inlined"}
        config["models"]["m"]["backends"] = ["b1", "b2"]
        mine = {
            "type": "function",
            "function": {"name": "mine", "parameters": {"$ref": "#/$defs/A", "$defs": {"A": {}}}},
        }
        async with serving(tmp_path, config) as gateway:
            status, _, _ = await gateway.post("/v1/chat/completions", {**ASK, "tools": [mine]})
            assert status == 200
    client, ours = second.requests[0].json["tools"]
    assert client == mine == first.requests[0].json["tools"][0]
    assert "$ref" not in json.dumps(ours)
    # An open object inside: strict mode cannot say this one.
    assert "strict" not in first.requests[0].json["tools"][1]["function"]


async def test_strict_mode_is_asked_for_where_it_takes_the_same(tmp_path: Path) -> None:
    closed: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    closed |= {"required": ["city"], "additionalProperties": False}
    tools = served_tool(tmp_path, "look", closed)
    script = one_after_the_other("far__look", [{"city": "Oslo", "days": None}])
    async with ScriptedUpstream(then=script) as upstream:
        config = native_config(upstream.base_url, tools=tools, backend={"tool_schemas": "strict"})
        async with serving(tmp_path, config) as gateway:
            await gateway.post("/v1/chat/completions", ASK)
    function = upstream.requests[0].json["tools"][0]["function"]
    assert function["strict"] is True
    assert function["parameters"]["required"] == ["city", "days"]
    (result,) = [
        json.loads(message["content"]) for message in upstream.requests[1].messages if message["role"] == "tool"
    ]
    assert result["ok"], result


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
async def test_google_is_told_what_litellm_would_lose(tmp_path: Path) -> None:
    _import_litellm()
    parts = {
        "kind": {"const": "parcel"},
        "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        "both": {"allOf": [{"type": "string"}, {"minLength": 2}]},
        "any": True,
        "pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        "mode": {"$ref": "#/$defs/Mode"},
    }
    schema = {"type": "object", "properties": parts, "$defs": TREE["$defs"]}
    google = GeminiDialect()
    async with ScriptedUpstream(google.whole(Said("done"))) as upstream:
        config = native_config(upstream.base_url, tools=served_tool(tmp_path, "send", schema))
        base_url = upstream.base_url.removesuffix("/v1") + "/v1beta"
        config["backends"]["b1"] = {
            "provider": "gemini",
            "model": "gemini-2.5-flash",
            "api_key": "k",
            "base_url": base_url,
        }
        async with serving(tmp_path, config) as gateway:
            status, _, body = await gateway.post("/v1/chat/completions", ASK)
            assert status == 200, body
    (declared,) = upstream.requests[0].json["tools"]
    said = next(iter(declared.values()))[0]["parameters"]["properties"]
    assert said["kind"] == {"type": "string", "enum": ["parcel"]}
    assert [each["type"] for each in said["either"]["anyOf"]] == ["string", "integer"]
    assert said["both"] == {"type": "string", "minLength": 2}
    assert "string" in [each.get("type") for each in said["any"]["anyOf"]]
    assert said["pair"]["items"] == {"type": "string"}
    assert said["mode"]["enum"] == ["fast", "full"]


async def test_b084_a_pattern_in_a_schema_stalls_nobody(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
    texts = [{"text": "a" * 40 + "!"}, {"text": "a" * 100_000 + "!"}, {"text": "a" * 40}]
    async with ScriptedUpstream(then=one_after_the_other("far__look", texts)) as upstream:
        config = native_config(upstream.base_url, tools=served_tool(tmp_path, "look", schema))
        async with serving(tmp_path, config) as gateway:
            began = time.monotonic()
            status, _, _ = await gateway.post("/v1/chat/completions", ASK)
            assert status == 200
            # A backtracking engine needs centuries.
            assert time.monotonic() - began < 30
    results = [
        json.loads(message["content"]) for message in upstream.requests[-1].messages if message["role"] == "tool"
    ]
    assert [result["ok"] for result in results] == [False, False, True]


async def test_b084_a_pattern_the_engine_lacks_is_refused_at_load(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    async with ScriptedUpstream(answer("done")) as upstream:
        config = native_config(upstream.base_url, tools=served_tool(tmp_path, "look", schema))
        async with serving(tmp_path, config) as gateway:
            plugin = gateway.folder / "ahead.py"
            plugin.write_text(
                "from gateway.tools import tool\n\n"
                "@tool(parameters={'properties': {'text': {'type': 'string', 'pattern': '^(?=a)a$'}}})\n"
                "async def look(text: str = '') -> str:\n    'Look.'\n    return text\n\n"
                "def register(registry): registry.add(look)\n"
            )
            written = (gateway.folder / "gateway.yaml").read_text()
            (gateway.folder / "gateway.yaml").write_text(written.replace("plugins: []", "plugins: [ahead.py]"))
            status, _, body = await gateway.post("/v1/reload", {})
            assert status == 400
            assert "ahead.py:3: tool `look`" in json.dumps(body)
