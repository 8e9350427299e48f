"""Background work that nobody could do is refused when it is asked for, as it is refused to who waits for its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.serving import native_config, serving
from tests.upstream import ScriptedUpstream, answer

KEYS = {"static": {"few": {"key": "sk-few-models", "models": ["m"]}, "all": {"key": "sk-all-models"}}}
NAMED = {"type": "function", "name": "nowhere"}
CHAT_NAMED = {"type": "function", "function": {"name": "nowhere"}}
HOOK = """\
async def on_answer(answer, *rest):
    return None
"""
RENAMING = """\
import msgspec

async def on_request(request, principal):
    return msgspec.structs.replace(request, model="m")
"""


CASES: list[tuple[str, dict[str, Any], int, str | None, str | None]] = [
    ("nosuch", {}, 404, "model_not_found", None),
    ("n", {}, 404, "model_not_found", None),
    ("auto", {}, 404, "model_not_found", None),
    ("m", {"tool_choice": "named"}, 400, None, "tool_choice"),
    ("m", {"tool_choice": "required"}, 400, None, "tool_choice"),
]


def asked(api: str, model: str, more: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Where a request goes, what it is, and what it is in the background."""
    if api == "chat":
        if more.get("tool_choice") == "named":
            more = {"tool_choice": CHAT_NAMED}
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}
        return "/v1/chat/completions", body, {**body, "metadata": {"background": "true"}}
    if more.get("tool_choice") == "named":
        more = {"tool_choice": NAMED}
    body = {"model": model, "input": "hi", **more}
    return "/v1/responses", body, {**body, "background": True}


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_refused_in_the_background_as_in_the_foreground(api: str, tmp_path: Path) -> None:
    key = {"authorization": "Bearer sk-few-models"}
    async with ScriptedUpstream() as upstream:
        config = native_config(upstream.base_url, keys=KEYS)
        config["models"]["n"] = config["models"]["m"]
        async with serving(tmp_path, config) as on:
            for model, more, status, code, param in CASES:
                path, body, behind = asked(api, model, more)
                front = await on.post(path, body, **key)
                back = await on.post(path, behind, **key)
                assert (back[0], back[2]["error"]["code"], back[2]["error"]["param"]) == (status, code, param)
                assert back[2] == front[2]
                if api == "responses":
                    trace = back[1]["x-gateway-trace"]
                    assert (await on.get(f"/v1/responses/resp_{trace}", **key))[0] == 404
            assert (await on.get("/v1/runs", **key))[2]["data"] == []
        assert upstream.requests == []


async def test_several_answers_are_refused_where_a_hook_looks_at_each(tmp_path: Path) -> None:
    async with ScriptedUpstream() as upstream:
        config = native_config(upstream.base_url)
        async with serving(tmp_path, config, plugins={"hook": HOOK}) as on:
            body = {
                "model": "m",
                "n": 2,
                "messages": [{"role": "user", "content": "hi"}],
                "metadata": {"background": "true"},
            }
            status, _, said = await on.post("/v1/chat/completions", body)
    assert (status, said["error"]["param"]) == (400, "n")


async def test_a_hook_may_still_make_another_request_of_it(tmp_path: Path) -> None:
    async with ScriptedUpstream(answer("ok")) as upstream:
        config = native_config(upstream.base_url)
        async with serving(tmp_path, config, plugins={"hook": RENAMING}) as on:
            body = {
                "model": "gpt-of-old",
                "messages": [{"role": "user", "content": "hi"}],
                "metadata": {"background": "true"},
            }
            status, _, run = await on.post("/v1/chat/completions", body)
            assert status == 202, run
            await upstream.received()
