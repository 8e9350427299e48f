"""A model that calls `web_fetch` and an HTTP tool with hostile addresses, through a whole gateway: none is reached.

A canary listens on loopback, and every connection of this process is written down. The far sides of model and redirects are
on loopback too: the model's server is a backend's, which no guard judges; the redirects' host is the one private name that is
allowed.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.security.test_outbound import HOSTILE, Server, redirect, reply
from tests.security.test_outbound import serving as serving_raw
from tests.serving import ROOT, native_config, serving
from tests.upstream import ScriptedUpstream, UpstreamRequest, answer, call

# What an attacker's own name servers may say: one thing first and another later, or several at once.
NAMES: dict[str, list[list[str]]] = {
    "private.test": [["127.0.0.1"]],
    "mapped.test": [["::ffff:127.0.0.1"]],
    "six.test": [["::1"]],
    "metadata.test": [["169.254.169.254"]],
    # Public when it is judged and private when it is asked again; nothing answers at the public one.
    "rebind.test": [["93.184.215.14"], ["127.0.0.1"]],
    "flip.test": [["127.0.0.1"], ["93.184.215.14"]],
    "both.test": [["169.254.169.254", "127.0.0.1"]],
    "nat64.test": [["64:ff9b::7f00:1"]],
    "xn--mnchen-3ya.test": [["127.0.0.1"]],
    "redirects.test": [["127.0.0.1"]],
}

BY_NAME = [
    "http://private.test:PORT/",
    "http://PRIVATE.test.:PORT/",
    "http://mapped.test:PORT/",
    "http://six.test:PORT/",
    "http://metadata.test:PORT/",
    "http://both.test:PORT/",
    "http://nat64.test:PORT/",
    "http://m\u00fcnchen.test:PORT/",
    "http://rebind.test:PORT/",
    "http://rebind.test:PORT/",
    "http://flip.test:PORT/",
]

REDIRECTS = [
    "http://127.0.0.1:PORT/",
    "http://[::1]:PORT/",
    "http://[::ffff:127.0.0.1]:PORT/",
    "http://2130706433:PORT/",
    "http://0x7f.1:PORT/",
    "http://0177.0.0.1:PORT/",
    "http://private.test:PORT/",
    "http://rebind.test:PORT/",
    "http://localhost:PORT/",
    "//127.0.0.1:PORT/",
    "http://169.254.169.254/latest/meta-data/",
    "http://user:password@redirects.test:PORT/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:PORT/_x",
]


@asynccontextmanager
async def canary(port: int = 0) -> AsyncIterator[Server]:
    """A server on every loopback address that the machine has, IPv6's too; it must see no connection."""
    server = Server()
    server.answers = {"/": reply(b"CANARY")}
    listening = await asyncio.start_server(server.serve, "0.0.0.0", port)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        six = await asyncio.start_server(server.serve, "::1", server.port)
    except OSError:
        six = None
    try:
        yield server
    finally:
        for each in (listening, six):
            if each is not None:
                each.close()
                await each.wait_closed()


def resolver() -> Callable[..., list[Any]]:
    """`socket.getaddrinfo` with the attacker's names in it."""
    system = socket.getaddrinfo
    asked: dict[str, int] = {}

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else str(host)
        answers = NAMES.get(name.lower().rstrip("."))
        if answers is None:
            return system(host, port, *args, **kwargs)
        number = asked[name] = asked.get(name, -1) + 1
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in answers[min(number, len(answers) - 1)]
        ]

    return getaddrinfo


def scripted(urls: dict[str, str], tool: str) -> Callable[[UpstreamRequest], Any]:
    """A model that calls the tool with the address that the question stands for, and then repeats what it was told."""

    def model(request: UpstreamRequest) -> Any:
        last = request.messages[-1]
        if last["role"] == "tool":
            return answer(last["content"])
        return answer(calls=[call(f"c{request.number}", tool, json.dumps({"url": urls[last["content"]]}))])

    return model


SERVICES = """
openapi: 3.0.0
servers: [{url: "http://127.0.0.1:PORT"}]
paths:
  /:
    get: {operationId: inside, summary: Look inside.}
"""


async def test_b031_sixty_hostile_addresses_are_not_reached_through_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B032."""
    monkeypatch.setattr(socket, "getaddrinfo", resolver())
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    connected: list[Any] = []
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def noted(sock: Any, address: Any) -> None:
        connected.append(address)
        if address[0] == "93.184.215.14":
            raise OSError("nobody there")
        await connect(sock, address)

    monkeypatch.setattr(loop, "sock_connect", noted)
    async with canary() as bird, serving_raw() as far:
        urls = [*HOSTILE, *BY_NAME]
        for number, target in enumerate(REDIRECTS):
            far.answers[f"/{number}"] = redirect(target.replace("PORT", str(bird.port)))
            urls.append(far.url(f"/{number}", "redirects.test"))
        for number in range(30):
            far.answers[f"/chain/{number}"] = redirect(f"/chain/{number + 1}")
        far.answers["/chain/30"] = redirect(f"http://127.0.0.1:{bird.port}/")
        urls.append(far.url("/chain/0", "redirects.test"))
        far.answers["/fine"] = reply(b"REACHED")
        asked = {f"question {n}": url.replace("PORT", str(bird.port)) for n, url in enumerate(urls)}
        asked["question fine"] = far.url("/fine", "redirects.test")
        (tmp_path / "inside.yaml").write_text(SERVICES.replace("PORT", str(bird.port)))
        async with ScriptedUpstream(then=scripted(asked, "web_fetch")) as upstream:
            config = native_config(
                upstream.base_url,
                models={
                    "m": {"backends": ["b1"], "tools": ["web_fetch"]},
                    "service": {"backends": ["b1"], "tools": ["inside"]},
                },
            )
            config["tools"] = {
                "plugins": [str(ROOT / "plugins" / "web.py")],
                "http": {"inside": {"openapi": "inside.yaml"}},
                "outbound": {"allow_private": ["redirects.test"]},
            }
            async with serving(tmp_path, config) as gateway:
                told: dict[str, Any] = {}
                for question in asked:
                    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
                    status, _, got = await gateway.post("/v1/chat/completions", body)
                    assert status == 200, got
                    told[question] = json.loads(got["choices"][0]["message"]["content"])
                own = (upstream.port, far.port, int(gateway.url.rsplit(":", 1)[1]))
                # A service whose own description leads inside is an address like any other.
                upstream._then = lambda request: (
                    answer(request.messages[-1]["content"])
                    if request.messages[-1]["role"] == "tool"
                    else answer(calls=[call("c", "inside", "{}")])
                )
                body = {"model": "service", "messages": [{"role": "user", "content": "look"}]}
                _, _, got = await gateway.post("/v1/chat/completions", body)
                inside = json.loads(got["choices"][0]["message"]["content"])
    assert len(urls) >= 60
    assert told.pop("question fine")["result"]["text"] == "REACHED"
    assert [asked[question] for question, each in told.items() if each["ok"]] == []
    assert "CANARY" not in json.dumps(told)
    assert "address not allowed" in inside["error"]
    assert bird.connections == 0
    assert {address for address in connected if address[1] not in own} <= {("93.184.215.14", bird.port)}
    refused = [asked[q] for q, each in told.items() if "not allowed" in each["error"] or "not a URL" in each["error"]]
    assert len(refused) >= 60
