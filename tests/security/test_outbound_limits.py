"""What the outbound guard bounds beside addresses: how many requests, whose names, which bodies."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest
from yarl import URL

from gateway.config.models import OutboundConfig
from gateway.security.outbound import OutboundFailed, OutboundGuard, OutboundRefused
from gateway.security.outbound_slots import Slots
from tests.security.test_outbound import Server, guard, redirect, reply, serving


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


async def test_no_more_requests_go_to_one_host_or_in_all_than_allowed() -> None:
    slots = Slots(per_host=2, total=3)
    inside: list[str] = []
    most: dict[str, int] = {}
    free = asyncio.Event()

    async def request(host: str) -> None:
        async with slots.taken(host):
            inside.append(host)
            most[host] = max(most.get(host, 0), inside.count(host))
            most["all"] = max(most.get("all", 0), len(inside))
            await free.wait()
            inside.remove(host)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for host in ["a"] * 5 + ["b"] * 5:
            group.create_task(request(host))
        for _ in range(20):
            await asyncio.sleep(0)
        free.set()
    assert most == {"a": 2, "b": 1, "all": 3}
    assert slots._hosts == {}


async def test_a_request_that_finds_no_place_in_time_fails_and_frees_it() -> None:
    held = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    made = OutboundGuard(OutboundConfig(allow_private=("127.0.0.1",), per_domain=1))
    first = asyncio.create_task(made.fetch(url, timeout_s=30))
    try:
        await asyncio.sleep(0)
        with pytest.raises(OutboundFailed, match="no answer within"):
            await made.fetch(url, timeout_s=0.2)
        assert made._slots._users == {"127.0.0.1": 1}
    finally:
        first.cancel()
        held.set()
        await asyncio.wait({first})
        listening.close()
        await listening.wait_closed()


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.1.1",
        "fe80::1",
        "fd00:ec2::254",
        "100.100.100.200",
        "224.0.0.1",
        "0.0.0.0",
        "::",
        "192.0.2.1",
        "64:ff9b::a9fe:a9fe",
    ],
)
def test_b031_a_named_internal_host_may_not_lead_to_metadata_or_link_local_addresses(address: str) -> None:
    assert not guard("intern.test").allows(address, "intern.test")
    assert guard(address).allows(address, "intern.test")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "fd12::1", "::ffff:10.1.2.3", "93.184.215.14"])
def test_a_named_internal_host_may_lie_inside_or_outside(address: str) -> None:
    assert guard("intern.test").allows(address, "intern.test")


@pytest.mark.parametrize("allowed", ["m\u00fcnchen.test", "xn--mnchen-3ya.test", "*.test"])
def test_domains_are_compared_as_they_are_resolved(allowed: str) -> None:
    made = guard(domains=(allowed,))
    for host in ("m\u00fcnchen.test", "M\u00dcNCHEN.test", "xn--mnchen-3ya.test"):
        made.refuse_url(URL(f"http://{host}/"))
    with pytest.raises(OutboundRefused, match="domain"):
        guard(domains=("example.com",)).refuse_url(URL("http://ex\u0430mple.com/"))


@pytest.mark.parametrize("status", ["307 Temporary", "308 Permanent"])
async def test_a_body_is_not_sent_on_to_another_host(status: str) -> None:
    async with serving() as one, serving() as other:
        one.answers = {"/": redirect(other.url("/"), status)}
        with pytest.raises(OutboundRefused, match="another host"):
            await guard("127.0.0.1").fetch(one.url("/"), method="POST", body=b"private")
        assert other.connections == 0


async def test_proxies_and_passwords_of_the_environment_are_not_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.answers = {"/": reply(b"direct")}
    assert (await guard("127.0.0.1").fetch(server.url("/"))).text == "direct"


async def test_a_compressed_answer_that_is_cut_off_is_no_answer(server: Server) -> None:
    whole = gzip.compress(b"hello " * 1000)
    server.answers = {"/": reply(whole[:-10], Content_Encoding="gzip")}
    with pytest.raises(OutboundFailed, match="broke off"):
        await guard("127.0.0.1").fetch(server.url("/"))


async def test_a_request_that_was_never_sent_says_so(server: Server) -> None:
    port = server.port
    gone = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    free = gone.sockets[0].getsockname()[1]
    gone.close()
    await gone.wait_closed()
    for url, sent in ((f"http://127.0.0.1:{free}/", False), (f"http://127.0.0.1:{port}/broken", True)):
        server.answers = {"/broken": b""}
        with pytest.raises(OutboundFailed) as caught:
            await guard("127.0.0.1").fetch(url)
        assert caught.value.sent is sent


async def test_a_name_that_nobody_knows_fails_without_its_address() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    made = OutboundGuard(OutboundConfig(), resolve=unknown)
    with pytest.raises(OutboundFailed) as caught:
        await made.fetch("http://nowhere.test/")
    assert not caught.value.sent
