from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from gateway.api.address import address_of
from gateway.api.auth import caller, for_user, read_before, read_headers
from gateway.api.head import Said
from gateway.api.local import refuse_strangers
from gateway.config.models import KeysConfig
from gateway.errors import GatewayError, InvalidRequest, NotAllowed, Unauthenticated
from gateway.security.key_book import KeyBook
from gateway.security.keys import KeyRing
from gateway.store.key_records import KeyRow
from tests.serving import native_config, serving


def ring() -> KeyRing:
    """The keys of a configuration."""
    static = {
        "app": {"key": "sk-app", "tags": ["vip"]},
        "front": {"key": "sk-front", "roles": ["set_user", "set_tags", "metrics"]},
    }
    return KeyRing(KeysConfig.model_validate({"static": static}), "127.0.0.1")


KEYS = ring()


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


class Book:
    """Stands for the database's keys."""

    row: KeyRow | None = KeyRow(id="k1", name="shop", owner="root", created_at=0, expires_at=100)

    def known(self, _: str) -> KeyRow | None:
        """What it says at once."""
        return self.row

    async def find(self, _: str) -> KeyRow | None:
        """What it says when it is asked."""
        return self.row

    async def ever_created(self) -> bool:
        """There are keys."""
        return True


NONE = frozenset[str]()


async def test_what_a_head_says_is_kept_as_long_as_the_same_keys_are_asked() -> None:
    sent = scope(authorization="Bearer sk-front", x_gateway_user="ann", content_length="5")
    keys, said, forward = ring(), Said(), frozenset({"x-gateway-user"})
    assert read_before(said, keys, 0, NONE) is None
    await read_headers(sent, keys, 0, NONE, said)
    assert (
        read_before(said, keys, 0, NONE) is None
    )  # whose key it is had to be looked up: that is remembered by the ring
    found = await read_headers(sent, keys, 0, NONE, said)
    assert read_before(said, keys, 0, NONE) == found
    assert found[0].user == "ann"
    assert read_before(said, ring(), 0, NONE) is None
    assert read_before(said, keys, 0, forward) is None
    again = await read_headers(sent, keys, 0, forward, said)
    assert read_before(said, keys, 0, forward) == again
    assert again[1].headers == {"x-gateway-user": "ann"}


async def test_a_key_of_the_database_is_good_as_long_as_the_book_says_so() -> None:
    book, said = Book(), Said()
    keys = KeyRing(KeysConfig(), "127.0.0.1", book=cast(KeyBook, book))
    sent = scope(authorization="Bearer sk-shop")
    await read_headers(sent, keys, 0, NONE, said)
    found = await read_headers(sent, keys, 0, NONE, said)
    assert read_before(said, keys, 99, NONE) == found
    with pytest.raises(Unauthenticated, match="expired"):
        read_before(said, keys, 100, NONE)
    row = book.row
    assert row is not None
    for changed in (None, replace(row, tags=("vip",))):
        book.row = changed
        assert read_before(said, keys, 0, NONE) is None
    book.row = row
    assert read_before(said, keys, 0, NONE) == found


async def test_what_is_made_of_a_length_is_not_kept() -> None:
    named = KeyRing(
        KeysConfig.model_validate(
            {"static": {"app": {"key": "sk-app"}}, "session_headers": ["content-length"], "user_headers": []}
        ),
        "127.0.0.1",
    )
    for keys, forward in ((named, NONE), (ring(), frozenset({"content-length"}))):
        said = Said()
        for _ in range(2):
            await read_headers(scope(authorization="Bearer sk-app", content_length="5"), keys, 0, forward, said)
        assert read_before(said, keys, 0, forward) is None


async def test_a_key_that_is_blocked_or_taken_out_ends_a_connection_s_requests_too(tmp_path: Path) -> None:
    demo = {"backends": {"demo": {"provider": "demo"}}, "models": {"m": {"backends": ["demo"]}}}
    static = {"admin_key": "root", "static": {"app": {"key": "sk-app"}}}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
    async with serving(tmp_path, {**native_config("http://127.0.0.1:9/v1"), **demo, "keys": static}) as on:

        async def call(method: str, path: str, wish: dict[str, Any]) -> dict[str, Any]:
            root = {"authorization": "Bearer root"}
            async with on.http.request(method, on.url + path, json=wish, headers=root) as response:
                assert response.status == 200
                return dict(await response.json())

        made = await call("POST", "/v1/keys", {"name": "shop"})
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(on.url).port)

        async def asked(key: str) -> int:
            lines = f"Host: h\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{lines}".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            await reader.readexactly(int(head.split("content-length: ")[1].split()[0]))
            return int(head.split()[1])

        assert [await asked(made["key"]) for _ in range(5)] == [200] * 5
        await call("PATCH", f"/v1/keys/{made['id']}", {"blocked": True})
        assert await asked(made["key"]) == 401
        await call("PATCH", f"/v1/keys/{made['id']}", {"blocked": False})
        assert [await asked(made["key"]) for _ in range(3)] == [200] * 3
        assert [await asked("sk-app") for _ in range(5)] == [200] * 5
        file = on.folder / "gateway.yaml"
        file.write_text(file.read_text().replace("sk-app", "sk-other"))
        await call("POST", "/v1/reload", {})
        assert [await asked("sk-app"), await asked("sk-other")] == [401, 200]
        writer.close()
