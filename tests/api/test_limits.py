"""Limits and budgets, asked over HTTP: who is let in, what the headers say, what is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
import redis

from tests.frames import d
from tests.replies import answer, call, error, stream
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream
from tests.valkey import valkey, wire

KEY = "sk-limited"
# A thousand tokens cost a dollar, whichever way they go.
PRICE = {"input_per_mtok": 1000, "output_per_mtok": 1000}
LOOK = '''
from gateway.tools import tool


@tool()
async def look(name: str) -> str:
    """Look something up.

    name: what
    """
    return "found"


def register(registry):
    registry.add(look)
'''


def config(upstream: ScriptedUpstream, *, key: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    keys = {"admin_key": "root", "static": {"app": {"key": KEY, **(key or {})}}}
    return native_config(upstream.base_url, backend={"price": PRICE}, keys=keys, **more)


async def ask(served: Served, key: str = KEY, /, **body: Any) -> tuple[int, Mapping[str, str], Any]:
    headers = body.pop("headers", {})
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    return await served.post("/v1/chat/completions", asked, authorization=f"Bearer {key}", **headers)


async def until_free(served: Served, **body: Any) -> tuple[int, Mapping[str, str], Any]:
    """Ask until it is not refused for what a turn that has just ended held."""
    async with asyncio.timeout(30):
        while True:
            found = await ask(served, **body)
            if found[0] != 429:
                return found
            await asyncio.sleep(0.02)


async def test_a_request_that_one_limit_refuses_uses_up_no_other_B090(tmp_path: Path) -> None:
    limits = {"requests_per_min": 10, "concurrent_turns": 1, "tokens_per_min": 1000}
    async with ScriptedUpstream(answer("late", tokens=(5, 5)).held("a"), then=answer("ok", tokens=(5, 5))) as upstream:
        key = {"limits": limits, "budgets": {"day": 100}}
        async with serving(tmp_path, config(upstream, key=key)) as served:
            first = asyncio.create_task(ask(served))
            await upstream.received()
            for _ in range(9):
                status, headers, body = await ask(served)
                assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
                assert headers["x-ratelimit-remaining-requests"] == "9"
                assert headers["retry-after"] == "1"
                assert "x-should-retry" not in headers
            # Neither do requests that are wrong, or ask for what there is not.
            assert [(await ask(served, messages=[]))[0], (await ask(served, model="x"))[0]] == [400, 404]
            upstream.release("a")
            status, headers, _ = await first
            assert (status, headers["x-ratelimit-limit-requests"]) == (200, "10")
            status, headers, _ = await until_free(served)
            assert (status, headers["x-ratelimit-remaining-requests"]) == (200, "8")
            assert headers["x-ratelimit-limit-tokens"] == "1000"
            assert int(headers["x-ratelimit-remaining-tokens"]) > 950


async def test_the_first_request_of_a_limit_of_one_is_answered_and_the_next_told_when_B090(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream, key={"limits": {"requests_per_min": 1}})) as served,
    ):
        status, headers, _ = await ask(served)
        assert status == 200
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"] in ("1m0s", "59s")
        status, headers, body = await ask(served)
        assert (status, headers["x-ratelimit-remaining-requests"]) == (429, "0")
        assert 50 <= int(headers["retry-after"]) <= 60
        assert "this API key" in body["error"]["message"]


async def test_tokens_are_counted_as_they_were_used_B090(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(answer("long", tokens=(100, 900)), then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream, key={"limits": {"tokens_per_min": 500}})) as served,
    ):
        # More than the whole bucket is asked for, so it takes the whole.
        assert (await ask(served, max_tokens=5000))[0] == 200
        await asyncio.sleep(0)
        status, headers, _ = await ask(served)
        # It used a thousand: a minute's worth of debt, and another's for what is asked now.
        assert status == 429
        assert int(headers["retry-after"]) > 55
        assert headers["x-ratelimit-remaining-tokens"] == "0"


STRICT = [
    ("key", {"key": {"limits": {"requests_per_min": 2}}}),
    ("team", {"key": {"team": "t"}, "teams": {"t": {"limits": {"requests_per_min": 2}}}}),
    ("caller", {"limits": {"requests_per_min": 2}}),
    ("model", {"models": {"m": {"backends": ["b1"], "retries": 0, "limits": {"requests_per_min": 2}}}}),
]


@pytest.mark.parametrize(("where", "more"), STRICT, ids=[where for where, _ in STRICT])
async def test_the_strictest_limit_decides_wherever_it_stands(tmp_path: Path, where: str, more: dict[str, Any]) -> None:
    base: dict[str, Any] = {
        "key": {"limits": {"requests_per_min": 50}},
        "limits": {"requests_per_min": 40},
        "teams": {"t": {"limits": {"requests_per_min": 30}}},
    }
    merged = {**base, **more}
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream, **merged)) as served,
    ):
        found = [await ask(served) for _ in range(3)]
        assert [status for status, _, _ in found] == [200, 200, 429]
        assert [headers["x-ratelimit-limit-requests"] for _, headers, _ in found] == ["2"] * 3


async def test_a_routes_limit_counts_only_what_is_sent_there(tmp_path: Path) -> None:
    routes = {"dear": {"model": "m", "keywords": ["dear"], "limits": {"requests_per_min": 1}}}
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream), routes) as served,
    ):
        dear = {"model": "auto", "messages": [{"role": "user", "content": "dear"}]}
        assert [(await ask(served, **dear))[0] for _ in range(2)] == [200, 429]
        status, headers, _ = await ask(served, model="auto")
        assert status == 200
        assert "x-ratelimit-limit-requests" not in headers


async def test_each_end_user_of_a_key_has_its_own_allowance_and_the_key_one_for_all(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "key": {"roles": ["set_user"], "limits": {"requests_per_min": 3}},
        "limits": {"requests_per_min": 2},
    }
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream, **more)) as served,
    ):
        assert [(await ask(served, user="eve"))[0] for _ in range(3)] == [200, 200, 429]
        assert [(await ask(served, headers={"x_gateway_user": "bob"}))[0] for _ in range(2)] == [200, 429]


ADDRESSES = ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-User", "X-Role", "X-Tenant-Id"]


async def test_forged_addresses_do_not_reset_the_limiter_B080(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("ok")) as upstream:
        open_one = native_config(upstream.base_url, limits={"requests_per_min": 5})
        async with serving(tmp_path, open_one) as served:
            statuses = []
            for number in range(100):
                name = ADDRESSES[number % len(ADDRESSES)]
                value = f"10.0.0.{number}" if name != "Forwarded" else f"for=10.0.0.{number}"
                body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                statuses.append((await served.post("/v1/chat/completions", body, **{name: value}))[0])
            assert statuses.count(200) == 5
            assert statuses[:5] == [200] * 5


async def test_a_trusted_proxys_right_most_untrusted_hop_is_the_address_B080(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedUpstream(then=answer("ok")) as upstream:
        proxied = native_config(
            upstream.base_url,
            limits={"requests_per_min": 5},
            server={"trusted_proxies": ["127.0.0.1", "10.9.0.0/16"]},
        )
        async with serving(tmp_path, proxied) as served:

            async def through(hops: str) -> int:
                body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                return (await served.post("/v1/chat/completions", body, **{"X-Forwarded-For": hops}))[0]

            spoofed = [await through(f"192.0.2.{number}, 203.0.113.7, 10.9.1.1") for number in range(20)]
            assert spoofed.count(200) == 5
            assert [await through(f"203.0.113.{number}:55000") for number in (8, 9)] == [200, 200]
            assert await through("192.0.2.1, 203.0.113.7") == 429


async def test_a_budget_lets_one_of_many_in_that_ask_together_and_gives_back_what_fails_B079(tmp_path: Path) -> None:
    # 0.95 of 1.00 are spent; each request may cost 0.05 or so, and half of them fail upstream.
    spent = answer("x", tokens=(900, 50))
    async with (
        ScriptedUpstream(spent, then=error(500)) as upstream,
        serving(tmp_path, config(upstream, key={"budgets": {"total": 1.0}})) as served,
    ):
        assert (await ask(served, max_tokens=50))[0] == 200
        await asyncio.sleep(0.05)
        upstream.enqueue(error(500).held("a"))
        racing = [asyncio.create_task(ask(served, max_tokens=40)) for _ in range(50)]
        await upstream.received(2)
        upstream.release("a")
        found = await asyncio.gather(*racing)
        assert [status for status, _, _ in found].count(502) >= 1
        refused = [each for each in found if each[0] == 429]
        assert refused
        for _, headers, body in refused:
            assert (body["error"]["code"], body["error"]["type"]) == ("insufficient_quota", "insufficient_quota")
            assert headers["x-should-retry"] == "false"
            assert "retry-after" not in headers
        # What failed cost nothing: there is room for one again, once.
        await asyncio.sleep(0.05)
        upstream.enqueue(answer("ok", tokens=(5, 40)))
        assert (await ask(served, max_tokens=40))[0] == 200
        await asyncio.sleep(0.05)
        seen = len(upstream.requests)
        assert (await ask(served, max_tokens=40))[0] == 429
        assert len(upstream.requests) == seen


async def test_an_sdk_asks_once_where_the_budget_is_spent_B079(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream, key={"budgets": {"day": 0}})) as served,
    ):
        async with served.sdk(KEY, max_retries=3) as client:
            with pytest.raises(openai.RateLimitError, match="budget"):
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        refusals = [trace for trace in (await traces(served)) if trace["status"] == 429]
        assert len(refusals) == 1
        assert upstream.requests == []


async def traces(served: Served) -> list[dict[str, Any]]:
    found = await served.get("/v1/traces", authorization="Bearer root")
    return list(found[2]["data"])


async def test_a_client_that_goes_away_gives_back_its_place_and_its_money_B075(tmp_path: Path) -> None:
    key = {"limits": {"concurrent_turns": 1}, "budgets": {"total": 1.5}}
    async with (
        ScriptedUpstream(answer("never").held("a"), then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream, key=key)) as served,
    ):
        asking = asyncio.create_task(ask(served, max_tokens=1000))
        await upstream.received()
        assert (await ask(served, max_tokens=1000))[0] == 429
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await upstream.aborted(timeout_s=10)
        # The whole budget is free again.
        assert (await until_free(served, max_tokens=1400))[0] == 200


async def test_a_stream_that_is_cut_pays_for_what_was_seen_and_frees_the_rest(tmp_path: Path) -> None:
    key = {"limits": {"concurrent_turns": 1}, "budgets": {"total": 1.0}}
    broken = stream(d({"content": "one "}), d({"content": "two "})).reset_at(400)
    async with (
        ScriptedUpstream(broken, then=answer("ok", tokens=(100, 100))) as upstream,
        serving(tmp_path, config(upstream, key=key)) as served,
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 900}
        async with served.http.post(
            f"{served.url}/v1/chat/completions",
            json={"stream": True, **body},
            headers={"authorization": f"Bearer {KEY}"},
        ) as response:
            await response.read()
        assert (await until_free(served, max_tokens=900))[0] == 200


async def test_all_rounds_of_a_turn_are_paid_and_the_next_one_needs_money_too(tmp_path: Path) -> None:
    """A turn whose budget is spent by its own rounds ends before the next one."""
    rounds = [answer(calls=[call(f"c{n}", "look", '{"name": "x"}')], tokens=(300, 100)) for n in range(5)]
    async with ScriptedUpstream(*rounds, then=answer("done")) as upstream:
        whole = config(upstream, key={"budgets": {"total": 1.0}}, tools={"offer": "always", "default": ["look"]})
        async with serving(tmp_path, whole, plugins={"look": LOOK}) as served:
            status, headers, body = await ask(served, max_tokens=100)
            assert (status, body["error"]["code"]) == (429, "insufficient_quota"), body
            assert headers["x-should-retry"] == "false"
            # 0.4 and 0.4 were spent; a third round might have cost more than was left.
            assert len(upstream.requests) == 2
            assert await spent(served) == pytest.approx(0.8)


async def spent(served: Served, key: str = "app") -> float:
    """The money that usage says a key has spent."""
    status, _, body = await served.get("/v1/usage?by=key", authorization="Bearer root")
    assert status == 200, body
    return float(sum(row["cost"] for row in body["data"] if row["key"] == key))


async def test_a_revoked_key_ends_its_running_turn_at_the_next_round_B089(tmp_path: Path) -> None:
    tool_round = answer(calls=[call("c1", "look", '{"name": "x"}')]).held("a")
    async with ScriptedUpstream(tool_round, then=answer("done")) as upstream:
        whole = config(upstream, tools={"offer": "always", "default": ["look"]})
        async with serving(tmp_path, whole, plugins={"look": LOOK}) as served:
            root = {"authorization": "Bearer root"}
            _, _, made = await served.post("/v1/keys", {"name": "k"}, **root)
            running = asyncio.create_task(ask(served, made["key"]))
            await upstream.received()
            async with served.http.delete(f"{served.url}/v1/keys/{made['id']}", headers=root) as response:
                assert response.status == 200
            assert (await ask(served, made["key"]))[0] == 401
            upstream.release("a")
            status, _, body = await running
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
            assert len(upstream.requests) == 1


async def test_a_budget_outlives_the_process_and_says_when_it_is_nearly_spent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedUpstream(then=answer("x", tokens=(800, 50))) as upstream:
        whole = config(upstream, key={"budgets": {"month": 1.0}})
        async with serving(tmp_path, whole) as served:
            assert (await ask(served, max_tokens=10))[0] == 200
        async with serving(tmp_path, whole) as served:
            assert (await ask(served, max_tokens=200))[0] == 429
            status, headers, _ = await ask(served, max_tokens=10)
            assert status == 200
            trace = await served.get(f"/v1/traces/{headers['x-gateway-trace']}", authorization="Bearer root")
            warned = [event["data"] for event in trace[2]["events"] if event["type"] == "budget.warned"]
            assert [event["limit"] for event in warned] == [1.0]


async def test_teams_and_tags_have_budgets_of_their_own(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "key": {"team": "t", "roles": ["set_tags"]},
        "teams": {"t": {"budgets": {"day": 1.0}}},
        "budgets": {"tags": {"trial": {"total": 0.01}}},
    }
    async with (
        ScriptedUpstream(then=answer("x", tokens=(5, 5))) as upstream,
        serving(tmp_path, config(upstream, **more)) as served,
    ):
        status, _, body = await ask(served, max_tokens=10, headers={"x_gateway_tags": "trial"})
        assert status == 429
        assert "tags" in body["error"]["message"]
        assert (await ask(served, max_tokens=10))[0] == 200
        status, _, body = await ask(served, max_tokens=2000)
        assert "team" in body["error"]["message"]


@pytest.mark.parametrize(("unknown", "status"), [("allow", 200), ("refuse", 403)])
async def test_an_unknown_price_is_let_in_or_not_as_configured_and_is_no_zero(
    tmp_path: Path, unknown: str, status: int
) -> None:
    async with ScriptedUpstream(then=answer("x", tokens=(5, 5))) as upstream:
        whole = config(upstream, key={"budgets": {"day": 1.0}}, budgets={"unknown_price": unknown})
        del whole["backends"]["b1"]["price"]
        async with serving(tmp_path, whole) as served:
            assert (await ask(served))[0] == status
            _, _, body = await served.get("/v1/usage?by=key", authorization="Bearer root")
            if status == 200:
                (row,) = body["data"]
                assert (row["turns"], row["unpriced"], row["cost"]) == (1, 1, None)


async def test_a_kept_answer_costs_nothing_and_a_free_backend_neither(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("x", tokens=(100, 100))) as upstream:
        whole = config(upstream, key={"budgets": {"day": 0.5}})
        whole["models"]["m"]["cache"] = {"ttl_s": 300}
        async with serving(tmp_path, whole) as served:
            found = [await ask(served, max_tokens=200) for _ in range(5)]
            assert [status for status, _, _ in found] == [200] * 5
            assert await spent(served) == pytest.approx(0.2)
        whole["backends"]["b1"]["price"] = "free"
        whole["keys"]["static"]["app"]["budgets"] = {"day": 0.01}
        async with serving(tmp_path, whole) as served:
            assert (await ask(served, max_tokens=100_000))[0] == 200


async def test_without_limits_no_header_speaks_of_them(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("x")) as upstream, serving(tmp_path, config(upstream)) as served:
        status, headers, _ = await ask(served)
        assert status == 200
        assert not [name for name in headers if name.startswith("x-ratelimit")]


DOWN = [
    ({"key": {"limits": {"requests_per_min": 5}}}, 200),
    ({"key": {"limits": {"requests_per_min": 5}}, "limits": {"store_down": "closed"}}, 503),
    ({"key": {"budgets": {"day": 5}}}, 503),
    ({"key": {"budgets": {"day": 5}}, "budgets": {"store_down": "open"}}, 200),
    ({}, 200),
]


@pytest.mark.parametrize(("more", "status"), DOWN)
async def test_limits_open_and_budgets_close_while_the_shared_server_is_away(
    tmp_path: Path, more: dict[str, Any], status: int
) -> None:
    with valkey() as server:
        async with ScriptedUpstream(then=answer("ok")) as upstream, wire(server) as way:
            whole = config(upstream, **more) | {"config": {"lease_s": 300}}
            whole["storage"] = {"database": f"sqlite:///{tmp_path / 'x.db'}", "redis": way.url}
            async with serving(tmp_path, whole) as served:
                assert (await ask(served))[0] == 200
                way.cut()
                seen = len(upstream.requests)
                for _ in range(3):
                    found, _, body = await ask(served)
                    assert found == status, body
                    if status == 503:
                        assert body["error"]["code"] == "store_unavailable"
                assert len(upstream.requests) - seen == (3 if status == 200 else 0)
                way.mend()
                async with asyncio.timeout(30):
                    while (await ask(served))[0] != 200:
                        await asyncio.sleep(0.05)


async def test_a_request_asks_the_shared_server_once(tmp_path: Path) -> None:
    key = {
        "limits": {"requests_per_min": 500, "tokens_per_min": 100_000, "concurrent_turns": 50},
        "budgets": {"day": 50, "month": 50, "total": 50},
    }
    with valkey() as server:
        async with ScriptedUpstream(then=answer("ok")) as upstream:
            whole = config(upstream, key=key, limits={"requests_per_min": 400}) | {"config": {"lease_s": 300}}
            whole["storage"] = {"database": f"sqlite:///{tmp_path / 'x.db'}", "redis": server.url}
            async with serving(tmp_path, whole) as served:
                for _ in range(3):
                    assert (await ask(served))[0] == 200
                await asyncio.sleep(0.3)
                with redis.Redis(port=server.port) as client:
                    before: Any = client.info("commandstats")
                    for _ in range(10):
                        assert (await ask(served))[0] == 200
                    await asyncio.sleep(0.3)
                    after: Any = client.info("commandstats")
                scripts = [each["cmdstat_evalsha"]["calls"] for each in (before, after)]
                # One on the way in, and at most one behind each that goes out.
                assert 10 < scripts[1] - scripts[0] <= 20


@pytest.mark.parametrize(
    "asked", [{"max_tokens": -1}, {"max_tokens": 0}, {"max_completion_tokens": 1, "max_tokens": 5000}], ids=str
)
async def test_a_bound_that_upstreams_may_not_heed_makes_no_request_cheap_B079(
    tmp_path: Path, asked: dict[str, int]
) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream, key={"budgets": {"day": 0.9}})) as served,
    ):
        # 1024 tokens are reckoned with where there is no bound: more than is left.
        status, _, body = await ask(served, **asked)
        assert (status, body["error"]["code"]) == (429, "insufficient_quota")
        assert upstream.requests == []


@pytest.mark.parametrize("asked", [{"max_tokens": 10**30}, {"n": 10**20, "max_tokens": 10**20}], ids=["length", "n"])
async def test_a_bound_beyond_every_number_is_reckoned_with_too(tmp_path: Path, asked: dict[str, int]) -> None:
    async with ScriptedUpstream(then=answer("ok")) as upstream:
        with valkey() as server:
            key = {"limits": {"tokens_per_min": 1000}, "budgets": {"day": 5}}
            whole = config(upstream, key=key)
            whole["storage"] = {"database": f"sqlite:///{tmp_path / 'x.db'}", "redis": server.url}
            async with serving(tmp_path, whole) as served:
                status, _, body = await ask(served, **asked)
                assert (status, body["error"]["code"]) == (429, "insufficient_quota")
                assert (await ask(served))[0] == 200
