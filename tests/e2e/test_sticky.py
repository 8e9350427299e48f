"""`router.sticky` over real sockets: who stays where, over versions and over replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.replicas import Replica, replica
from tests.replicas import config as shared_config
from tests.replies import answer
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream
from tests.valkey import valkey

ROUTES = {"legal": {"model": "strong", "keywords": ["contract"]}, "travel": {"model": "m", "keywords": ["flight"]}}


def config(base_url: str, *, sticky: bool = True, **more: Any) -> dict[str, Any]:
    both = {name: {"backends": ["b1"], "retries": 0} for name in ("m", "strong")}
    return native_config(
        base_url, models=both, router={"default": "m", "sticky": sticky, "semantic": {"enabled": False}}, **more
    )


def says(*texts: str) -> list[dict[str, str]]:
    """User and assistant in turn."""
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


async def went(gateway: Served, *texts: str, **headers: str) -> tuple[str, str, str]:
    """Route, strategy and model of an answered conversation."""
    body = {"model": "auto", "messages": says(*texts)}
    status, said, found = await gateway.post("/v1/chat/completions", body, **headers)
    assert status == 200, found
    return said["x-gateway-route"], said["x-gateway-strategy"], said["x-gateway-model"]


async def went_at(gateway: Replica, *texts: str, **headers: str) -> tuple[str, str]:
    """The same of a replica: route and strategy."""
    body = {"model": "auto", "messages": says(*texts)}
    async with gateway.http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200
        return response.headers["x-gateway-route"], response.headers["x-gateway-strategy"]


async def test_a_conversation_stays_by_its_session_or_by_what_was_said(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream.base_url), ROUTES) as gateway,
    ):
        assert await went(gateway, "my contract", x_gateway_session="s1") == ("legal", "rule", "strong")
        assert await went(gateway, "thanks", x_gateway_session="s1") == ("legal", "sticky", "strong")
        assert await went(gateway, "thanks", x_gateway_session="s2") == ("-", "default", "m")
        assert await went(gateway, "my flight", x_gateway_session="s1") == ("travel", "rule", "m")
        assert await went(gateway, "thanks", x_gateway_session="s1") == ("travel", "sticky", "m")
        # Without a session: by the messages that are repeated.
        assert await went(gateway, "a contract") == ("legal", "rule", "strong")
        talk = ["a contract", "ok", "thanks"]
        assert await went(gateway, *talk) == ("legal", "sticky", "strong")
        assert await went(gateway, *talk, "ok", "really") == ("legal", "sticky", "strong")
        assert await went(gateway, "thanks") == ("-", "default", "m")
        # Asking where it would go is told the same and leaves nothing behind.
        body = {"model": "auto", "messages": says("my flight")}
        _, _, asked = await gateway.post("/v1/route", body, x_gateway_session="s3")
        assert (asked["route"], asked["strategy"]) == ("travel", "rule")
        body = {"model": "auto", "messages": says("thanks")}
        _, _, asked = await gateway.post("/v1/route", body, x_gateway_session="s3")
        assert asked["strategy"] == "default"
        _, _, asked = await gateway.post("/v1/route", body, x_gateway_session="s1")
        assert (asked["route"], asked["strategy"]) == ("travel", "sticky")
        _, said, _ = await gateway.post("/v1/chat/completions", body, x_gateway_session="s1")
        traced = await gateway.trace(said["x-gateway-trace"])
        [made] = [event for event in traced["events"] if event["type"] == "decision.made"]
        assert {"route": "travel", "strategy": "sticky", "reason": asked["reason"]}.items() <= made["data"].items()
        assert "stays on 'travel'" in asked["reason"]
        _, _, metrics = await gateway.get("/metrics")
        assert 'hermes_decisions_total{route="travel",strategy="sticky"}' in metrics


async def test_another_key_or_user_with_the_same_session_is_another_conversation(tmp_path: Path) -> None:
    keys = {"static": {name: {"key": f"key-of-{name}", "roles": ["set_user"]} for name in ("one", "two")}}
    one, two = {"authorization": "Bearer key-of-one"}, {"authorization": "Bearer key-of-two"}
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream.base_url, keys=keys), ROUTES) as gateway,
    ):
        assert (await went(gateway, "my contract", x_gateway_session="s", **one))[0] == "legal"
        assert (await went(gateway, "my contract", **one))[0] == "legal"
        assert (await went(gateway, "thanks", x_gateway_session="s", **one))[1] == "sticky"
        for other in (two, {**one, "x-gateway-user": "ann"}):
            assert (await went(gateway, "thanks", x_gateway_session="s", **other))[1] == "default"
            assert (await went(gateway, "my contract", "ok", "thanks", **other))[1] == "default"


async def test_nothing_stays_where_it_is_switched_off(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream.base_url, sticky=False), ROUTES) as gateway,
    ):
        assert (await went(gateway, "my contract", x_gateway_session="s"))[0] == "legal"
        assert (await went(gateway, "thanks", x_gateway_session="s"))[1] == "default"


@pytest.mark.parametrize("named", [{"x_gateway_session": "s"}, {}])
async def test_no_conversation_stays_on_a_route_that_a_reload_removed_or_moved(
    tmp_path: Path, named: dict[str, str]
) -> None:
    """B082."""
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, config(upstream.base_url), ROUTES) as gateway,
    ):
        talk = ["my contract", "ok", "thanks"]
        await went(gateway, *talk[:1], **named)
        assert await went(gateway, *talk, **named) == ("legal", "sticky", "strong")
        file = tmp_path / "routes" / "legal.yaml"
        file.write_text(file.read_text().replace("strong", "m"))
        assert (await gateway.post("/v1/reload", {}))[0] == 200
        assert await went(gateway, *talk, **named) == ("legal", "sticky", "m")
        file.unlink()
        assert (await gateway.post("/v1/reload", {}))[0] == 200
        assert await went(gateway, *talk, **named) == ("-", "default", "m")
        body = {"model": "auto", "messages": says(*talk)}
        _, _, asked = await gateway.post("/v1/route", body, **named)
        assert asked["strategy"] == "default"


async def test_replicas_that_share_a_server_share_conversations(tmp_path: Path) -> None:
    settings = shared_config()
    settings["router"]["sticky"] = True
    routes = {"legal": {"model": "n", "keywords": ["contract"]}}
    with valkey() as server:
        async with (
            replica(tmp_path / "one", server, settings, routes) as one,
            replica(tmp_path / "two", server, settings, routes) as two,
        ):
            session = {"x-gateway-session": "s"}
            assert await went_at(one, "my contract", **session) == ("legal", "rule")
            assert await went_at(two, "thanks", **session) == ("legal", "sticky")
            assert await went_at(one, "a contract") == ("legal", "rule")
            assert await went_at(two, "a contract", "ok", "thanks") == ("legal", "sticky")
            # Away, the server costs an answer its stickiness and nothing else.
            two.wire.cut()
            assert await went_at(two, "thanks", **session) == ("-", "default")
