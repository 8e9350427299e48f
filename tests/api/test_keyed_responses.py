"""Responses and background runs under keys: end users, limits, keys that end while a run waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.runs.engine import Pace
from tests.replies import answer
from tests.runs.stage import fresh_database
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream

PRICE = {"input_per_mtok": 1000, "output_per_mtok": 1000}
PACE = Pace(lease_s=5.0, look_s=0.1, missed_s=2.0, retry_s=0.2)
ROOT = {"authorization": "Bearer root"}


def config(upstream: ScriptedUpstream, key: Mapping[str, Any] | None = None) -> dict[str, Any]:
    keys = {"admin_key": "root", "static": {"app": {"key": "sk-app", **(key or {})}}}
    return native_config(upstream.base_url, backend={"price": PRICE}, keys=keys)


def by(user: str | None = None, key: str = "sk-app") -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **({} if user is None else {"x_gateway_user": user})}


async def run_until(served: Served, run: str, *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            _, _, found = await served.get(f"/v1/runs/{run}", **ROOT)
            if found["status"] in statuses:
                return dict(found)
            await asyncio.sleep(0.02)


async def delayed(served: Served, key: str) -> str:
    """Ask for a run that waits a moment; its id."""
    metadata = {"background": "true", "delay_s": "1.5"}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "metadata": metadata}
    status, _, run = await served.post("/v1/chat/completions", body, **by(key=key))
    assert status == 202, run
    return str(run["id"])


@pytest.mark.parametrize("background", [False, True], ids=["plain", "background"])
async def test_the_body_names_the_end_user_of_a_response_as_of_a_chat(tmp_path: Path, background: bool) -> None:
    async with (
        ScriptedUpstream(then=answer("ok", tokens=(10, 5))) as upstream,
        serving(tmp_path, config(upstream, {"roles": ["set_user"]})) as served,
        served.sdk("sk-app") as client,
    ):
        made = await client.responses.create(model="m", input="hi", safety_identifier="ann", background=background)
        if background:
            await run_until(served, f"run_{made.id.removeprefix('resp_')}", "completed")
        found = [(await served.get(f"/v1/responses/{made.id}", **by(user)))[0] for user in ("ann", "bob", None)]
        assert found == [200, 404, 404]
        with pytest.raises(openai.BadRequestError, match="not found"):
            await client.responses.create(model="m", input="and?", user="bob", previous_response_id=made.id)
        _, _, used = await served.get("/v1/usage?by=key,user", **ROOT)
        assert [(row["key"], row["user"], row["turns"], row["cost"]) for row in used["data"]] == [
            ("app", "ann", 1, 0.015)
        ]
        _, _, trace = await served.get(f"/v1/traces/{made.id.removeprefix('resp_')}", **ROOT)
        assert trace["owner"] == "app/ann"
        assert trace["events"][0]["data"]["address"] == "127.0.0.1"


async def test_an_open_gateway_finds_the_response_that_an_sdk_made_for_a_user(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as served,
        served.sdk() as client,
    ):
        made = await client.responses.create(model="m", input="hi", user="ann")
        assert (await client.responses.retrieve(made.id)).output_text == "ok"
        assert (await served.get(f"/v1/responses/{made.id}", x_gateway_user="bob"))[0] == 404


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_response_that_limits_refuse_says_what_is_left_B090(tmp_path: Path, stream: bool) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream, {"limits": {"requests_per_min": 1}})) as served,
    ):
        body = {"model": "m", "input": "hi"}
        assert (await served.post("/v1/responses", body, **by()))[0] == 200
        status, headers, refused = await served.post("/v1/responses", {**body, "stream": stream}, **by())
        assert (status, refused["error"]["code"]) == (429, "rate_limit_exceeded")
        assert headers["x-ratelimit-limit-requests"] == "1"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert int(headers["retry-after"]) > 0


async def test_a_run_that_limits_do_not_let_in_waits_and_is_not_given_up(tmp_path: Path) -> None:
    await fresh_database(tmp_path / "hermes.db")
    async with (
        ScriptedUpstream(answer("late").held("a"), then=answer("ok")) as upstream,
        serving(
            tmp_path,
            config(upstream, {"limits": {"concurrent_turns": 1}}) | {"runs": {"max_deliveries": 1}},
            pace=PACE,
        ) as served,
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        first = asyncio.create_task(served.post("/v1/chat/completions", body, **by()))
        await upstream.received()
        _, _, run = await served.post("/v1/chat/completions", {**body, "metadata": {"background": "true"}}, **by())
        async with asyncio.timeout(30):
            while (await served.get(f"/v1/runs/{run['id']}", **ROOT))[2]["error"] is None:
                await asyncio.sleep(0.02)
        upstream.release("a")
        assert (await first)[0] == 200
        ended = await run_until(served, run["id"], "completed", "failed")
        assert (ended["status"], ended["deliveries"]) == ("completed", 1)


async def test_a_revoked_key_stops_its_waiting_runs_and_an_exchanged_one_does_not_B089(tmp_path: Path) -> None:
    await fresh_database(tmp_path / "hermes.db")
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream), pace=PACE) as served,
    ):
        gone, kept = [(await served.post("/v1/keys", {"name": name}, **ROOT))[2] for name in ("gone", "kept")]
        stopped, going = await delayed(served, gone["key"]), await delayed(served, kept["key"])
        assert (await served.ask("DELETE", f"/v1/keys/{gone['id']}", None, **ROOT))[0] == 200
        assert (await served.post(f"/v1/keys/{kept['id']}/rotate", {}, **ROOT))[0] == 200
        assert (await run_until(served, going, "completed", "failed"))["status"] == "completed"
        failed = await run_until(served, stopped, "completed", "failed")
        assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid_api_key")
        assert len(upstream.requests) == 1
