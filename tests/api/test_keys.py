"""Keys over HTTP and by command: made, used, changed, ended; and which endpoints ask for one."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.api.application import create_app
from gateway.api.services import Services
from gateway.settings import Settings
from tests.serving import Served, native_config, serving

ADMIN = {"authorization": "Bearer root"}
# What anybody may ask, with or without a key; everything else answers 401.
OPEN = {"GET /healthz", "GET /readyz"}


def config(**more: Any) -> dict[str, Any]:
    demo = {"backends": {"demo": {"provider": "demo"}}, "models": {"m": {"backends": ["demo"]}}}
    return {**native_config("http://127.0.0.1:9/v1"), **demo, "keys": {"admin_key": "root"}, **more}


async def chat(served: Served, key: str) -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    return (await served.post("/v1/chat/completions", body, authorization=f"Bearer {key}"))[0]


async def call(served: Served, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    async with served.http.request(method, served.url + path, json=body, headers=headers or ADMIN) as response:
        return response.status, await response.json()


async def test_a_key_is_made_used_changed_exchanged_and_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, config(teams={"shop": {"models": ["m"]}})) as served:
        wish = {
            "name": "shop",
            "team": "shop",
            "tags": ["vip"],
            "limits": {"requests_per_min": 60},
            "budgets": {"day": 5},
        }
        status, made = await call(served, "POST", "/v1/keys", wish)
        assert status == 200, made
        key, path = made["key"], f"/v1/keys/{made['id']}"
        assert {name: made[name] for name in wish} == wish
        assert await chat(served, key) == 200
        listed = (await call(served, "GET", "/v1/keys"))[1]
        assert key not in json.dumps(listed)
        assert [each["id"] for each in listed["data"]] == [made["id"]]
        assert listed["data"][0]["secrets"][0]["prefix"] == key[:8]
        assert (await call(served, "PATCH", path, {"blocked": True}))[1]["blocked"] is True
        assert await chat(served, key) == 401
        assert (await call(served, "PATCH", path, {"blocked": False}))[0] == 200
        assert await chat(served, key) == 200
        rotated = (await call(served, "POST", f"{path}/rotate", {"overlap_s": 3600}))[1]
        assert [await chat(served, key), await chat(served, rotated["key"])] == [200, 200]
        newest = (await call(served, "POST", f"{path}/rotate"))[1]["key"]
        assert [await chat(served, each) for each in (key, rotated["key"], newest)] == [401, 401, 200]
        ended = (await call(served, "DELETE", path))[1]
        assert ended["revoked_at"] is not None
        assert await chat(served, newest) == 401
        assert (await call(served, "PATCH", path, {"blocked": False}))[0] == 404
        assert (await call(served, "DELETE", "/v1/keys/key_x"))[0] == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "x", "nmae": "y"}, None),
        ({"name": "x", "roles": "admin"}, "roles"),
        ({"name": "x", "limits": {"requests_per_min": True}}, "limits.requests_per_min"),
        ([], None),
    ],
)
async def test_a_wrong_wish_is_a_400_that_names_its_field(tmp_path: Path, body: Any, param: str | None) -> None:
    async with serving(tmp_path, config()) as served:
        status, answer = await call(served, "POST", "/v1/keys", body)
        assert (status, answer["error"]["param"]) == (400, param), answer


async def test_every_endpoint_but_the_probes_asks_for_a_key(tmp_path: Path) -> None:
    """R-closed: there are two open endpoints."""
    app = create_app(Services(*[None] * len(Services.__dataclass_fields__)))  # type: ignore[arg-type]
    async with serving(tmp_path, config()) as served:
        endpoints = _endpoints(app.routes)
        assert len(endpoints) > 15
        found: dict[str, list[int]] = {}
        for endpoint in sorted(endpoints):
            method, path = endpoint.split(" ")
            path = re.sub(r"\{[^}]*\}", "x", path)
            found[endpoint] = []
            for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
                async with served.http.request(method, served.url + path, json={}, headers=headers) as response:
                    found[endpoint].append(response.status)
        assert {name for name, statuses in found.items() if statuses != [401] * 3} == OPEN
        assert all(found[name] == [200] * 3 for name in OPEN)


def _endpoints(routes: Any, above: str = "") -> set[str]:
    found: set[str] = set()
    for route in routes:
        if (inner := getattr(route, "effective_route_contexts", None)) is not None:
            found |= _endpoints(inner())
        else:
            path = getattr(route, "path_format", None) or route.path
            found |= {f"{method} {path}" for method in route.methods - {"HEAD"}}
    return found


@pytest.mark.parametrize("role", ["approver", "set_user", "set_tags", "metrics"])
async def test_only_an_administrator_comes_near_keys(tmp_path: Path, role: str) -> None:
    keys = {"admin_key": "root", "static": {"app": {"key": "sk", "roles": [role]}}}
    async with serving(tmp_path, config(keys=keys)) as served:
        made = (await call(served, "POST", "/v1/keys", {"name": "n"}))[1]
        for method, path in (
            ("GET", "/v1/keys"),
            ("POST", "/v1/keys"),
            ("PATCH", f"/v1/keys/{made['id']}"),
            ("DELETE", f"/v1/keys/{made['id']}"),
            ("POST", f"/v1/keys/{made['id']}/rotate"),
        ):
            status, answer = await call(served, method, path, {"name": "n"}, authorization="Bearer sk")
            assert (status, answer["error"]["code"]) == (403, "not_allowed")


async def test_the_first_key_by_command_closes_a_running_open_gateway(tmp_path: Path) -> None:
    """R-open-once: no key ever opens it again."""
    async with serving(tmp_path, config(keys={})) as served:
        assert await chat(served, "any") == 200
        made = await command(served, "create", "--name", "shop", "--limit", "requests_per_min=60", "--expires", "30d")
        async with asyncio.timeout(30):
            while await chat(served, "any") != 401:
                await asyncio.sleep(0.05)
        assert await chat(served, made["key"]) == 200
        listed = await command(served, "list")
        assert [(each["name"], each["limits"]) for each in listed] == [("shop", {"requests_per_min": 60})]
        await command(served, "revoke", made["id"])
        async with asyncio.timeout(30):
            while await chat(served, made["key"]) != 401:
                await asyncio.sleep(0.05)
        assert await chat(served, "any") == 401


async def test_the_command_works_over_http_and_imports_by_hash(tmp_path: Path) -> None:
    async with serving(tmp_path, config()) as served:
        lines = tmp_path / "old.jsonl"
        import hashlib

        digests = {name: hashlib.sha256(f"sk-{name}".encode()).hexdigest() for name in ("a", "b")}
        lines.write_text("".join(json.dumps({"name": name, "sha256": it}) + "\n" for name, it in digests.items()))
        away = {"GATEWAY_URL": served.url, "GATEWAY_KEY": "root"}
        assert len(await command(served, "import", str(lines), **away)) == 2
        assert [await chat(served, "sk-a"), await chat(served, "sk-b"), await chat(served, "sk-c")] == [200, 200, 401]
        made = await command(served, "create", "--name", "n", "--models", "m,n", **away)
        assert made["models"] == ["m", "n"]
        rotated = await command(served, "rotate", made["id"], "--overlap", "24h", **away)
        assert [await chat(served, made["key"]), await chat(served, rotated["key"])] == [200, 200]
        await command(served, "change", made["id"], "--block", **away)
        assert await chat(served, made["key"]) == 401
        assert len(await command(served, "list", **away)) == 3


async def command(served: Served, *words: str, **variables: str) -> Any:
    """What `hermes-gateway keys` prints."""
    import os

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "keys", *words, "--json"),
        *("--config", str(served.folder / "gateway.yaml")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


async def test_a_reload_that_would_leave_nobody_a_key_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, config()) as served:
        text = (served.folder / "gateway.yaml").read_text().replace("keys:\n  admin_key: root\n", "")
        (served.folder / "gateway.yaml").write_text(text)
        status, answer = await call(served, "POST", "/v1/reload")
        assert status == 400
        assert "keys create" in json.dumps(answer)
        assert (await call(served, "GET", "/v1/keys"))[0] == 200


async def test_the_administrators_key_comes_from_the_environment(tmp_path: Path) -> None:
    settings = Settings(GATEWAY_ADMIN_KEY="from-outside")
    async with serving(tmp_path, config(keys={}), settings=settings) as served:
        assert (await call(served, "GET", "/v1/keys", authorization="Bearer from-outside"))[0] == 200
        assert await chat(served, "any") == 401
