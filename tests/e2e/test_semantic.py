"""Decisions by meaning over real sockets, with the encoder of an embeddings server: alone, broken, and over replicas."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.replicas import Replica, replica, until
from tests.replicas import config as shared_config
from tests.replies import answer
from tests.routing.embeddings_server import Embeddings, embeddings
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream
from tests.valkey import valkey

ORDERS = {"model": "m", "utterances": ["where is my parcel", "where is my package", "parcel not here"]}
MUSIC = {"model": "m", "utterances": ["put on some jazz", "start a jazz song", "some jazz song"]}
SECRETS = ("TEST-SECRET-123", "TEST-SECRET-456", "TEST-SECRET-789")


def semantic(server: Embeddings, **more: Any) -> dict[str, Any]:
    encoder = {
        "base_url": f"{server.url}?key={SECRETS[0]}",
        "model": "embed-1",
        "api_key": SECRETS[1],
        "headers": {"x-api-key": SECRETS[2]},
    }
    return {"enabled": True, "encoder": encoder, "timeout_ms": 10_000, **more}


def asks(text: str) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}]}


async def went(gateway: Served, text: str) -> tuple[str, str, str]:
    """Route, strategy, and the id of the trace."""
    status, said, found = await gateway.post("/v1/chat/completions", asks(text))
    assert status == 200, found
    return said["x-gateway-route"], said["x-gateway-strategy"], said["x-gateway-trace"]


async def prepared(gateway: Served) -> None:
    async def settled() -> bool:
        return bool(gateway.gateway.versions.current.router.ready)  # type: ignore[attr-defined]

    await until(settled)


async def test_a_prompt_too_long_for_the_encoder_is_answered_and_a_broken_encoder_is_no_error(tmp_path: Path) -> None:
    """B004."""
    async with embeddings() as server, ScriptedUpstream(then=answer("ok")) as upstream:
        config = native_config(upstream.base_url, router={"default": "m", "semantic": semantic(server)})
        async with serving(tmp_path, config, {"orders": ORDERS, "music": MUSIC}) as gateway:
            await prepared(gateway)
            server.longest = 512
            route, strategy, _ = await went(gateway, "where is my parcel " * 3200)
            assert (route, strategy) == ("orders", "semantic")
            assert len(upstream.requests[-1].messages[-1]["content"]) == 19 * 3200
            server.answer = lambda count: '{"data": [' + ",".join(["{}"] * count) + "]}"
            _, strategy, trace_id = await went(gateway, "put on some jazz now")
            assert strategy == "default"
            made = [event for event in (await gateway.trace(trace_id))["events"] if event["type"] == "decision.made"]
            assert made[0]["data"]["reason"] == "encoder_failed"
            server.answer = None
            assert (await went(gateway, "put on some jazz now"))[0] == "music"


async def test_no_secret_of_the_encoder_is_shown_anywhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """B013."""
    async with embeddings() as server, ScriptedUpstream(then=answer("ok")) as upstream:
        server.statuses = [401, 404]
        config = native_config(
            upstream.base_url,
            router={"default": "m", "semantic": semantic(server)},
            observe={"log": {"format": "json", "level": "debug", "requests": True}},
        )
        seen: list[str] = []
        async with serving(tmp_path, config, {"orders": ORDERS, "music": MUSIC}) as gateway:
            await prepared(gateway)
            for path in ("/v1/reload", "/v1/route", "/v1/chat/completions"):
                _, headers, body = await gateway.post(path, asks("where is my parcel"))
                seen += [str(headers), str(body)]
                if "x-gateway-trace" in headers and path.endswith("completions"):
                    seen.append(str(await gateway.trace(headers["x-gateway-trace"])))
            for path in ("/v1/config", "/metrics", "/readyz", "/v1/models"):
                seen.append(str(await gateway.get(path)))
        logged = "".join(capfd.readouterr())
        assert "semantic routing is off" in logged
        for secret in SECRETS:
            assert secret not in logged
            assert not [text for text in seen if secret in text]
        assert server.bodies
        assert server.headers[-1]["x-api-key"] == SECRETS[2]


async def test_three_replicas_decide_alike_by_meaning_and_never_by_an_older_version(tmp_path: Path) -> None:
    texts = ["where is my parcel", "put on some jazz", "some parcel", "my jazz", "no such thing"]
    async with embeddings() as server:
        settings = shared_config(lease_s=15)
        settings["router"]["semantic"] = semantic(server)
        with valkey() as shared:
            async with contextlib.AsyncExitStack() as stack:
                replicas = [
                    await stack.enter_async_context(
                        replica(tmp_path / name, shared, settings, {"orders": ORDERS, "music": MUSIC})
                    )
                    for name in ("one", "two", "three")
                ]
                for moved in ("music", "orders"):
                    stop = asyncio.Event()
                    load = [asyncio.create_task(asked(each, texts, stop)) for each in replicas]
                    # The same text, another route: what jazz belongs to changes with each version.
                    other = "orders" if moved == "music" else "music"
                    routes = {moved: ORDERS, other: MUSIC}
                    replicas[0].write(**routes)
                    version = (await replicas[0].reload())["version"]
                    after = [await decision(each, text) for text in texts for each in replicas]
                    stop.set()
                    by_version: dict[tuple[str, str], set[Any]] = {}
                    for found in [*after, *[one for task in load for one in await task]]:
                        by_version.setdefault((found["version"], found["text"]), set()).add(
                            (found["route"], found["strategy"], found["score"], found["margin"], found["reason"])
                        )
                    assert {found["version"] for found in after} == {version}
                    assert {len(decisions) for decisions in by_version.values()} == {1}
                    assert by_version[version, "where is my parcel"].pop()[:2] == (moved, "semantic")
                    assert by_version[version, "put on some jazz"].pop()[:2] == (other, "semantic")


async def decision(gateway: Replica, text: str) -> dict[str, Any]:
    status, found = await gateway.post("/v1/route", asks(text))
    assert status == 200, found
    return {**found, "text": text}


async def asked(gateway: Replica, texts: list[str], stop: asyncio.Event) -> list[dict[str, Any]]:
    """Decisions made until told to stop, at least one for each text."""
    found = []
    while not stop.is_set():
        found += [await decision(gateway, text) for text in texts]
    return found
