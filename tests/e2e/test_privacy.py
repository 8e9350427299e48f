"""Private data on its way through a whole gateway: sockets on both sides. Each test names its field case, where it has one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.serving import Served, native_config, serving
from tests.upstream import (
    DONE,
    ScriptedUpstream,
    UpstreamRequest,
    answer,
    call,
    d,
    error,
    f,
    stream,
    strict_history,
    tc,
    u,
)

PHONE = "13812345678"
MAIL = "sam.roe@example.org"
PLACEHOLDER = re.compile(r"\[\[[a-z0-9]+:[a-z]{11}\]\]")


def masking(**more: Any) -> dict[str, Any]:
    return {"privacy": {"mode": "mask", **more}}


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def trace_of(served: Served, done: Any) -> str:
    """The trace of an answer, as text."""
    return json.dumps(await served.trace(done._request_id.removeprefix("req_")), ensure_ascii=False)


async def test_model_sees_placeholders_and_client_gets_values(tmp_path: Path) -> None:
    def echo(request: UpstreamRequest) -> Any:
        return answer(f"You said: {request.messages[-1]['content']}")

    async with (
        ScriptedUpstream(then=echo) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking())) as served,
        served.sdk() as sdk,
    ):
        text = f"Call {PHONE} or write to {MAIL}."
        done = await sdk.chat.completions.create(model="m", messages=user(text))
        assert done.choices[0].message.content == f"You said: {text}"
        seen = upstream.requests[0].raw.decode()
        assert PHONE not in seen
        assert MAIL not in seen
        assert len(PLACEHOLDER.findall(seen)) == 2
        told = await trace_of(served, done)
        assert PHONE not in told
        assert MAIL not in told
        assert PLACEHOLDER.search(told)


async def test_stream_gives_values_back_however_it_is_cut(tmp_path: Path) -> None:
    def echo(request: UpstreamRequest) -> Any:
        said = f"You said: {request.messages[-1]['content']} [[ok]]"
        return stream(
            d({"role": "assistant", "content": ""}), *[d({"content": sign}) for sign in said], f("stop"), u(3, 4), DONE
        )

    async with (
        ScriptedUpstream(then=echo) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking())) as served,
        served.sdk() as sdk,
    ):
        text = f"Call {PHONE}, write to {MAIL}"
        got = ""
        finish = None
        chunks: Any = await sdk.chat.completions.create(model="m", messages=user(text), stream=True)
        async for chunk in chunks:
            if chunk.choices:
                got += chunk.choices[0].delta.content or ""
                finish = chunk.choices[0].finish_reason or finish
        assert got == f"You said: {text} [[ok]]"
        assert finish == "stop"
        assert PHONE not in upstream.requests[0].raw.decode()


PLUGIN = """
from gateway.tools import tool

GOT = []


@tool(sensitive=["address", "owner.name", "pin"])
async def lookup(phone: str, address: str = "") -> dict:
    "Look somebody up by phone number."
    GOT.append((phone, address))
    return {"phone": phone, "mail": "bob@example.com", "mobile": 13912345678, "owner": {"name": "Wang Fang"}, "pin": 7}


@tool(cache_ttl_s=3600)
async def person() -> dict:
    "Somebody."
    return {"name": "Alice Example", "mail": "alice@example.com", "rows": list(range(1, 101))}


def register(registry):
    registry.add(lookup, person)
"""


def got(served: Any) -> list[Any]:
    return next(
        module.GOT for name, module in sys.modules.items() if name.endswith(".people") and hasattr(module, "GOT")
    )


def placeholders(request: UpstreamRequest) -> list[str]:
    return PLACEHOLDER.findall(request.raw.decode())


def wired(request: UpstreamRequest) -> str:
    return json.dumps(request.json, ensure_ascii=False)


async def test_tool_gets_values_and_model_gets_placeholders_of_its_result(tmp_path: Path) -> None:
    def ask(request: UpstreamRequest) -> Any:
        phone = PLACEHOLDER.search(request.messages[-1]["content"])
        assert phone
        return answer(calls=[call("c1", "lookup", json.dumps({"phone": phone.group(), "address": "9 Elm Street"}))])

    def tell(request: UpstreamRequest) -> Any:
        assert strict_history(request) is None
        return answer(f"Result: {request.messages[-1]['content']}")

    async with (
        ScriptedUpstream(ask, tell) as upstream,
        serving(
            tmp_path,
            native_config(upstream.base_url, **masking(), tools={"default": ["lookup"], "offer": "always"}),
            plugins={"people": PLUGIN},
        ) as served,
        served.sdk() as sdk,
    ):
        done = await sdk.chat.completions.create(model="m", messages=user(f"Who is {PHONE}?"))
        assert got(served)[-1] == (PHONE, "9 Elm Street")
        text = done.choices[0].message.content or ""
        result = json.loads(text.removeprefix("Result: "))["result"]
        assert result["phone"] == PHONE
        assert result["mail"] == "bob@example.com"
        assert result["owner"]["name"] == "Wang Fang"
        second = wired(upstream.requests[1])
        for value in (PHONE, "bob@example.com", "13912345678", "Wang Fang", "9 Elm Street"):
            assert value not in second, value
        content = json.loads(upstream.requests[1].messages[-1]["content"])["result"]
        assert PLACEHOLDER.fullmatch(content["pin"])
        assert PLACEHOLDER.fullmatch(content["mobile"])
        told = await trace_of(served, done)
        for value in (PHONE, "bob@example.com", "13912345678", "Wang Fang", "9 Elm Street"):
            assert value not in told, value


async def test_failover_from_an_exempt_backend_masks(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=error(500, "away")) as local, ScriptedUpstream(then=answer("ok")) as cloud:
        config = native_config(local.base_url, **masking(exempt_backends=["b1"]))
        config["backends"]["b2"] = {"provider": "openai", "base_url": cloud.base_url, "model": "x"}
        config["models"]["m"] = {"backends": ["b1", "b2"], "retries": 0, "balance": "ordered"}
        async with serving(tmp_path, config) as served, served.sdk() as sdk:
            await sdk.chat.completions.create(model="m", messages=user(f"I am {PHONE}"))
        assert PHONE in local.requests[0].raw.decode()
        assert PHONE not in cloud.requests[0].raw.decode()
        assert placeholders(cloud.requests[0])


async def test_block_refuses_and_names_the_kind_alone(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, privacy={"mode": "block"})) as served,
    ):
        for text, kind in ((f"I am {PHONE}", "phone"), (MAIL, "email")):
            status, _headers, body = await served.post("/v1/chat/completions", {"model": "m", "messages": user(text)})
            assert status == 400
            assert body["error"]["type"] == "invalid_request_error"
            assert kind in body["error"]["message"]
            assert text not in json.dumps(body)
        status, _, _ = await served.post(
            "/v1/chat/completions", {"model": "m", "messages": user("order 20240318123456")}
        )
        assert status == 200
        raw = await served.raw_stream({"model": "m", "messages": user(PHONE)})
        assert b"invalid_request_error" in raw
        assert len(upstream.requests) == 1


async def test_client_tools_arguments_are_given_back_in_a_stream(tmp_path: Path) -> None:
    tools: Any = [
        {
            "type": "function",
            "function": {"name": "dial", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}},
        }
    ]

    def ask(request: UpstreamRequest) -> Any:
        arguments = json.dumps({"to": request.messages[-1]["content"], "note": 'a "b"'})
        pieces = [tc(0, id="c1", name="dial", arguments="")] + [tc(0, arguments=sign) for sign in arguments]
        return stream(d({"role": "assistant"}), *pieces, f("tool_calls"), DONE)

    async with (
        ScriptedUpstream(then=ask) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking(patterns={"badge": 'B"[0-9]+"'}))) as served,
        served.sdk() as sdk,
    ):
        text = f'{PHONE} B"77" {MAIL}'
        async with sdk.chat.completions.stream(model="m", messages=user(text), tools=tools) as events:
            done = await events.get_final_completion()
        calls = done.choices[0].message.tool_calls
        assert calls
        assert json.loads(calls[0].function.arguments) == {"to": text, "note": 'a "b"'}
        assert PHONE not in upstream.requests[0].raw.decode()
        assert 'B\\"77' not in upstream.requests[0].raw.decode()


def private_files(folder: Path) -> list[str]:
    """The key's file with its mode; and every file in which the number stands."""
    found = [f"{file.name} {file.stat().st_mode & 0o777:o}" for file in folder.glob("*.privacy-key")]
    return found + [file.name for file in folder.glob("hermes.*") if PHONE.encode() in file.read_bytes()]


async def test_a_value_is_revealed_to_its_owner_alone_and_that_is_audited(tmp_path: Path) -> None:
    keys = {
        "admin_key": "admin-secret",
        "static": {"a": {"key": "key-of-a-1"}, "b": {"key": "key-of-b-1"}},
    }
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking(), keys=keys)) as served,
    ):
        body = {"model": "m", "messages": user(PHONE)}
        for name in ("a", "b"):
            await served.post("/v1/chat/completions", body, authorization=f"Bearer key-of-{name}-1")
        mine, other = (placeholders(request)[0] for request in upstream.requests)
        assert mine != other
        path, asked = "/v1/placeholders/reveal", {"placeholder": mine}
        status, headers, told = await served.post(path, asked, authorization="Bearer key-of-a-1")
        assert (status, told["value"]) == (200, PHONE)
        assert headers["cache-control"] == "no-store"
        assert (await served.post(path, asked, authorization="Bearer key-of-b-1"))[0] == 404
        for_b = {"placeholder": mine, "owner": "a"}
        assert (await served.post(path, for_b, authorization="Bearer key-of-b-1"))[0] == 403
        assert (await served.post(path, for_b, authorization="Bearer admin-secret"))[2]["value"] == PHONE
        assert (await served.post(path, {"placeholder": PHONE}, authorization="Bearer key-of-a-1"))[0] == 400
        rows = await served.gateway.store.audit.newest(None, limit=10, after=None)
        entries = [row.entry for row in rows if row.entry.action == "value.revealed"]
        assert {(entry.actor, entry.owner, entry.outcome) for entry in entries} == {
            ("a", "a", "told"),
            ("b", "b", "not found"),
            ("admin", "a", "told"),
        }
        assert PHONE not in repr(entries)
    assert private_files(tmp_path) == ["hermes.privacy-key 600"]


async def test_the_same_value_has_the_same_placeholder_after_a_restart(tmp_path: Path) -> None:
    seen = []
    async with ScriptedUpstream(then=answer("ok")) as upstream:
        for _ in range(2):
            async with serving(tmp_path, native_config(upstream.base_url, **masking())) as served:
                await served.post("/v1/chat/completions", {"model": "m", "messages": user(f"I am {PHONE}")})
                seen.append(placeholders(upstream.requests[-1]))
    assert seen[0] == seen[1] != []
