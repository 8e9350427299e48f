from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.api.address import address_of
from gateway.api.auth import caller, for_user, read_headers
from gateway.api.local import refuse_strangers
from gateway.config.models import KeysConfig
from gateway.errors import GatewayError, InvalidRequest, NotAllowed, Unauthenticated
from gateway.security.keys import KeyRing
from tests.serving import native_config, serving

KEYS = KeyRing(
    KeysConfig.model_validate(
        {
            "static": {
                "app": {"key": "sk-app", "tags": ["vip"]},
                "front": {"key": "sk-front", "roles": ["set_user", "set_tags", "metrics"]},
            }
        }
    ),
    "127.0.0.1",
)


def scope(**headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http", "headers": named}


async def test_key_is_read_from_either_header() -> None:
    for headers in ({"authorization": "Bearer sk-app"}, {"x_api_key": "sk-app"}, {"authorization": "bearer  sk-app "}):
        principal, wishes = await read_headers(scope(**headers), KEYS, 0)
        assert (principal.key_id, set(principal.tags)) == ("app", {"vip"})
        assert (wishes.tags, wishes.tools, wishes.deadline_s, wishes.session) == (frozenset(), None, None, None)


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer sk-wrong"}, {"authorization": "sk-app"}, {"x_api_key": ""}]
)
async def test_unknown_or_missing_key_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        await read_headers(scope(**headers), KEYS, 0)


async def test_wishes_are_read() -> None:
    sent = scope(
        authorization="Bearer sk-front",
        x_gateway_user="J%C3%BCrgen",
        x_gateway_tags="eu, gold%20plus,,",
        x_gateway_session="s1",
        x_gateway_tools="look, now",
        x_gateway_deadline_ms="1500 ",
        x_gateway_fallbacks="none",
    )
    principal, wishes = await read_headers(sent, KEYS, 0)
    assert (principal.user, principal.owner) == ("Jürgen", "front/Jürgen")
    assert principal.roles == {"set_user", "set_tags", "metrics"}
    assert wishes.tags == {"eu", "gold plus"}
    assert sorted(wishes.tools or ()) == ["look", "now"]
    assert (wishes.session, wishes.deadline_s) == ("s1", 1.5)


async def test_no_tools_can_be_wished_for() -> None:
    _, wishes = await read_headers(scope(authorization="Bearer sk-app", x_gateway_tools="none"), KEYS, 0)
    assert wishes.tools == frozenset()


REFUSED: list[tuple[dict[str, str], type[GatewayError], str | None]] = [
    ({"x_gateway_user": "a"}, NotAllowed, None),
    ({"x_gateway_tags": "a"}, NotAllowed, None),
    ({"x_gateway_deadline_ms": "soon"}, InvalidRequest, "x-gateway-deadline-ms"),
    ({"x_gateway_deadline_ms": "0"}, InvalidRequest, "x-gateway-deadline-ms"),
    ({"x_gateway_deadline_ms": "-5"}, InvalidRequest, "x-gateway-deadline-ms"),
    ({"x_gateway_deadline_ms": "²"}, InvalidRequest, "x-gateway-deadline-ms"),
    ({"x_gateway_deadline_ms": "9" * 5000}, InvalidRequest, "x-gateway-deadline-ms"),
    ({"x_gateway_fallbacks": "all"}, InvalidRequest, "x-gateway-fallbacks"),
    ({"idempotency_key": "k" * 256}, InvalidRequest, "Idempotency-Key"),
    ({"idempotency_key": ""}, InvalidRequest, "Idempotency-Key"),
    ({"x_gateway_events": "all"}, InvalidRequest, "x-gateway-events"),
]


@pytest.mark.parametrize(("headers", "kind", "param"), REFUSED)
async def test_headers_that_cannot_be_honoured_are_refused(
    headers: dict[str, str], kind: type[GatewayError], param: str | None
) -> None:
    with pytest.raises(kind) as caught:
        await read_headers(scope(authorization="Bearer sk-app", **headers), KEYS, 0)
    assert getattr(caught.value, "param", None) == param


async def test_role_is_needed_where_one_is_asked_for() -> None:
    assert (await caller(scope(authorization="Bearer sk-front"), KEYS, 0, role="metrics")).key_id == "front"
    with pytest.raises(NotAllowed, match="admin"):
        await caller(scope(authorization="Bearer sk-front"), KEYS, 0, role="admin")


@pytest.mark.parametrize(
    ("headers", "answered"),
    [
        ({"host": "127.0.0.1:8080"}, True),
        ({"host": "localhost:8080"}, True),
        ({"host": "LOCALHOST"}, True),
        ({"host": "[::1]:8080"}, True),
        ({"host": "hermes.localhost:8080"}, True),
        ({"host": "127.0.0.1:8080", "origin": "http://localhost:5173"}, True),
        ({"host": "evil.example:8080"}, False),
        ({"host": "127.0.0.1.evil.example"}, False),
        ({"host": "localhost.evil.example"}, False),
        ({"host": "[2001:db8::1]:8080"}, False),
        ({"host": ""}, False),
        ({"host": "127.0.0.1:8080", "origin": "http://evil.example"}, False),
        ({"host": "127.0.0.1:8080", "origin": "null"}, False),
    ],
)
def test_open_gateway_answers_this_machine_and_no_foreign_page(headers: dict[str, str], answered: bool) -> None:
    scope = {"headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    if answered:
        refuse_strangers(scope)
    else:
        with pytest.raises(NotAllowed):
            refuse_strangers(scope)


async def test_foreign_host_is_refused_while_no_key_exists_and_judged_by_its_key_afterwards(tmp_path: Path) -> None:
    open_one = native_config("http://127.0.0.1:9/v1")
    async with serving(tmp_path, open_one) as served:
        assert (await served.get("/v1/models", host="evil.example"))[0] == 403
        assert (await served.get("/v1/models"))[0] == 200
    closed = native_config("http://127.0.0.1:9/v1", keys={"static": {"app": {"key": "sk-test-1234567890"}}})
    async with serving(tmp_path, closed) as served:
        headers = {"host": "evil.example", "authorization": "Bearer sk-test-1234567890"}
        assert (await served.get("/v1/models", **headers))[0] == 200


async def test_end_users_and_sessions_are_named_by_the_headers_of_other_programs_for_keys_that_may() -> None:
    """R-owners: a user's name is taken from whom it may be taken, and from nobody else."""
    ring = KeyRing(
        KeysConfig.model_validate(
            {
                "static": {"app": {"key": "sk-app"}, "front": {"key": "sk-front", "roles": ["set_user"]}},
                "user_headers": ["X-OpenWebUI-User-Id", "X-User"],
                "session_headers": ["X-Chat-Id"],
            }
        ),
        "127.0.0.1",
    )
    sent = {"x_user": "bob", "x_openwebui_user_id": "eve", "x_chat_id": "c1"}
    principal, wishes = await read_headers(scope(authorization="Bearer sk-front", **sent), ring, 0)
    assert (principal.owner, wishes.session) == ("front/eve", "c1")
    named = {**sent, "x_gateway_user": "own", "x_gateway_session": "s"}
    principal, wishes = await read_headers(scope(authorization="Bearer sk-front", **named), ring, 0)
    assert (principal.owner, wishes.session) == ("front/own", "s")
    # Without the role they are another program's, and say nothing here.
    principal, wishes = await read_headers(scope(authorization="Bearer sk-app", **sent), ring, 0)
    assert (principal.owner, wishes.session) == ("app", "c1")


async def test_the_body_names_the_end_user_where_no_header_does() -> None:
    front, _ = await read_headers(scope(authorization="Bearer sk-front"), KEYS, 0)
    assert for_user(front, "eve").owner == "front/eve"
    assert for_user(front, None).owner == for_user(front, "").owner == "front"
    named, _ = await read_headers(scope(authorization="Bearer sk-front", x_gateway_user="bob"), KEYS, 0)
    assert for_user(named, "eve").owner == "front/bob"
    app, _ = await read_headers(scope(authorization="Bearer sk-app"), KEYS, 0)
    assert for_user(app, "eve").owner == "app"
    for wrong in ("a\nb", "\x00", "x" * 257, "\ud800"):
        with pytest.raises(InvalidRequest) as caught:
            for_user(front, wrong)
        assert caught.value.param == "user"


TRUSTED = ("127.0.0.1", "10.0.0.0/8", "::1")


@pytest.mark.parametrize(
    ("peer", "hops", "address"),
    [
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ("127.0.0.1", ["9.9.9.9, 1.2.3.4"], "1.2.3.4"),
        ("127.0.0.1", ["9.9.9.9, 1.2.3.4, 10.1.1.1"], "1.2.3.4"),
        ("127.0.0.1", ["9.9.9.9", "1.2.3.4"], "1.2.3.4"),
        ("127.0.0.1", ["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        ("127.0.0.1", ["1.2.3.4:5000"], "1.2.3.4"),
        ("127.0.0.1", ['"[2001:db8::1]:5000"'], "2001:db8::1"),
        ("127.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("127.0.0.1", ["::ffff:1.2.3.4"], "1.2.3.4"),
        ("::ffff:127.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ("127.0.0.1", ["1.2.3.4, nonsense"], "unknown"),
        ("127.0.0.1", ["1.2.3.4, nonsense, 10.1.1.1"], "10.1.1.1"),
        ("127.0.0.1", [""], "unknown"),
        ("8.8.8.8", ["1.2.3.4"], "8.8.8.8"),
    ],
)
def test_the_clients_address_is_the_right_most_hop_that_is_no_trusted_proxy_B080(
    peer: str, hops: list[str], address: str
) -> None:
    headers = [(b"x-forwarded-for", hop.encode()) for hop in hops]
    assert address_of({"client": (peer, 1), "headers": headers}, TRUSTED) == address
    assert address_of({"client": (peer, 1), "headers": headers}, ()) == peer
