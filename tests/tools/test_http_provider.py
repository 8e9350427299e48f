"""HTTP tools over real sockets, alone and through a whole gateway."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pydantic
import pytest

from gateway.config.http_tools import HttpServiceConfig
from gateway.config.models import OutboundConfig
from gateway.errors import ConfigError
from gateway.security.outbound import OutboundGuard
from gateway.tools.outcome import CallFailed, TransportFailed
from gateway.tools.providers.http import HttpProvider
from gateway.tools.spec import ToolContext
from tests.serving import native_config, serving
from tests.tools.workshop import context, open_workshop
from tests.upstream import Reply, ScriptedUpstream, UpstreamRequest, answer, body, call, hang_up

SECRET = "sk-live-4711-secret"

TOOLS: dict[str, Any] = {
    "find_order": {
        "description": "Look up an order when the user names one.",
        "path": "/orders/{id}",
        "parameters": {"id": {"type": "string"}, "fields": {"type": "string", "default": ""}},
    },
    "pay": {
        "description": "Pay.",
        "method": "POST",
        "path": "/payments",
        "parameters": {"amount": {"type": "integer"}, "dry": {"type": "boolean", "default": False}},
        "query": ["dry"],
    },
    "forget": {"description": "Delete.", "method": "DELETE", "path": "/orders/{id}", "parameters": {"id": {}}},
}


def service(url: str, **config: Any) -> HttpServiceConfig:
    return HttpServiceConfig.model_validate({"base_url": url, "tools": TOOLS, **config})


@asynccontextmanager
async def provider(
    *script: Reply, then: Reply | None = None, private: tuple[str, ...] = ("127.0.0.1",), **config: Any
) -> AsyncIterator[tuple[HttpProvider, ScriptedUpstream]]:
    async with ScriptedUpstream(*script, then=then) as far:
        guard = OutboundGuard(OutboundConfig(allow_private=private))
        made = HttpProvider("shop", service(far.base_url, **config), guard, timeout_s=10)
        await made.open()
        yield made, far


async def test_a_described_tool_is_listed_with_its_schema_and_what_it_does() -> None:
    async with provider() as (made, _):
        find, pay, forget = await made.list()
    assert find.parameters["required"] == ["id"]
    assert find.origin == "tools.http.shop.tools.find_order"
    assert [each.writes for each in (find, pay, forget)] == [False, True, True]
    assert [each.deletes for each in (find, pay, forget)] == [False, False, True]
    assert len({each.spec_hash for each in (find, pay, forget)}) == 3
    elsewhere = HttpProvider("shop", service("https://elsewhere.test"), OutboundGuard(OutboundConfig()), timeout_s=10)
    assert (await elsewhere.list())[0].spec_hash != find.spec_hash


async def test_arguments_go_where_they_belong() -> None:
    async with provider(then=body({"ok": 1})) as (made, far):
        assert await made.call("find_order", {"id": "A/1?x", "fields": "a b"}, context()) == {"ok": 1}
        await made.call("pay", {"amount": 5, "dry": True}, context())
        await made.call("forget", {"id": "7"}, context())
    get, post, delete = far.requests
    assert (get.method, get.path) == ("GET", "/v1/orders/A%2F1%3Fx?fields=a%20b")
    assert (post.method, post.path, post.json) == ("POST", "/v1/payments?dry=true", {"amount": 5})
    assert (delete.method, delete.path, delete.raw) == ("DELETE", "/v1/orders/7", b"")
    assert [r.headers.get("idempotency-key") for r in far.requests] == [None, "call", "call"]


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (body([1, None, "ä"]), [1, None, "ä"]),
        (body(b"plain", headers={"content-type": "text/plain"}), "plain"),
        (body(b"<a/>", headers={"content-type": "application/xml"}), "<a/>"),
        (body(b"{broken", headers={"content-type": "application/json"}), "{broken"),
        (body(b"", status=204), {"status": 204}),
        (body(b'{"a":1}', headers={"content-type": "application/problem+json; charset=utf-8"}), {"a": 1}),
    ],
)
async def test_answers_are_json_or_text(reply: Reply, value: Any) -> None:
    async with provider(reply) as (made, _):
        assert await made.call("find_order", {"id": "1"}, context()) == value


async def test_what_is_no_text_is_said_to_be_none() -> None:
    async with provider(body(b"\x89PNG", headers={"content-type": "image/png"})) as (made, _):
        with pytest.raises(CallFailed, match="image/png, which is no text"):
            await made.call("find_order", {"id": "1"}, context())


async def test_a_refusal_shows_the_model_what_the_service_said() -> None:
    async with provider(body({"message": "no order 1"}, status=404)) as (made, _):
        with pytest.raises(CallFailed, match=r'^`find_order` answered 404: {"message":"no order 1"}$'):
            await made.call("find_order", {"id": "1"}, context())


@pytest.mark.parametrize(
    ("reply", "processed", "wait"),
    [
        (body({}, status=429, headers={"retry-after": "7"}), False, 7.0),
        (body({}, status=503), True, None),
        (body({}, status=500, headers={"retry-after": "soon"}), True, None),
        (hang_up(), True, None),
    ],
)
async def test_a_service_that_fails_is_a_transport_failure_that_says_whether_it_may_have_acted(
    reply: Reply, processed: bool, wait: float | None
) -> None:
    async with provider(reply) as (made, _):
        with pytest.raises(TransportFailed) as caught:
            await made.call("pay", {"amount": 1}, context())
    assert (caught.value.processed, caught.value.retry_after_s) == (processed, wait)


async def test_a_service_that_is_not_there_has_surely_done_nothing() -> None:
    async with provider() as (made, _):
        pass
    with pytest.raises(TransportFailed) as caught:
        await made.call("pay", {"amount": 1}, context())
    assert not caught.value.processed
    assert "127.0.0.1" not in str(caught.value)


async def test_a_private_service_is_not_reached_unless_it_is_allowed() -> None:
    async with provider(private=()) as (made, far):
        with pytest.raises(CallFailed, match="address not allowed"):
            await made.call("find_order", {"id": "1"}, context())
    assert far.requests == []


@pytest.mark.parametrize("scheme", ["Bearer ", "Basic ", ""])
@pytest.mark.parametrize("status", [200, 404, 500])
async def test_credentials_are_sent_and_never_shown(scheme: str, status: int) -> None:
    echo = body({"you sent": f"{scheme}{SECRET}", SECRET: [f"x{SECRET}y"]}, status=status)
    async with provider(echo, headers={"Authorization": f"{scheme}{SECRET}", "X-Client": "app"}) as (made, far):
        try:
            shown = json.dumps(await made.call("find_order", {"id": "1"}, context()))
        except (CallFailed, TransportFailed) as error:
            shown = str(error)
    assert far.requests[0].headers["authorization"] == f"{scheme}{SECRET}"
    assert SECRET not in shown
    assert "[redacted]" in shown


async def test_credentials_do_not_follow_a_redirect_to_another_host() -> None:
    async with ScriptedUpstream(body({"ok": 1})) as other:
        moved = Reply(302, (("location", f"http://127.0.0.1:{other.base_url.split(':')[2].split('/')[0]}/x"),))
        async with provider(moved, headers={"X-Api-Key": SECRET}) as (made, far):
            await made.call("find_order", {"id": "1"}, context())
    assert far.requests[0].headers["x-api-key"] == SECRET
    assert "x-api-key" not in other.requests[0].headers


async def test_only_forwarded_headers_of_the_client_travel_on() -> None:
    told = ToolContext(None, "k", None, None, "0" * 32, "call", headers={"x-tenant": "t1", "x-other": "o1"})
    async with provider(body({}), forward_headers=["X-Tenant"]) as (made, far):
        assert (await made.list())[0].forward_headers == ("x-tenant",)
        await made.call("find_order", {"id": "1"}, told)
    assert far.requests[0].headers["x-tenant"] == "t1"
    assert "x-other" not in far.requests[0].headers


@pytest.mark.parametrize(
    "wrong",
    [
        {"forward_headers": ["Authorization"]},
        {"forward_headers": ["x-api-key"]},
        {"forward_headers": ["x-gateway-user"]},
        {"forward_headers": ["a b"]},
        {"headers": {"x-a": "1"}, "forward_headers": ["X-A"]},
        {"headers": {"x-a": "a\nb"}},
        {"base_url": "ftp://h"},
        {"base_url": "http://u:p@h"},
        {"base_url": None},
        {"tools": {}},
        {"operations": ["a"]},
        {"tools": {"t": {"description": "d", "path": "/{x}"}}},
        {"tools": {"t": {"description": "d", "path": "x"}}},
        {"tools": {"t": {"description": "d", "path": "/x", "method": "DELETE", "writes": False}}},
    ],
)
def test_what_cannot_be_meant_is_refused_and_no_secret_is_shown(wrong: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        service("http://127.0.0.1:1", **wrong)


async def test_a_tool_runs_through_the_courier_with_its_arguments_validated(tmp_path: Path) -> None:
    async with ScriptedUpstream(body({"state": "sent"})) as far:
        guard = OutboundGuard(OutboundConfig(allow_private=("127.0.0.1",)))
        made = HttpProvider("shop", service(far.base_url), guard, timeout_s=10)
        async with open_workshop([made]) as workshop:
            assert not (await workshop.call("find_order", {"number": "1"})).ok
            assert await workshop.result("find_order", id="1") == {"state": "sent"}
    assert len(far.requests) == 1


async def test_an_openapi_file_that_cannot_be_read_is_told_with_its_service(tmp_path: Path) -> None:
    config = HttpServiceConfig(openapi="none.yaml")
    made = HttpProvider("crm", config, OutboundGuard(OutboundConfig()), timeout_s=10, root=tmp_path)
    with pytest.raises(
        ConfigError, match=r"the OpenAPI file .*none.yaml of `tools.http.crm` cannot be read: No such file"
    ):
        await made.list()


OPENAPI = """
openapi: 3.1.0
paths:
  /customers/{id}:
    get:
      operationId: get_customer
      summary: Look up a customer.
      parameters: [{name: id, in: path, required: true, schema: {type: string}}]
"""

CLIENT = {
    "Authorization": "Bearer gw-KEY-1",
    "Cookie": "s=COOKIE-1",
    "X-Internal": "INTERNAL-1",
    "x-forwarded-for": "10.1.2.3",
    "traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
    "baggage": "user=BAGGAGE-1",
    "user-agent": "AGENT-1",
    "x-tenant": "TENANT-1",
}


async def test_headers_of_the_client_reach_an_http_tool_only_where_its_configuration_names_them(tmp_path: Path) -> None:
    """B043."""
    (tmp_path / "crm.yaml").write_text(OPENAPI)
    asked = [call("a", "get_customer", '{"id": "7"}'), call("b", "find_order", '{"id": "8"}')]
    async with (
        ScriptedUpstream(answer(calls=asked), answer("done")) as upstream,
        ScriptedUpstream(body({"name": "Ann"})) as crm,
        ScriptedUpstream(body({"state": "sent"})) as shop,
    ):
        config = native_config(
            upstream.base_url,
            models={"m": {"backends": ["b1"], "tools": ["get_customer", "find_order"]}},
            keys={"static": {"app": {"key": "gw-KEY-1"}}},
        )
        config["tools"] |= {
            "outbound": {"allow_private": ["127.0.0.1"]},
            "http": {
                "crm": {"openapi": "crm.yaml", "base_url": crm.base_url, "forward_headers": ["x-tenant"]},
                "shop": {"base_url": shop.base_url, "tools": TOOLS, "headers": {"Authorization": f"Bearer {SECRET}"}},
            },
        }
        async with serving(tmp_path, config) as gateway:
            request = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            async with gateway.http.post(
                f"{gateway.url}/v1/chat/completions", json=request, headers=CLIENT
            ) as response:
                assert response.status == 200, await response.text()
    results = [json.loads(m["content"]) for m in upstream.requests[1].messages if m["role"] == "tool"]
    assert [each["result"] for each in results] == [{"name": "Ann"}, {"state": "sent"}]
    [to_crm], [to_shop] = crm.requests, shop.requests
    assert to_crm.headers["x-tenant"] == "TENANT-1"
    assert "authorization" not in to_crm.headers
    assert to_shop.headers["authorization"] == f"Bearer {SECRET}"
    values = ("gw-KEY-1", "COOKIE-1", "INTERNAL-1", "10.1.2.3", "BAGGAGE-1", "AGENT-1", "0123456789a")
    for request_seen in (to_crm, to_shop, *upstream.requests):
        everything = json.dumps(dict(request_seen.headers)) + request_seen.raw.decode()
        assert [value for value in values if value in everything] == []
    assert all("TENANT-1" not in json.dumps(dict(seen.headers)) for seen in (to_shop, *upstream.requests))


async def test_a_retry_with_another_tenant_is_another_request(tmp_path: Path) -> None:
    """B043."""
    (tmp_path / "crm.yaml").write_text(OPENAPI)

    def model(request: UpstreamRequest) -> Reply:
        last = request.messages[-1]
        return (
            answer(last["content"])
            if last["role"] == "tool"
            else answer(calls=[call("a", "crm__get_customer", '{"id": "7"}')])
        )

    async with (
        ScriptedUpstream(then=model) as upstream,
        ScriptedUpstream(then=body({"name": "Ann"})) as crm,
    ):
        config = native_config(upstream.base_url, models={"m": {"backends": ["b1"], "tools": ["crm__get_customer"]}})
        config["tools"] |= {
            "outbound": {"allow_private": ["127.0.0.1"]},
            "http": {"crm": {"openapi": "crm.yaml", "base_url": crm.base_url, "forward_headers": ["x-tenant"]}},
        }
        async with serving(tmp_path, config) as gateway:
            request = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            told = []
            for tenant, key in (("one", "k1"), ("one", "k1"), ("two", "k1")):
                status, _, got = await gateway.post(
                    "/v1/chat/completions", request, x_tenant=tenant, Idempotency_Key=key
                )
                told.append(json.loads(got["choices"][0]["message"]["content"])["result"] if status == 200 else status)
    assert told == [{"name": "Ann"}, {"name": "Ann"}, 409]
    assert len(crm.requests) == 1


async def test_two_services_may_call_their_operations_alike(tmp_path: Path) -> None:
    """B027."""
    (tmp_path / "crm.yaml").write_text(OPENAPI)
    guard = OutboundGuard(OutboundConfig())
    config = HttpServiceConfig(openapi="crm.yaml", base_url="https://crm.test")
    made = [HttpProvider(name, config, guard, timeout_s=10, root=tmp_path) for name in ("crm", "old.crm")]
    async with open_workshop(made) as workshop:
        registry = workshop.registry
        assert list(registry.specs) == ["crm__get_customer", "old_x2e_crm__get_customer"]
        assert registry.find("get_customer") is None
        assert registry.find("old.crm__get_customer") is registry.specs["old_x2e_crm__get_customer"]


@pytest.mark.parametrize("reply", [hang_up(), body({}, status=500), body({"paid": 1}).reset_at(3)])
async def test_a_payment_whose_answer_is_lost_is_made_once_and_said_to_be_uncertain(reply: Reply) -> None:
    """B041."""
    async with ScriptedUpstream(reply, then=body({"paid": 1})) as far:
        guard = OutboundGuard(OutboundConfig(allow_private=("127.0.0.1",)))
        shop = HttpProvider("shop", service(far.base_url), guard, timeout_s=10, retries=2)
        async with open_workshop([shop], backoff_s=0) as workshop:
            outcome = await workshop.call("pay", {"amount": 1})
            assert not outcome.ok
            assert outcome.error is not None
            assert "whether it took effect is not known" in outcome.error
            assert workshop.events("tool.finished")[0]["uncertain"] is True
            assert len(far.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        body(b"x" * 2_100_000, headers={"content-type": "text/plain"}),
        body({}, headers={"content-encoding": "br"}),
        body(b"", status=303, headers={"location": "http://169.254.169.254/latest"}),
        # Nobody listens there: the second request was not sent, the first one was.
        body(b"", status=303, headers={"location": "http://127.0.0.1:1/"}),
    ],
)
async def test_b041_a_payment_whose_answer_cannot_be_used_was_no_failure(reply: Reply) -> None:
    async with ScriptedUpstream(reply, then=body({"paid": 1})) as far:
        guard = OutboundGuard(OutboundConfig(allow_private=("127.0.0.1",)))
        shop = HttpProvider("shop", service(far.base_url), guard, timeout_s=10, retries=2)
        async with open_workshop([shop], backoff_s=0, breaker_failures=1) as workshop:
            outcome = await workshop.call("pay", {"amount": 1})
            assert "whether it took effect is not known" in str(outcome.error)
            assert len(far.requests) == 1


async def test_what_a_service_answers_a_payment_with_need_not_be_text() -> None:
    async with provider(body(b"%PDF", headers={"content-type": "application/pdf"})) as (made, _):
        answered = await made.call("pay", {"amount": 1}, context())
    assert answered == {"status": 200, "note": "it answered with application/pdf, which is not shown"}


@pytest.mark.parametrize("reply", [hang_up(), body({}, status=503)])
async def test_what_only_reads_is_asked_again(reply: Reply) -> None:
    """B041."""
    async with ScriptedUpstream(reply, then=body({"state": "sent"})) as far:
        guard = OutboundGuard(OutboundConfig(allow_private=("127.0.0.1",)))
        shop = HttpProvider("shop", service(far.base_url), guard, timeout_s=10, retries=2)
        async with open_workshop([shop], backoff_s=0) as workshop:
            assert await workshop.result("find_order", id="1") == {"state": "sent"}
            assert len(far.requests) == 2


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, gzip"])
async def test_a_small_answer_that_grows_is_an_error_the_model_sees(encoding: str) -> None:
    """B083."""
    bomb = body(gzip.compress(b"0" * 50_000_000), headers={"content-encoding": encoding})
    async with provider(bomb) as (made, _):
        with pytest.raises(CallFailed, match=r"too large|not asked for"):
            await made.call("find_order", {"id": "1"}, context())
