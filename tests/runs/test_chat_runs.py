"""Chat requests as runs, through a whole gateway: asked for by `metadata`, polled, cancelled down to tools, told to webhooks."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from gateway.config.runs import ScheduleConfig
from gateway.runs.engine import Pace
from gateway.runs.schedules import last_time
from gateway.runs.worker import DELIVERIES
from tests.replies import answer, call, error
from tests.runs.stage import fresh_database
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream

PACE = Pace(lease_s=5.0, look_s=0.1, missed_s=2.0, retry_s=0.2)
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
KEYS = {
    "static": {
        "one": {"key": "sk-one"},
        "two": {"key": "sk-two"},
        "boss": {"key": "sk-boss", "roles": ["admin"]},
    }
}
PLUGIN = """\
import asyncio
from pathlib import Path
from gateway.tools import tool
HERE = Path(__file__).parent.parent

@tool
async def look() -> str:
    \"\"\"Look.\"\"\"
    (HERE / "looking").touch()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        (HERE / "look-cancelled").touch()
        raise
    return "seen"

@tool(writes=True)
async def pay() -> str:
    \"\"\"Pay.\"\"\"
    (HERE / "paying").touch()
    while not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    (HERE / "paid").write_text((HERE / "paid").read_text() + "x" if (HERE / "paid").exists() else "x")
    return "paid"

def register(registry):
    registry.add(look, pay)
"""
EXTRA = """\
from gateway.tools import tool

@tool
async def more() -> str:
    \"\"\"More.\"\"\"
    return "more"

def register(registry):
    registry.add(more)
"""
ROUTE = {"all": {"model": "m", "match": "when", "when": {"models": ["auto"]}, "tools": ["look", "pay"]}}


def asking(**metadata: Any) -> dict[str, Any]:
    return {
        "model": "auto",
        "messages": [{"role": "user", "content": "pay"}],
        "metadata": {"background": "true", **metadata},
    }


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@asynccontextmanager
async def served(folder: Path, upstream: ScriptedUpstream, **config: Any) -> AsyncIterator[Served]:
    if not await asyncio.to_thread((folder / "hermes.db").exists):
        await fresh_database(folder / "hermes.db")
    whole = native_config(upstream.base_url, **config)
    async with serving(folder, whole, ROUTE, {"money": PLUGIN}, pace=PACE) as gateway:
        yield gateway


async def until(served: Served, run: str, *statuses: str, key: str = "any") -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            status, _, found = await served.get(f"/v1/runs/{run}", **bearer(key))
            assert status == 200, found
            if found["status"] in statuses:
                return dict(found)
            await asyncio.sleep(0.02)


async def appears(file: Path) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(file.exists):
            await asyncio.sleep(0.02)


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as it:
        yield it


async def test_an_sdk_asks_for_a_run_polls_it_and_has_the_answer(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    upstream.enqueue(answer("done", usage=(3, 2)))
    async with served(tmp_path, upstream) as gateway, gateway.sdk() as client:
        taken = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], metadata={"background": "true", "mine": "1"}
        )
        assert taken.id.startswith("run_")
        assert taken.choices == []
        found = await until(gateway, taken.id, "completed")
        completion = openai.types.chat.ChatCompletion.model_validate(found["response"])
        assert completion.choices[0].message.content == "done"
        assert completion.id == f"chatcmpl-{found['trace_id']}"
        assert found["routed"]["model"] == "m"
        # What was for the gateway stays here.
        assert upstream.requests[0].json["metadata"] == {"mine": "1"}
        assert (await gateway.trace(found["trace_id"]))["status"] == 200
        listed = (await gateway.get("/v1/runs?limit=1"))[2]
        assert [each["id"] for each in listed["data"]] == [taken.id]
        metrics = (await gateway.get("/metrics"))[2]
        assert 'hermes_runs_ended_total{status="completed"} 1.0' in metrics


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"metadata": {"background": "perhaps"}}, "metadata.background"),
        ({"metadata": {"background": "true", "priority": "urgent"}}, "metadata.priority"),
        ({"metadata": {"background": "true", "delay_s": "-1"}}, "metadata.delay_s"),
        ({"metadata": {"background": "true", "delay_s": "nan"}}, "metadata.delay_s"),
        ({"metadata": {"background": "true", "delay_s": "soon"}}, "metadata.delay_s"),
        ({"metadata": {"background": "true"}, "stream": True}, "stream"),
    ],
)
async def test_a_run_that_cannot_be_is_refused_by_the_fields_name(
    body: dict[str, Any], param: str, tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    async with served(tmp_path, upstream) as gateway:
        status, _, said = await gateway.post("/v1/chat/completions", {**asking(), **body})
        assert (status, said["error"]["param"]) == (400, param)
        assert (await gateway.get("/v1/runs"))[2]["data"] == []


@pytest.mark.parametrize("metadata", [{"background": "false"}, {"mine": "background"}, None, {}])
async def test_a_request_that_asks_for_no_run_is_answered_at_once(
    metadata: Mapping[str, str] | None, tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    upstream.enqueue(answer("now"))
    async with served(tmp_path, upstream) as gateway:
        status, _, said = await gateway.post("/v1/chat/completions", {**asking(), "model": "m", "metadata": metadata})
        assert (status, said["choices"][0]["message"]["content"]) == (200, "now")


async def test_a_run_is_its_owners_and_administrators_see_all(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    upstream.enqueue(answer("secret"))
    async with served(tmp_path, upstream, keys=KEYS) as gateway:
        run = (await gateway.post("/v1/chat/completions", asking(), **bearer("sk-one")))[2]["id"]
        await until(gateway, run, "completed", key="sk-one")
        for path in (f"/v1/runs/{run}",):
            assert (await gateway.get(path, **bearer("sk-two")))[0] == 404
        for act in ("cancel", "retry"):
            assert (await gateway.post(f"/v1/runs/{run}/{act}", {}, **bearer("sk-two")))[0] == 404
        assert (await gateway.get("/v1/runs", **bearer("sk-two")))[2]["data"] == []
        assert (await gateway.get(f"/v1/runs/{run}", **bearer("sk-boss")))[0] == 200
        assert (await gateway.get("/v1/runs"))[0] == 401
        # What is over stays as it is.
        status, _, said = await gateway.post(f"/v1/runs/{run}/cancel", {}, **bearer("sk-one"))
        assert (status, said["status"]) == (200, "completed")
        status, _, said = await gateway.post(f"/v1/runs/{run}/retry", {}, **bearer("sk-one"))
        assert (status, said["error"]["code"]) == (409, "run_ended")


async def test_cancelling_ends_the_model_call(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    upstream.enqueue(answer("never").held())
    async with served(tmp_path, upstream) as gateway:
        run = (await gateway.post("/v1/chat/completions", asking()))[2]["id"]
        await upstream.stalled(timeout_s=20)
        assert (await gateway.post(f"/v1/runs/{run}/cancel", {}))[2]["status"] in ("cancelling", "cancelled")
        await upstream.aborted(timeout_s=20)
        assert (await until(gateway, run, "cancelled"))["response"] is None
        # Twice is as once.
        assert (await gateway.post(f"/v1/runs/{run}/cancel", {}))[2]["status"] == "cancelled"


async def test_cancelling_ends_a_reading_tool(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    upstream.enqueue(answer(calls=[call("c", "look", "{}")]))
    async with served(tmp_path, upstream) as gateway:
        run = (await gateway.post("/v1/chat/completions", asking()))[2]["id"]
        await appears(tmp_path / "looking")
        await gateway.post(f"/v1/runs/{run}/cancel", {})
        await until(gateway, run, "cancelled")
        assert (tmp_path / "look-cancelled").exists()


async def test_cancelling_lets_a_writing_tool_end_and_says_so_only_then(
    tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    upstream.enqueue(answer(calls=[call("c", "pay", "{}")]))
    async with served(tmp_path, upstream) as gateway:
        run = (await gateway.post("/v1/chat/completions", asking()))[2]["id"]
        await appears(tmp_path / "paying")
        async with asyncio.timeout(30):
            while not (progress := (await gateway.get(f"/v1/runs/{run}"))[2]["progress"]):
                await asyncio.sleep(0.05)
        assert progress == {"round": 1, "state": "executing"}
        assert (await gateway.post(f"/v1/runs/{run}/cancel", {}))[2]["status"] == "cancelling"
        await asyncio.sleep(0.5)
        assert (await gateway.get(f"/v1/runs/{run}"))[2]["status"] == "cancelling"
        assert not (tmp_path / "paid").exists()
        (tmp_path / "go").touch()
        await until(gateway, run, "cancelled")
        assert (tmp_path / "paid").exists()
        effects = (await gateway.get("/v1/effects"))[2]["data"]
        assert [each["status"] for each in effects] == ["done"]
        assert len(upstream.requests) == 1  # nothing began after it


async def test_a_restarted_gateway_goes_on_from_the_last_recorded_step(
    tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    (tmp_path / "go").touch()
    upstream.enqueue(answer(calls=[call("c", "pay", "{}")]), answer("never").held())
    async with served(tmp_path, upstream) as gateway:
        run = (await gateway.post("/v1/chat/completions", asking()))[2]["id"]
        await upstream.stalled(timeout_s=20)
    upstream.enqueue(answer("paid it"))
    async with served(tmp_path, upstream) as gateway:
        found = await until(gateway, run, "completed")
        assert found["response"]["choices"][0]["message"]["content"] == "paid it"
        assert found["deliveries"] == 1  # it was handed back, which costs none
    assert (tmp_path / "paid").read_text() == "x"
    # The round that was recorded was not asked for again.
    assert [len(request.messages) for request in upstream.requests] == [2, 4, 4]


async def test_a_round_of_reading_tools_is_recorded_too(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    plugin = PLUGIN.replace("await asyncio.sleep(60)", '(HERE / ("look" + str(len(list(HERE.glob("look*")))))).touch()')
    upstream.enqueue(answer(calls=[call("c", "look", "{}")]), answer("never").held())
    folder = tmp_path
    await fresh_database(folder / "hermes.db")
    config = native_config(upstream.base_url)
    async with serving(folder, config, ROUTE, {"money": plugin}, pace=PACE) as gateway:
        run = (await gateway.post("/v1/chat/completions", asking()))[2]["id"]
        await upstream.stalled(timeout_s=20)
    upstream.enqueue(answer("seen it"))
    async with serving(folder, config, ROUTE, {"money": plugin}, pace=PACE) as gateway:
        await until(gateway, run, "completed")
    assert [len(request.messages) for request in upstream.requests] == [2, 4, 4]
    # Nor was the tool asked again.
    assert sorted(name for name in await asyncio.to_thread(os.listdir, tmp_path) if name.startswith("look")) == [
        "look1",
        "looking",
    ]


async def test_a_run_begun_again_long_after_goes_on_from_its_steps(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    (tmp_path / "go").touch()
    upstream.enqueue(answer(calls=[call("c", "pay", "{}")]), error(400, "no"))
    async with served(tmp_path, upstream) as gateway:
        run = (await gateway.post("/v1/chat/completions", asking()))[2]["id"]
        found = await until(gateway, run, "failed")
        assert found["error"]["message"]
        await gateway.gateway.store.turns.forget(found["trace_id"])  # as after `idempotency.ttl_s`
        upstream.enqueue(answer("paid it"))
        assert (await gateway.post(f"/v1/runs/{run}/retry", {}))[0] == 200
        await until(gateway, run, "completed")
    assert (tmp_path / "paid").read_text() == "x"
    assert [len(request.messages) for request in upstream.requests] == [2, 4, 4]


@pytest.mark.parametrize("recorded", [0, 1], ids=["nothing recorded", "a round recorded"])
async def test_a_run_goes_on_as_it_was_decided_whatever_the_files_say_by_then(
    recorded: int, tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    (tmp_path / "go").touch()
    await fresh_database(tmp_path / "hermes.db")
    config = native_config(upstream.base_url)
    config["models"]["n"] = config["models"]["m"]
    first = {**ROUTE["all"], "system": "Be old.", "params": {"temperature": 0.25}}
    then = {**ROUTE["all"], "model": "n", "system": "Be new.", "params": {"temperature": 0.75}, "tools": []}
    upstream.enqueue(*[answer(calls=[call("c", "pay", "{}")])][:recorded], answer("never").held())
    async with serving(tmp_path, config, {"all": first}, {"money": PLUGIN}, pace=PACE) as gateway:
        run = (await gateway.post("/v1/chat/completions", asking()))[2]["id"]
        await upstream.stalled(timeout_s=20)
    upstream.enqueue(answer("paid it"), answer("at once"))
    async with serving(tmp_path, config, {"all": then}, {"money": PLUGIN}, pace=PACE) as gateway:
        found = await until(gateway, run, "completed", "failed")
        assert (found["status"], found["routed"]["model"], found["routed"]["route"]) == ("completed", "m", "all")
        trace = await gateway.trace(found["trace_id"])
        [made] = [event["data"] for event in trace["events"] if event["type"] == "decision.made"]
        assert made["pinned"] is True
        # What is asked for now goes by the new files.
        plain = {"model": "auto", "messages": [{"role": "user", "content": "pay"}]}
        assert (await gateway.post("/v1/chat/completions", plain))[1]["x-gateway-model"] == "n"
    bodies = [request.json for request in upstream.requests]
    assert [body["temperature"] for body in bodies] == [0.25] * (recorded + 2) + [0.75]
    assert ["Be old." in body["messages"][0]["content"] for body in bodies] == [True] * (recorded + 2) + [False]
    assert [len(body.get("tools", ())) for body in bodies] == [2] * (recorded + 2) + [0]


@pytest.mark.parametrize(
    ("other", "dead"),
    [(EXTRA.replace("More.", "Other."), False), ("", True)],
    ids=["changed", "gone"],
)
async def test_a_run_takes_no_step_with_tools_that_are_not_those_it_began_with(
    other: str, dead: bool, tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    (tmp_path / "go").touch()
    await fresh_database(tmp_path / "hermes.db")
    config = native_config(upstream.base_url, runs={"max_deliveries": 1})
    both = {"all": {**ROUTE["all"], "tools": ["pay", "more"]}}
    then = {"money": PLUGIN, "extra": EXTRA}
    upstream.enqueue(answer(calls=[call("c", "pay", "{}")]), answer("never").held())
    async with serving(tmp_path, config, both, then, pace=PACE) as gateway:
        run = (await gateway.post("/v1/chat/completions", asking()))[2]["id"]
        await upstream.stalled(timeout_s=20)
    await asyncio.to_thread((tmp_path / "plugins" / "extra.py").unlink)
    now = {"money": PLUGIN, **({"extra": other} if other else {})}
    async with serving(tmp_path, config, ROUTE, now, pace=PACE) as gateway:
        found = await until(gateway, run, "completed", "failed")
        assert (found["status"], found["dead"], found["error"]["code"]) == ("failed", dead, "tool_changed")
        # Only what is gone may be back in a moment, and is worth another attempt.
        assert ("`more`" in found["error"]["message"], "`pay`" in found["error"]["message"]) == (True, False)
    assert len(upstream.requests) == 2
    upstream.enqueue(answer("paid it"))
    async with serving(tmp_path, config, both, then, pace=PACE) as gateway:
        assert (await gateway.post(f"/v1/runs/{run}/retry", {}))[0] == 200
        await until(gateway, run, "completed")
    assert (tmp_path / "paid").read_text() == "x"


# --- Webhooks ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def receiver(
    *statuses: int, held: asyncio.Event | None = None
) -> AsyncIterator[tuple[str, list[tuple[Mapping[str, str], bytes]]]]:
    """Somebody who listens; answers these statuses in turn, and 200 from then on; not before what is `held` is let go."""
    heard: list[tuple[Mapping[str, str], bytes]] = []
    left = list(statuses)

    async def hear(request: web.Request) -> web.Response:
        heard.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        if held is not None:
            await held.wait()
        return web.Response(status=left.pop(0) if left else 200)

    app = web.Application()
    app.router.add_post("/hook", hear)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}/hook", heard
    finally:
        await runner.cleanup()


async def test_the_end_of_a_run_is_told_to_webhooks_that_the_sdk_verifies(
    tmp_path: Path, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.runs.followers.RETRIES_S", (0.2, 0.2))
    upstream.enqueue(answer("done"))
    async with receiver(500) as (url, heard):
        hooks = {
            "all": {"url": url, "secret": SECRET},
            "failures": {"url": url, "secret": SECRET, "events": ["response.failed"]},
        }
        async with served(tmp_path, upstream, webhooks=hooks) as gateway, gateway.sdk() as client:
            run = (await gateway.post("/v1/chat/completions", asking()))[2]["id"]
            await until(gateway, run, "completed")
            async with asyncio.timeout(30):
                while len(heard) < 2:
                    await asyncio.sleep(0.02)
            for headers, body in heard:
                event = client.webhooks.unwrap(body, headers, secret=SECRET)
                assert event.type == "response.completed"
                assert event.data.id == run
            # Told again it is the same event.
            assert heard[0][0]["webhook-id"] == heard[1][0]["webhook-id"]
            with pytest.raises(openai.InvalidWebhookSignatureError):
                client.webhooks.unwrap(heard[0][1] + b" ", heard[0][0], secret=SECRET)
            rows = (await gateway.get("/v1/runs"))[2]["data"]
            assert [(each["type"], each["parent_id"]) for each in rows] == [("webhook", run), ("chat", None)]


async def test_a_webhook_that_never_listens_is_given_up_and_listed(
    tmp_path: Path, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.runs.followers.RETRIES_S", (0.1, 0.1))
    upstream.enqueue(answer("done"))
    async with receiver(500, 500, 500, 500) as (url, heard):
        hooks = {"all": {"url": url, "secret": SECRET}}
        async with served(tmp_path, upstream, webhooks=hooks) as gateway:
            await gateway.post("/v1/chat/completions", asking())
            async with asyncio.timeout(30):
                while not (dead := (await gateway.get("/v1/runs?dead=true"))[2]["data"]):
                    await asyncio.sleep(0.05)
            assert len(heard) == 3
            assert "answered 500" in dead[0]["error"]["message"]
            assert SECRET not in json.dumps(dead)


async def test_a_webhook_that_does_not_answer_stops_no_run(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    """Deliveries wait beside the runs, however many they are, and those to others go on."""
    held = asyncio.Event()
    upstream.enqueue(*(answer("done") for _ in range(30)))
    async with receiver(held=held) as (hanging, heard), receiver() as (well, told):
        hooks = {"hangs": {"url": hanging, "secret": SECRET}, "well": {"url": well, "secret": SECRET}}
        async with served(tmp_path, upstream, webhooks=hooks, runs={"concurrency": 2}) as gateway:
            runs = [(await gateway.post("/v1/chat/completions", asking()))[2]["id"] for _ in range(25)]
            for run in runs:
                await until(gateway, run, "completed")
            async with asyncio.timeout(30):
                while len(told) < 25 or len(heard) < DELIVERIES:
                    await asyncio.sleep(0.05)
            await until(gateway, (await gateway.post("/v1/chat/completions", asking()))[2]["id"], "completed")
            assert len(heard) == DELIVERIES
            held.set()


# --- Schedules -----------------------------------------------------------------------------------------------------


async def test_a_schedule_begins_its_run_once_for_each_time(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    upstream.enqueue(answer("tick"), answer("tick"))
    schedule = {
        "cron": "* * * * *",
        "key": "local",
        "request": {"model": "m", "messages": [{"role": "user", "content": "?"}]},
    }
    minute = int(time.time() // 60)
    async with served(tmp_path, upstream, runs={"schedules": {"minutely": schedule}}) as gateway:
        async with asyncio.timeout(30):
            while not (rows := (await gateway.get("/v1/runs"))[2]["data"]):
                await asyncio.sleep(0.05)
        await until(gateway, rows[0]["id"], "completed")
        await asyncio.sleep(0.5)  # looks of the keeper, of which none may begin it again
        count = len((await gateway.get("/v1/runs"))[2]["data"])
        assert 1 <= count <= 1 + int(time.time() // 60) - minute


@pytest.mark.parametrize(
    ("cron", "zone", "now", "found"),
    [
        ("0 9 * * *", "UTC", "2026-03-01T09:00:30+00:00", "2026-03-01T09:00:00+00:00"),
        ("0 9 * * *", "UTC", "2026-03-01T08:59:59+00:00", None),
        ("0 9 * * *", "UTC", "2026-03-01T09:01:30+00:00", None),
        ("0 9 * * *", "Asia/Shanghai", "2026-03-01T01:00:10+00:00", "2026-03-01T01:00:00+00:00"),
        ("*/15 * * * 1-5", "UTC", "2026-03-01T09:15:10+00:00", None),
    ],
)
def test_times_of_a_schedule_are_those_of_its_zone(cron: str, zone: str, now: str, found: str | None) -> None:
    schedule = ScheduleConfig(cron=cron, timezone=zone, key="local", request={})
    assert last_time(schedule, datetime.fromisoformat(now).timestamp()) == found
