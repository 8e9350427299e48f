"""Runs that are begun again from one of their stages: rounds are asked for anew, effects are never made anew."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.replies import answer, call, error
from tests.runs.stage import fresh_database
from tests.runs.test_chat_runs import KEYS, PACE, bearer, until
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream

PLUGIN = """\
from pathlib import Path
from gateway.tools import tool
HERE = Path(__file__).parent.parent

@tool
async def look(at: str) -> str:
    \"\"\"Look.\"\"\"
    with (HERE / "looked").open("a") as file:
        file.write(at + " ")
    return "seen"

@tool(writes=True)
async def pay(cents: int) -> str:
    \"\"\"Pay.\"\"\"
    with (HERE / "paid").open("a") as file:
        file.write(f"{cents} ")
    return "paid"

def register(registry):
    registry.add(look, pay)
"""
ROUTE = {"all": {"model": "m", "match": "when", "when": {"models": ["auto"]}, "tools": ["look", "pay"]}}
ASKING = {
    "model": "auto",
    "messages": [{"role": "user", "content": "pay"}],
    "metadata": {"background": "true"},
}


def looks(at: str) -> Any:
    return answer(calls=[call("c", "look", json.dumps({"at": at}))])


def pays(cents: int) -> Any:
    return answer(calls=[call("c", "pay", json.dumps({"cents": cents}))])


def served(folder: Path, upstream: ScriptedUpstream, **config: Any) -> Any:
    return serving(folder, native_config(upstream.base_url, **config), ROUTE, {"p": PLUGIN}, pace=PACE)


async def failed(on: Served, body: dict[str, Any] = ASKING, path: str = "/v1/chat/completions") -> dict[str, Any]:
    said = (await on.post(path, body))[2]
    return await until(on, f"run_{said['id'].split('_')[1]}", "failed")


def words(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().split() if (folder / name).exists() else []


@pytest.mark.parametrize(
    ("stage", "asked", "looked"),
    [
        ("last", [6], ["a", "b"]),
        (2, [4, 6], ["a", "b", "B"]),
        ("1", [2, 4, 6], ["a", "b", "A", "B"]),
        ("start", [2, 4, 6], ["a", "b", "A", "B"]),
    ],
)
async def test_a_run_goes_on_from_the_stage_it_is_told(
    stage: Any, asked: list[int], looked: list[str], tmp_path: Path
) -> None:
    await fresh_database(tmp_path / "hermes.db")
    async with ScriptedUpstream() as upstream, served(tmp_path, upstream) as on:
        upstream.enqueue(looks("a"), looks("b"), error(400, "no"))
        found = await failed(on)
        run = found["id"]
        stages = (await on.get(f"/v1/runs/{run}"))[2]["stages"]
        assert stages == ["start", "1", "2", "last"]
        before = len(upstream.requests)
        again = {1: [answer("done")], 2: [looks("B"), answer("done")], 3: [looks("A"), looks("B"), answer("done")]}
        upstream.enqueue(*again[len(asked)])
        status, _, said = await on.post(f"/v1/runs/{run}/retry", {"from": stage})
        assert status == 200, said
        found = await until(on, run, "completed")
        assert found["response"]["choices"][0]["message"]["content"] == "done"
        assert [len(request.messages) for request in upstream.requests[before:]] == asked
    assert words(tmp_path, "looked") == looked


async def test_a_run_does_not_go_back_behind_an_effect(tmp_path: Path) -> None:
    await fresh_database(tmp_path / "hermes.db")
    async with ScriptedUpstream() as upstream, served(tmp_path, upstream) as on:
        upstream.enqueue(looks("a"), pays(5), looks("b"), error(400, "no"))
        run = (await failed(on))["id"]
        for stage in ("start", "1", 2):
            status, _, said = await on.post(f"/v1/runs/{run}/retry", {"from": stage})
            assert (status, said["error"]["param"]) == (400, "from")
            assert "`pay` has been called in round 2" in said["error"]["message"]
        assert (await on.get(f"/v1/runs/{run}"))[2]["status"] == "failed"
        upstream.enqueue(looks("B"), answer("done"))
        assert (await on.post(f"/v1/runs/{run}/retry", {"from": 3}))[0] == 200
        await until(on, run, "completed")
        assert [len(request.messages) for request in upstream.requests[-2:]] == [6, 8]
    assert words(tmp_path, "paid") == ["5"]


async def test_from_the_start_a_run_is_decided_anew_and_from_a_round_it_is_not(tmp_path: Path) -> None:
    await fresh_database(tmp_path / "hermes.db")
    async with ScriptedUpstream() as upstream:
        config = native_config(upstream.base_url)
        config["models"]["n"] = config["models"]["m"]
        then = {"all": {**ROUTE["all"], "model": "n"}}
        upstream.enqueue(looks("a"), error(400, "no"))
        async with serving(tmp_path, config, ROUTE, {"p": PLUGIN}, pace=PACE) as on:
            run = (await failed(on))["id"]
        async with serving(tmp_path, config, then, {"p": PLUGIN}, pace=PACE) as on:
            upstream.enqueue(error(400, "no"))
            await on.post(f"/v1/runs/{run}/retry", {"from": 1})
            await until(on, run, "failed")
            [made] = [
                event["data"]
                for event in (await on.trace(run.removeprefix("run_")))["events"]
                if event["type"] == "decision.made"
            ]
            assert made["model"] == "m"
            upstream.enqueue(answer("done"))
            await on.post(f"/v1/runs/{run}/retry", {"from": "start"})
            assert (await until(on, run, "completed"))["routed"]["model"] == "n"


async def test_a_stage_that_is_none_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    await fresh_database(tmp_path / "hermes.db")
    async with ScriptedUpstream(error(400, "no")) as upstream, served(tmp_path, upstream, keys=KEYS) as on:
        said = (await on.post("/v1/chat/completions", ASKING, **bearer("sk-one")))[2]
        await until(on, said["id"], "failed", key="sk-one")
        bodies: list[Any] = [
            {"from": "9"},
            {"from": "nowhere"},
            {"from": None},
            {"from": 1.5},
            {"stage": "last"},
            [],
            "last",
        ]
        for body in bodies:
            assert (await on.post(f"/v1/runs/{said['id']}/retry", body, **bearer("sk-one")))[0] == 400
        stranger = await on.post(f"/v1/runs/{said['id']}/retry", {"from": "start"}, **bearer("sk-two"))
        assert stranger[0] == 404
        assert (await on.get(f"/v1/runs/{said['id']}", **bearer("sk-one")))[2]["status"] == "failed"


@pytest.mark.parametrize("stage", ["last", "start"])
async def test_a_response_that_failed_is_made_after_all(stage: str, tmp_path: Path) -> None:
    await fresh_database(tmp_path / "hermes.db")
    async with ScriptedUpstream() as upstream, served(tmp_path, upstream) as on:
        upstream.enqueue(looks("a"), error(400, "no"))
        found = await failed(on, {"model": "auto", "input": "pay", "background": True}, "/v1/responses")
        path = f"/v1/responses/{found['response_id']}"
        assert (await on.get(path))[2]["status"] == "failed"
        upstream.enqueue(*([looks("A")] if stage == "start" else []), answer("done").held())
        assert (await on.post(f"/v1/runs/{found['id']}/retry", {"from": stage}))[0] == 200
        await upstream.stalled()
        running = (await on.get(path))[2]
        assert (running["status"], running["error"]) == ("in_progress", None)
        upstream.release()
        await until(on, found["id"], "completed")
        response = (await on.get(path))[2]
        assert (response["status"], response["error"]) == ("completed", None)
        assert [item["type"] for item in response["output"]] == ["mcp_call", "message"]
        assert len({item["id"] for item in response["output"]}) == 2
        assert response["output"][-1]["content"][0]["text"] == "done"


async def test_what_is_recorded_of_a_run_stays_as_long_as_it_may_go_on(tmp_path: Path) -> None:
    """Otherwise a run that is begun again after weeks would pay again."""
    await fresh_database(tmp_path / "hermes.db")
    async with ScriptedUpstream() as upstream, served(tmp_path, upstream) as on:
        upstream.enqueue(pays(5), error(400, "no"))
        run = (await failed(on))["id"]
        turn_id, store = run.removeprefix("run_"), on.gateway.store
        await store.turns.forget(turn_id)
        later = time.time() + 1000
        await store.journal.prune(before=later)
        await store.effects.prune(before=later)
        upstream.enqueue(answer("done"))
        await on.post(f"/v1/runs/{run}/retry", {})
        await until(on, run, "completed")
        assert await store.journal.prune(before=later) > 0
        assert await store.effects.prune(before=later) == 1
    assert words(tmp_path, "paid") == ["5"]
