"""Private data on its way through a whole gateway: sockets on both sides. Each test names its field case, where it has one."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway import cli
from gateway.security.masking.detector import Detector
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
from tests.values import strings

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
            done = await sdk.chat.completions.create(model="m", messages=user(f"I am {PHONE}"))
            assert '"backend": "b2", "model": "m", "attempt": 2, "kinds": {"phone": 1}' in await trace_of(served, done)
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


async def test_b037_a_kept_result_is_masked_for_one_route_and_whole_for_the_other(tmp_path: Path) -> None:
    """The cache holds what the tool returned, and nobody's masks."""

    def script(request: UpstreamRequest) -> Any:
        if request.messages[-1]["role"] == "user":
            return answer(calls=[call(f"c{request.number}", "person", "{}")])
        return answer("done")

    route: dict[str, Any] = {"model": "m", "tools": ["person"]}
    routes = {
        "a": {**route, "keywords": ["alpha"], "privacy": "mask"},
        "b": {**route, "keywords": ["beta"], "privacy": {"mode": "none"}},
    }
    async with (
        ScriptedUpstream(then=script) as upstream,
        serving(tmp_path, native_config(upstream.base_url), routes, {"people": PLUGIN}) as served,
    ):
        results = []
        for word in ("alpha", "beta", "alpha"):
            status, _, body = await served.post("/v1/chat/completions", {"model": "auto", "messages": user(word)})
            assert status == 200, body
            results.append(json.loads(upstream.requests[-1].messages[-1]["content"])["result"])
        first, second, third = results
        assert second == {"name": "Alice Example", "mail": "alice@example.com", "rows": list(range(1, 101))}
        assert first == third == {**second, "mail": first["mail"]}
        assert PLACEHOLDER.fullmatch(first["mail"])
        trace = (await served.get("/v1/traces"))[2]["data"]
        assert len(trace) == 3


BIG = """
from gateway.tools import tool


@tool
async def many() -> dict:
    "Many rows."
    return {"total": 500, "items": [{"id": n, "mail": f"row{n}@example.com", "note": "x" * 300} for n in range(500)]}


def register(registry):
    registry.add(many)
"""


async def test_b042_the_whole_of_a_long_result_is_in_the_trace_masked(tmp_path: Path) -> None:
    tools = {"default": ["many"], "offer": "always"}
    async with (
        ScriptedUpstream(answer(calls=[call("c1", "many", "{}")]), answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking(), tools=tools), plugins={"big": BIG}) as served,
        served.sdk() as sdk,
    ):
        done = await sdk.chat.completions.create(model="m", messages=user("all of them"))
        shown = upstream.requests[1].messages[-1]["content"]
        assert json.loads(shown)["result"]["total"] == 500
        assert "@example.com" not in shown
        told = await trace_of(served, done)
        assert "@example.com" not in told
        assert len(set(PLACEHOLDER.findall(told))) == 500


async def test_b047_text_that_looks_like_a_call_does_not_run_and_is_unmasked_as_text(tmp_path: Path) -> None:
    tools = {"default": ["lookup"], "offer": "always"}

    def quote(request: UpstreamRequest) -> Any:
        return answer(json.dumps({"name": "lookup", "arguments": {"phone": placeholders(request)[0]}}))

    async with (
        ScriptedUpstream(quote) as upstream,
        serving(
            tmp_path, native_config(upstream.base_url, **masking(), tools=tools), plugins={"people": PLUGIN}
        ) as served,
        served.sdk() as sdk,
    ):
        done = await sdk.chat.completions.create(model="m", messages=user(f"repeat it: {PHONE}"))
        assert json.loads(done.choices[0].message.content or "") == {"name": "lookup", "arguments": {"phone": PHONE}}
        assert not done.choices[0].message.tool_calls
        assert got(served) == []


async def test_b059_parts_that_are_no_text_are_left_alone(tmp_path: Path) -> None:
    picture = "data:image/png;base64," + f"iVBOR/{PHONE}/" * 20
    content = [
        {"type": "text", "text": f"my number is {PHONE}"},
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "input_audio", "input_audio": {"data": "13812345678AAAA", "format": "wav"}},
    ]
    messages: Any = [{"role": "user", "content": content}]
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking())) as served,
        served.sdk() as sdk,
    ):
        await sdk.chat.completions.create(model="m", messages=messages)
        sent = upstream.requests[0].messages[0]["content"]
        assert sent[1:] == content[1:]
        assert PLACEHOLDER.search(sent[0]["text"])
        assert "[object" not in upstream.requests[0].raw.decode()


async def test_routes_say_their_own(tmp_path: Path) -> None:
    routes = {
        "open": {"model": "m", "keywords": ["open"], "privacy": {"mode": "none"}},
        "strict": {"model": "m", "keywords": ["strict"], "privacy": {"mode": "block", "kinds": ["email"]}},
        "badge": {"model": "m", "keywords": ["badge"], "privacy": {"patterns": {"badge": "B-[0-9]{4}"}}},
    }
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking()), routes) as served,
    ):

        async def sent(text: str) -> str:
            status, _, _ = await served.post("/v1/chat/completions", {"model": "auto", "messages": user(text)})
            return str(upstream.requests[-1].messages[-1]["content"]) if status == 200 else str(status)

        assert await sent(f"open {PHONE}") == f"open {PHONE}"
        assert await sent(f"strict {PHONE}") == f"strict {PHONE}"
        assert await sent(f"strict {MAIL}") == "400"
        assert re.fullmatch(
            r"badge \[\[badge:[a-z]{11}\]\] \[\[phone:[a-z]{11}\]\]", await sent(f"badge B-1234 {PHONE}")
        )


async def test_random_conversations_leave_nothing_private_upstream(tmp_path: Path) -> None:
    """With tools, streams, retries and failover: what the detectors know is in no string that an upstream receives."""
    detector = Detector(("phone", "id_number", "bank_card", "email"), {})
    dice = random.Random(20260318)
    values = [
        PHONE,
        MAIL,
        "138-0013-8000",
        "4111 1111 1111 1111",
        "11010519491231002X",
        "+49 30 123456",
        "１３９００００１１１１",
    ]

    def words() -> str:
        some = [dice.choice([*values, "hello", "谢谢", "order 20240318", "[[phone:bcdfghjklmn]]"]) for _ in range(4)]
        return " ".join(some)

    def script(request: UpstreamRequest) -> Any:
        if dice.random() < 0.25:
            return error(500, "away")
        last = request.messages[-1]
        if last["role"] == "user" and dice.random() < 0.6:
            found = placeholders(request)
            arguments = json.dumps({"phone": dice.choice(found) if found else "1", "address": words()})
            calls = [call(f"c{request.number}", "lookup", arguments)]
            if not request.json.get("stream"):
                return answer(calls=calls)
            parts = [arguments[at : at + 5] for at in range(0, len(arguments), 5)]
            pieces = [tc(0, id=calls[0]["id"], name="lookup", arguments=""), *[tc(0, arguments=part) for part in parts]]
            return stream(d({"role": "assistant"}), *pieces, f("tool_calls"), DONE)
        said = f"{last['content']} {words()}"
        if not request.json.get("stream"):
            return answer(said)
        cut = [d({"content": said[at : at + 3]}) for at in range(0, len(said), 3)]
        return stream(d({"role": "assistant"}), *cut, f("stop"), DONE)

    async with ScriptedUpstream(then=script) as one, ScriptedUpstream(then=script) as two:
        config = native_config(one.base_url, **masking(), tools={"default": ["lookup"], "offer": "always"})
        config["backends"]["b2"] = {"provider": "openai", "base_url": two.base_url, "model": "x"}
        config["models"]["m"] = {"backends": ["b1", "b2"], "retries": 2, "balance": "ordered"}
        async with serving(tmp_path, config, plugins={"people": PLUGIN}) as served:
            answered = 0
            for _ in range(12):
                messages: list[dict[str, Any]] = []
                for _ in range(3):
                    messages.append({"role": "user", "content": words()})
                    body = {"model": "m", "messages": messages}
                    if dice.random() < 0.5:
                        text = joined((await served.raw_stream(body)).decode())
                    else:
                        status, _, whole = await served.post("/v1/chat/completions", body)
                        text = whole["choices"][0]["message"]["content"] if status == 200 else ""
                    answered += bool(text)
                    messages.append({"role": "assistant", "content": text or "-"})
                    left = {*PLACEHOLDER.findall(text)} - {"[[phone:bcdfghjklmn]]"}
                    assert not left, "what the client gets is its own"
        assert answered > 20
        for request in (*one.requests, *two.requests):
            for text in strings(request.json):
                assert detector.find(text) == [], text
            assert [value for value in values if value in wired(request)] == [], wired(request)


def joined(raw: str) -> str:
    """The text of a stream."""
    out = ""
    for line in raw.splitlines():
        if line.startswith("data: {") and (choices := json.loads(line[6:]).get("choices")):
            out += choices[0]["delta"].get("content") or ""
    return out


async def test_responses_stream_values_and_their_models_see_none(tmp_path: Path) -> None:
    def echo(request: UpstreamRequest) -> Any:
        said = f"You said: {request.messages[-1]['content']}"
        return stream(d({"role": "assistant"}), *[d({"content": sign}) for sign in said], f("stop"), u(1, 1), DONE)

    async with (
        ScriptedUpstream(then=echo) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking())) as served,
        served.sdk() as sdk,
    ):
        text = ""
        async for event in await sdk.responses.create(model="m", input=f"I am {PHONE}", stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.completed":
                assert event.response.output_text == f"You said: I am {PHONE}"
        assert text == f"You said: I am {PHONE}"
        assert PHONE not in upstream.requests[0].raw.decode()


async def test_sensitive_fields_are_private_without_any_mode(tmp_path: Path) -> None:
    tools = {"default": ["lookup"], "offer": "always"}
    asks = answer(calls=[call("c1", "lookup", json.dumps({"phone": PHONE, "address": "9 Elm Street"}))])
    async with (
        ScriptedUpstream(asks, answer("Wang Fang lives at 9 Elm Street")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, tools=tools), plugins={"people": PLUGIN}) as served,
        served.sdk() as sdk,
    ):
        done = await sdk.chat.completions.create(model="m", messages=user("Who?"))
        assert done.choices[0].message.content == "Wang Fang lives at 9 Elm Street"
        second = wired(upstream.requests[1])
        assert PHONE in second
        told = await trace_of(served, done)
        for value in ("9 Elm Street", "Wang Fang"):
            assert value not in second
            assert value not in told


async def test_fields_by_name_are_private_as_a_whole(tmp_path: Path) -> None:
    privacy = masking(kinds=["address"], fields={"secret": ["nickname"]})
    result = json.dumps({"address": {"street": "9 Elm Street", "no": 9}, "nickname": "Bo", "city": "Ulm"})
    messages: Any = [
        {"role": "user", "content": "who?"},
        {"role": "assistant", "content": None, "tool_calls": [call("c1", "find", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": result},
    ]
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **privacy)) as served,
    ):
        await served.post("/v1/chat/completions", {"model": "m", "messages": messages})
        sent = json.loads(upstream.requests[0].messages[2]["content"])
        assert PLACEHOLDER.fullmatch(sent["address"]["street"])
        assert PLACEHOLDER.fullmatch(sent["nickname"])
        assert sent["city"] == "Ulm"
        assert upstream.requests[0].messages[0] == messages[0]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_in_json_stays_json(streamed: bool, tmp_path: Path) -> None:
    def tell(request: UpstreamRequest) -> Any:
        said = json.dumps({"badge": placeholders(request)[0]})
        if not streamed:
            return answer(said)
        return stream(d({"role": "assistant"}), *[d({"content": sign}) for sign in said], f("stop"), DONE)

    async with (
        ScriptedUpstream(tell) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking(patterns={"badge": 'B"[0-9]+'}))) as served,
    ):
        body = {"model": "m", "messages": user('mine is B"77'), "response_format": {"type": "json_object"}}
        if streamed:
            text = joined((await served.raw_stream(body)).decode())
        else:
            text = (await served.post("/v1/chat/completions", body))[2]["choices"][0]["message"]["content"]
        assert json.loads(text) == {"badge": 'B"77'}


async def test_what_is_nested_too_deeply_is_refused_and_nothing_of_it_leaves(tmp_path: Path) -> None:
    deep = "[" * 600 + f'"{PHONE}"' + "]" * 600
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking())) as served,
    ):
        body = {"model": "m", "messages": user("hello"), "house_field": json.loads(deep)}
        status, _, _ = await served.post("/v1/chat/completions", body)
        # A tool's result is text, and looked through as such.
        result = {"role": "tool", "tool_call_id": "c1", "content": deep}
        asked = {"role": "assistant", "content": None, "tool_calls": [call("c1", "find", "{}")]}
        as_text, _, _ = await served.post(
            "/v1/chat/completions", {"model": "m", "messages": [*user("x"), asked, result]}
        )
        assert (status in {200, 400}, as_text) == (True, 200)
        assert all(PHONE not in request.raw.decode() for request in upstream.requests)


# Places that look as if nothing could stand in them: parameters called as a schema's own words are, texts that begin as pictures
# do, fields that are there twice.
ODD_PLACES = (
    (
        '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {'
        '"name": {"type": "string", "description": "call @"}, "type": {"type": "string", "default": "@"}, '
        '"signature": {"type": "string", "examples": [{"name": "@", "n": @}]}}}}}]'
    ),
    '"messages": [{"role": "user", "content": [{"type": "text", "text": "data: call @"}]}]',
    '"messages": [{"role": "user", "content": "data:text/plain,@"}]',
    '"messages": [{"role": "user", "content": "call @", "content": "hello"}]',
    '"metadata": {"a": "@", "a": "b"}',
    (
        '"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": '
        '{"name": "f", "arguments": "{\\"a\\": \\"@\\", \\"a\\": 1}"}}]}, '
        '{"role": "tool", "tool_call_id": "c1", "content": "{\\"a\\": \\"@\\", \\"a\\": 1, \\"phone\\": @.0}"}]'
    ),
)


async def test_nothing_private_leaves_from_odd_places(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **masking())) as served,
    ):
        for place in ODD_PLACES:
            more = "" if place.startswith('"messages"') else ', "messages": [{"role": "user", "content": "x"}]'
            text = f'{{"model": "m", {place.replace("@", PHONE)}{more}}}'
            async with served.http.post(
                f"{served.url}/v1/chat/completions", data=text, headers={"content-type": "application/json"}
            ) as response:
                assert response.status == 200, place
                trace = await served.trace(response.headers["x-gateway-trace"])
            assert PHONE not in upstream.requests[-1].raw.decode(), place
            assert PHONE not in json.dumps(trace), place


IN_TEXT = """
import json
from gateway.tools import tool

OWNER = {"pin": "zebra-4-kilo", "owner": {"name": "Wang Fang", "age": 7}}


@tool(sensitive=["pin", "owner.name"])
async def read(how: str) -> str:
    "Read a record."
    if how == "long":
        return json.dumps({**OWNER, "rest": "x" * 20_000})
    return json.dumps({"record": json.dumps(OWNER)}) if how == "nested" else json.dumps(OWNER)


def register(registry):
    registry.add(read)
"""


async def test_sensitive_fields_are_private_in_json_that_stands_in_texts(tmp_path: Path) -> None:
    def ask(request: UpstreamRequest) -> Any:
        last = request.messages[-1]
        if last["role"] == "user":
            return answer(calls=[call("c1", "read", json.dumps({"how": last["content"]}))])
        return answer("ok")

    tools = {"default": ["read"], "offer": "always"}
    async with (
        ScriptedUpstream(then=ask) as upstream,
        serving(tmp_path, native_config(upstream.base_url, tools=tools), plugins={"texts": IN_TEXT}) as served,
        served.sdk() as sdk,
    ):
        for how in ("whole", "nested", "long"):
            done = await sdk.chat.completions.create(model="m", messages=user(how))
            told = await trace_of(served, done)
            for value in ("zebra-4-kilo", "Wang Fang"):
                assert value not in wired(upstream.requests[-1]), how
                assert value not in told, how
            assert len(placeholders(upstream.requests[-1])) == 2, how


async def test_what_a_tool_told_in_confidence_stays_private_where_its_result_is_gone(tmp_path: Path) -> None:
    """The client sends a part of the conversation, or another beginning: the tool's result is in it no more."""

    def script(request: UpstreamRequest) -> Any:
        last = request.messages[-1]
        if last["content"] == "Who?":
            return answer(calls=[call("c1", "lookup", json.dumps({"phone": "1", "address": "9 Elm Street"}))])
        return answer(f"{placeholders(request)[0]} is it" if last["role"] == "tool" else "ok")

    async with ScriptedUpstream(then=script) as upstream:
        config = native_config(upstream.base_url, tools={"default": ["lookup"], "offer": "always"})
        conversation: list[dict[str, Any]] = [*user("hello"), {"role": "assistant", "content": "ok"}, *user("Who?")]

        async def ask(served: Served, messages: list[dict[str, Any]]) -> str:
            done = (await served.post("/v1/chat/completions", {"model": "m", "messages": messages}))[2]
            return str(done["choices"][0]["message"]["content"])

        async with serving(tmp_path, config, plugins={"people": PLUGIN}) as served:
            said = await ask(served, conversation)
            assert said == "9 Elm Street is it"
            conversation += [{"role": "assistant", "content": said}, *user("Thanks")]
            await ask(served, conversation[2:])
            assert len(placeholders(upstream.requests[-1])) == 1
        # Another process knows of it too.
        async with serving(tmp_path, config, plugins={"people": PLUGIN}) as served:
            await ask(served, [{"role": "system", "content": "Be brief."}, *conversation])
            await ask(served, conversation[-2:])
        assert all("9 Elm Street" not in wired(request) for request in upstream.requests)


GUARDED = """
from gateway.tools import ToolFatal, tool


@tool(sensitive=["address"], writes=True, needs_confirmation=True)
async def send(address: str) -> dict:
    "Send a parcel."
    return {"sent": True}


@tool(sensitive=["address"])
async def find(address: str) -> dict:
    "Find a place."
    raise ToolFatal(f"there is no {address}")


def register(registry):
    registry.add(send, find)
"""


async def test_what_waits_and_what_fails_is_told_without_sensitive_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command that reads the database, by the audit log, and by the log."""
    street = {"address": "9 Elm Street"}

    def ask(request: UpstreamRequest) -> Any:
        last = request.messages[-1]
        name = str(last["content"]).removesuffix(" it")
        return answer(calls=[call(f"c{name}", name, json.dumps(street))]) if last["role"] == "user" else answer("ok")

    config: dict[str, Any] = {"tools": {"default": ["send", "find"], "offer": "always"}, "approvals": {"wait_s": 0}}
    files = ("--config", str(tmp_path / "gateway.yaml"), "--routes", str(tmp_path / "routes"))
    monkeypatch.chdir(tmp_path)
    async with (
        ScriptedUpstream(then=ask) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **config), plugins={"guarded": GUARDED}) as served,
    ):
        await served.post("/v1/chat/completions", {"model": "m", "messages": user("send it")})
        status, _, body = await served.post("/v1/chat/completions", {"model": "m", "messages": user("find it")})
        assert (status, body["error"]["message"]) == (502, "there is no 9 Elm Street")
        logged = capsys.readouterr().err
        assert "there is no [private]" in logged
        assert await asyncio.to_thread(cli.main, ["approvals", *files]) == 0
        listed = capsys.readouterr().out
        assert PLACEHOLDER.search(listed), listed
        audited = json.dumps((await served.get("/v1/audit"))[2])
        assert "send" in audited
        assert "9 Elm Street" not in logged + listed + audited
        # Where a plugin is broken nobody knows what is sensitive.
        (tmp_path / "plugins" / "guarded.py").write_text("x =")
        assert await asyncio.to_thread(cli.main, ["approvals", *files]) == 0
        assert "send" in (listed := capsys.readouterr().out)
