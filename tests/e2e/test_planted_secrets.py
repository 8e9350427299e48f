"""Thirty values, planted wherever a request can carry one: none is found in what upstreams, encoders, logs, traces, metrics and
webhooks get to see.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stdnum import luhn

from tests.routing.embeddings_server import embeddings
from tests.serving import native_config, serving
from tests.upstream import DONE, Reply, ScriptedUpstream, UpstreamRequest, answer, call, d, error, f, stream, tc, u

PLUGIN = """
from gateway.tools import tool


@tool
async def look(q: str = "") -> dict:
    "Look something up."
    return {"mail": "@RESULT_MAIL@", "phone": @RESULT_NUMBER@, "notes": ["nested: {\\"tel\\": \\"@RESULT_NESTED@\\"}"], "@RESULT_KEY@": 1}


@tool(sensitive=["secret", "inner.word"])
async def confide(secret: str) -> dict:
    "Take a secret."
    return {"inner": {"word": "@SENSITIVE_RESULT@"}, "echo": "you said " + secret}


@tool
async def fails(q: str = "") -> str:
    "Fail."
    raise ValueError("no such customer: @RAISED@")


def register(registry):
    registry.add(look, confide, fails)
"""


def values() -> Iterator[str]:
    """Made up, of every kind, each of its own."""
    for number in itertools.count(1):
        yield f"138{number:04d}{7000 + number}"
        yield f"person{number}@mail{number}.example.org"
        partial = f"62220212345{number:07d}"
        yield partial + luhn.calc_check_digit(partial)
        yield f"+49 30 {2300000 + number * 7}"


@pytest.fixture
def planted() -> Planted:
    return Planted()


class Planted:
    """Hands out values by place, and looks for them."""

    def __init__(self) -> None:
        self._values = values()
        self.places: dict[str, str] = {}

    def __call__(self, place: str) -> str:
        if place not in self.places:
            self.places[place] = next(self._values)
        return self.places[place]

    def found_in(self, text: str) -> list[str]:
        # However JSON or a URL writes it.
        flat = text.replace("\\u0040", "@").replace("%40", "@").replace("%2B", "+").replace("%20", " ")
        return [place for place, value in self.places.items() if value in flat]


def request_of(planted: Planted) -> dict[str, Any]:
    """One request with something private in every place."""
    return {
        "model": "auto",
        "messages": [
            {"role": "system", "content": f"The operator's number is {planted('system')}."},
            {"role": "developer", "content": [{"type": "text", "text": f"Write to {planted('developer part')}"}]},
            {
                "role": "user",
                "name": f"u-{planted('name')}",
                "content": "x",
            },
            {
                "role": "assistant",
                "content": f"I noted {planted('assistant')}.",
                "tool_calls": [
                    {
                        "id": f"call-{planted('call id')}",
                        "type": "function",
                        "function": {
                            "name": "client_tool",
                            "arguments": json.dumps(
                                {"to": planted("argument"), "n": {"deep": planted("deep argument")}}
                            ),
                        },
                    }
                ],
            },
            {
                "role": "tool",
                "tool_call_id": f"call-{planted('call id')}",
                "content": json.dumps({"owner": planted("tool result"), "list": [f"also {planted('tool list')}"]}),
            },
            {"role": "assistant", "content": None, "refusal": f"I will not call {planted('refusal')}"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": f"lookup please: {planted('user part')}"},
                    {"type": "image_url", "image_url": {"url": f"https://pictures.test/?of={planted('image url')}"}},
                ],
            },
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "client_tool",
                    "description": f"Calls {planted('tool description')}",
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "to": {"type": "string", "enum": [planted("enum")], "default": planted("default")}
                        },
                    },
                },
            }
        ],
        "metadata": {"caller": planted("metadata"), planted("metadata key"): "x"},
        "user": planted("user"),
        "safety_identifier": planted("safety"),
        "prediction": {"type": "content", "content": f"It is {planted('prediction')}"},
        "stop": [planted("stop")],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "out", "schema": {"type": "object", "description": planted("schema")}},
        },
        "house_field": {"nested": [planted("unknown field")]},
    }


def upstream_script(planted: Planted) -> Any:
    """Tools first, then an answer that echoes what it was sent, then failures."""

    def script(request: UpstreamRequest) -> Reply:
        results = [message for message in request.messages if message["role"] == "tool"]
        if len(results) < 4:
            calls = [
                call(f"c{request.number}a", "look", '{"q": "x"}'),
                call(f"c{request.number}b", "confide", json.dumps({"secret": planted("sensitive argument")})),
                call(f"c{request.number}c", "fails", "{}"),
            ]
            if request.json.get("stream"):
                parts = [
                    tc(at, id=each["id"], name=each["function"]["name"], arguments=each["function"]["arguments"])
                    for at, each in enumerate(calls)
                ]
                return stream(d({"role": "assistant"}), *parts, f("tool_calls"), u(1, 1), DONE)
            return answer(calls=calls)
        said = f"Of all this: {json.dumps(request.messages)}"
        if request.json.get("stream"):
            cut = [d({"content": said[at : at + 9]}) for at in range(0, len(said), 9)]
            return stream(d({"role": "assistant"}), *cut, f("stop"), u(1, 1), DONE)
        return answer(said)

    return script


def filled(planted: Planted) -> str:
    source = PLUGIN.replace("@RESULT_NUMBER@", planted("result number"))
    for place in ("RESULT_MAIL", "RESULT_NESTED", "RESULT_KEY", "RAISED"):
        source = source.replace(f"@{place}@", planted(place))
    planted.places["sensitive result"] = "the blue elephant of Ulm"
    return source.replace("@SENSITIVE_RESULT@", planted.places["sensitive result"])


async def test_thirty_planted_values_are_found_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], planted: Planted
) -> None:
    # The first of every kind in turn: what a number has to be is a number.
    planted("result number")
    planted.places |= {"name": "13899990001", "call id": "13899990002"}
    planted.places["sensitive argument"] = "a word nobody may hear"
    source = filled(planted)
    body = request_of(planted)
    assert len(planted.places) >= 30
    hooks: list[UpstreamRequest] = []

    def told(request: UpstreamRequest) -> Reply:
        hooks.append(request)
        return answer("")

    async with (
        embeddings() as encoder,
        ScriptedUpstream(then=told) as receiver,
        ScriptedUpstream(then=error(500, f"cannot say {planted('upstream error')}")) as broken,
        ScriptedUpstream(then=upstream_script(planted)) as upstream,
    ):
        config = native_config(upstream.base_url, privacy={"mode": "mask"})
        config["backends"]["b0"] = {"provider": "openai", "base_url": broken.base_url, "model": "x"}
        config["models"]["m"] = {"backends": ["b0", "b1"], "balance": "ordered", "retries": 0}
        config["router"]["semantic"] = {"encoder": {"base_url": encoder.url, "model": "e"}}
        config["tools"] = {"default": ["look", "confide", "fails"], "offer": "always"}
        config["observe"] = {"log": {"requests": True, "level": "debug"}}
        config["keys"] = {
            "admin_key": "admin-secret-1",
            "static": {"app": {"key": "app-secret-1", "roles": ["set_tags"]}},
        }
        config["webhooks"] = {
            "w": {
                "url": f"{receiver.base_url}/hook",
                "secret": "whsec_c2VjcmV0LW9mLXRoZS13ZWJob29r",
                "events": ["response.completed"],
            }
        }
        routes = {"r": {"model": "m", "utterances": ["lookup please", "find somebody"], "threshold": None}}
        async with serving(tmp_path, config, routes, {"people": source}) as served:
            headers = {"authorization": "Bearer app-secret-1"}
            extra = {"x_gateway_session": planted("session"), "x_gateway_tags": planted("tag").replace(" ", "%20")}
            status, _, whole = await served.post("/v1/chat/completions", body, **headers, **extra)
            assert status == 200, whole
            raw = (await served.raw_stream(body, **headers, Idempotency_Key=planted("idempotency key"))).decode()
            assert "[DONE]" in raw
            assert '"error"' not in raw
            # The client gets back what is its own.
            said = whole["choices"][0]["message"]["content"]
            for place in ("user part", "tool result", "RESULT_MAIL", "RESULT_NESTED", "sensitive result"):
                assert planted.places[place] in said, place
            assert not re.search(r"\[\[[a-z0-9]+:[a-z]{11}\]\]", said)
            await served.post("/v1/chat/completions", {**body, "model": planted("model")}, **headers)
            await served.post(
                "/v1/chat/completions", {**body, "messages": [{"role": planted("role"), "content": "x"}]}, **headers
            )
            background = {"model": "m", "input": f"I am {planted('input')}", "background": True}
            status, _, made = await served.post("/v1/responses", background, **headers)
            assert status == 200, made
            await receiver.received(1)
            admin = {"authorization": "Bearer admin-secret-1"}
            _, _, listed = await served.get("/v1/traces", **admin)
            traces = [await served.get(f"/v1/traces/{row['id']}", **admin) for row in listed["data"]]
            _, _, metrics = await served.get("/metrics", **admin)
            assert len(traces) >= 5
    seen = {
        "upstream": "".join(
            r.raw.decode() + json.dumps(dict(r.headers)) for r in (*upstream.requests, *broken.requests)
        ),
        "encoder": json.dumps(encoder.asked),
        "webhook": "".join(request.raw.decode() for request in hooks),
        "traces": json.dumps([listed, *[trace for _, _, trace in traces]], ensure_ascii=False),
        "metrics": str(metrics),
        "log": "".join(capfd.readouterr()),
    }
    assert {where: found for where, text in seen.items() if (found := planted.found_in(text))} == {}
    assert all(seen.values())
    assert "turn answered" in seen["log"]
