"""Everything beside chat: models, configuration, traces, metrics, and what is not there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from yarl import URL

from tests.serving import Served, native_config, serving, write_route
from tests.upstream import ScriptedUpstream, answer

HI: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "hi there"}]}
PATH = "/v1/chat/completions"
KEYS = {
    "static": {
        "root": {"key": "sk-root", "roles": ["admin"]},
        "a": {"key": "sk-a", "models": ["auto", "Qwen/Coder-Big"]},
        "b": {"key": "sk-b"},
        "m": {"key": "sk-m", "roles": ["metrics"]},
    }
}


def as_(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer sk-{key}"}


@asynccontextmanager
async def keyed(folder: Path, **more: Any) -> AsyncIterator[Served]:
    async with ScriptedUpstream(then=answer("hello")) as upstream:
        config = native_config(upstream.base_url, keys=KEYS, aliases={"Qwen/Coder-Big": "m"}, **more)
        async with serving(folder, config, {"greeting": {"model": "m", "keywords": ["hi there"]}}) as on:
            yield on


async def test_caller_sees_exactly_the_names_it_may_ask_for_B014_B015(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        async with on.sdk("sk-a") as sdk:
            listed = [model async for model in sdk.models.list()]
            assert [model.id for model in listed] == ["auto", "Qwen/Coder-Big"]
            assert {(model.object, type(model.created)) for model in listed} == {("model", int)}
            assert all(model.owned_by for model in listed)
            assert (await sdk.models.retrieve("Qwen/Coder-Big")).id == "Qwen/Coder-Big"
            with pytest.raises(openai.NotFoundError) as caught:
                await sdk.models.retrieve("m")
            assert caught.value.code == "model_not_found"
        _, _, everything = await on.get("/v1/models", **as_("b"))
        assert [model["id"] for model in everything["data"]] == ["auto", "m", "Qwen/Coder-Big"]
        for path in ("/v1/models/Qwen/Coder-Big", "/v1/models/Qwen%2FCoder-Big", "/models/Qwen/Coder-Big"):
            async with on.http.get(URL(on.url + path, encoded=True), headers=as_("a")) as response:
                assert (response.status, (await response.json())["id"]) == (200, "Qwen/Coder-Big")
        status, _, refused = await on.get("/v1/models")
        assert (status, refused["error"]["code"]) == (401, "invalid_api_key")


async def test_name_is_checked_as_the_client_said_it_B014(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        status, _, body = await on.post(PATH, {**HI, "model": "Qwen/Coder-Big"}, **as_("a"))
        assert (status, body["model"]) == (200, "Qwen/Coder-Big")
        for name in ("m", "b1", "upstream-model"):
            status, _, body = await on.post(PATH, {**HI, "model": name}, **as_("a"))
            assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_reload_needs_admin_and_changes_the_next_decision(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        _, before, _ = await on.post(PATH, HI, **as_("b"))
        assert before["x-gateway-route"] == "greeting"
        status, _, refused = await on.post("/v1/reload", {}, **as_("b"))
        assert (status, refused["error"]["code"]) == (403, "not_allowed")
        write_route(on.folder, "greeting", {"model": "m", "keywords": ["something else"]})
        status, _, state = await on.post("/v1/reload", {}, **as_("root"))
        assert (status, state["last_error"], state["generation"]) == (200, None, 2)
        _, after, _ = await on.post(PATH, HI, **as_("b"))
        assert (after["x-gateway-route"], after["x-gateway-version"]) == ("-", state["version"])
        assert before["x-gateway-version"] != after["x-gateway-version"]


async def test_reload_says_whether_answered_turns_are_lines_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with keyed(tmp_path) as on:
        file = tmp_path / "gateway.yaml"
        said = file.read_text()
        seen = []
        for more in ("", "\nobserve: {log: {requests: true, format: json}}\n", ""):
            file.write_text(said + more)
            assert (await on.post("/v1/reload", {}, **as_("root")))[0] == 200
            await on.post(PATH, HI, **as_("b"))
            seen.append("turn answered" in capsys.readouterr().err)
        assert seen == [False, True, False]


async def test_rollback_needs_admin_and_serves_an_earlier_version_again_under_a_new_generation(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        status, _, refused = await on.post("/v1/config/rollback", {}, **as_("b"))
        assert (status, refused["error"]["code"]) == (403, "not_allowed")
        status, _, nothing = await on.post("/v1/config/rollback", {}, **as_("root"))
        assert (status, nothing["error"]["code"]) == (404, "not_found")
        write_route(on.folder, "greeting", {"model": "m", "keywords": ["something else"]})
        _, _, changed = await on.post("/v1/reload", {}, **as_("root"))
        status, _, back = await on.post("/v1/config/rollback", {}, **as_("root"))
        assert (status, back["generation"], back["replicas"], back["stale"]) == (200, 3, 1, False)
        _, headers, _ = await on.post(PATH, HI, **as_("b"))
        assert (headers["x-gateway-route"], headers["x-gateway-version"]) == ("greeting", back["version"])
        status, _, again = await on.post("/v1/config/rollback", {"generation": 2}, **as_("root"))
        assert (status, again["version"].split("-")[1]) == (200, changed["version"].split("-")[1])
        for wrong in ({"generation": "two"}, {"version": 1}, [1]):
            status, _, refused = await on.post("/v1/config/rollback", wrong, **as_("root"))
            assert (status, refused["error"]["code"]) == (400, None)
        # The files are as they were: a reload finds them, as the active version or as the next.
        status, _, state = await on.post("/v1/reload", {}, **as_("root"))
        assert (status, state["version"]) == (200, again["version"])


async def test_broken_file_leaves_the_old_version_serving_and_names_every_problem(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        write_route(on.folder, "greeting", {"model": "nowhere", "keywords": ["hi there"]})
        write_route(on.folder, "other", {"model": "m", "keyword": ["typo"]})
        status, _, body = await on.post("/v1/reload", {}, **as_("root"))
        assert (status, body["error"]["code"]) == (400, "config_invalid")
        files = {Path(problem["file"]).name for problem in body["problems"]}
        assert files == {"greeting.yaml", "other.yaml"}
        assert all(problem["line"] >= 1 and problem["message"] for problem in body["problems"])
        _, _, state = await on.get("/v1/config", **as_("b"))
        assert {Path(problem["file"]).name for problem in state["last_error"]["problems"]} == files
        assert (state["generation"], state["replicas"]) == (1, 1)
        _, headers, _ = await on.post(PATH, HI, **as_("b"))
        assert (headers["x-gateway-route"], headers["x-gateway-version"]) == ("greeting", state["version"])


async def test_route_says_the_decision_without_asking_a_model(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        status, _, decision = await on.post("/v1/route", HI, **as_("b"))
        assert (status, decision["object"], decision["route"], decision["strategy"]) == (
            200,
            "route.decision",
            "greeting",
            "rule",
        )
        assert decision["matched"]
        status, _, refused = await on.post("/v1/route", {"model": "auto"}, **as_("b"))
        assert (status, refused["error"]["param"]) == (400, "messages")


async def test_trace_is_shown_to_its_owner_and_to_admins_alone(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        _, headers, answered = await on.post(PATH, HI, **as_("a"))
        trace_id = headers["x-gateway-trace"]
        trace: dict[str, Any] = {}
        for name in (trace_id, f"req_{trace_id}", answered["id"]):
            for key in ("a", "root"):
                status, _, trace = await on.get(f"/v1/traces/{name}", **as_(key))
                assert (status, trace["id"], trace["owner"]) == (200, trace_id, "a")
            status, _, refused = await on.get(f"/v1/traces/{name}", **as_("b"))
            assert (status, refused["error"]["code"]) == (404, "not_found")
        assert trace["events"][0]["type"] == "request.received"
        _, _, mine = await on.get("/v1/traces", **as_("a"))
        assert [row["id"] for row in mine["data"]] == [trace_id]
        assert (await on.get("/v1/traces", **as_("b")))[2]["data"] == []


async def test_list_of_traces_has_pages_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        for _ in range(3):
            await on.post(PATH, HI, **as_("a"))
        _, _, first = await on.get("/v1/traces?limit=2", **as_("a"))
        assert (len(first["data"]), first["has_more"], first["last_id"]) == (2, True, first["data"][1]["id"])
        _, _, rest = await on.get(f"/v1/traces?limit=2&after={first['last_id']}", **as_("a"))
        assert (len(rest["data"]), rest["has_more"]) == (1, False)
        for query, param in (
            ("limit=0", "limit"),
            ("limit=x", "limit"),
            ("limit=101", "limit"),
            ("limit=²", "limit"),
            ("route=x", "route"),
        ):
            status, _, refused = await on.get(f"/v1/traces?{query}", **as_("a"))
            assert (status, refused["error"]["param"]) == (400, param)


async def test_no_list_passes_over_a_filter_that_it_does_not_know(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        for path in ("approvals", "audit", "effects", "keys", "memories", "runs", "traces"):
            status, _, refused = await on.get(f"/v1/{path}?tool=pay", **as_("root"))
            assert (path, status, refused["error"]["param"]) == (path, 400, "tool")
            assert (await on.get(f"/v1/{path}?limit=1", **as_("root")))[0] == 200


async def test_refused_request_has_a_trace_of_its_owner(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        _, headers, _ = await on.post(PATH, {"model": "auto"}, **as_("a"))
        _, _, trace = await on.get(f"/v1/traces/{headers['x-gateway-trace']}", **as_("a"))
        assert (trace["status"], [event["type"] for event in trace["events"]]) == (400, ["request.refused"])


async def test_metrics_need_a_role_and_probes_do_not(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        await on.post(PATH, HI, **as_("a"))
        for key, wanted in (("m", 200), ("root", 200), ("a", 403)):
            assert (await on.get("/metrics", **as_(key)))[0] == wanted
        assert (await on.get("/metrics"))[0] == 401
        _, headers, text = await on.get("/metrics", **as_("m"))
        assert headers["content-type"].startswith("text/plain")
        assert "hermes_requests" in text
        assert (await on.get("/healthz"))[2] == {"status": "ok"}
        assert (await on.get("/readyz"))[2]["status"] == "ready"


async def test_what_does_not_exist_is_an_openai_error_with_the_usual_headers(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        for method, path, status, code in (
            ("GET", "/v1/nothing", 404, "unknown_url"),
            ("POST", "/nothing", 404, "unknown_url"),
            ("GET", PATH, 405, "method_not_allowed"),
            ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ):
            async with on.http.request(method, on.url + path) as response:
                assert response.status == status
                error = (await response.json())["error"]
                assert (error["code"], error["type"], error["param"]) == (code, "invalid_request_error", None)
                assert len(response.headers["x-gateway-trace"]) == 32
                assert response.headers["x-request-id"].startswith("req_")


async def test_every_answer_has_a_trace_id_of_its_own(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        seen = [
            (await on.get(path, **as_("a")))[1]["x-gateway-trace"]
            for path in ("/healthz", "/v1/models", "/metrics", "/nothing")
        ]
        assert len(set(seen)) == 4


async def test_tools_are_listed_for_those_who_may_be_offered_them(tmp_path: Path) -> None:
    plugin = """
from gateway.tools import tool

@tool(allowed_roles=("admin",))
async def secret() -> str:
    \"\"\"Do what only administrators may.\"\"\"
    return "x"

@tool()
async def open_to_all(number: int) -> int:
    \"\"\"Give the number back.\"\"\"
    return number

def register(registry):
    registry.add(secret)
    registry.add(open_to_all)
"""
    async with (
        ScriptedUpstream() as upstream,
        serving(tmp_path, native_config(upstream.base_url, keys=KEYS), plugins={"p": plugin}) as on,
    ):
        listed: dict[str, Any] = {}
        for key, names in (("root", ["secret", "open_to_all"]), ("a", ["open_to_all"])):
            _, _, listed = await on.get("/v1/tools", **as_(key))
            assert [tool["id"] for tool in listed["data"]] == names
        assert json.dumps(listed["data"][0]["parameters"]["properties"]["number"]).count("integer") == 1
