from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.models import OutboundConfig
from gateway.security.outbound import OutboundGuard
from plugins import web
from plugins.web import MAX_CHARS, main_text
from tests.security.test_outbound import Server, redirect, reply, serving
from tests.tools.workshop import Workshop, open_workshop

PAGE = """<!doctype html><html><head><title> A  page </title><style>p{}</style></head><body>
<nav>Home Products</nav><header>Banner</header>
<main><h1>Heading</h1><p>First <b>bold</b> words.</p><script>alert(1)</script><ul><li>one</li><li>two</li></ul></main>
<footer>Imprint</footer></body></html>"""


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


def workshop(*allow_private: str) -> object:
    guard = OutboundGuard(OutboundConfig(allow_private=allow_private))
    return open_workshop(places=[Path(web.__file__)], resources={"outbound": guard}, max_result_bytes=65536)


@pytest.fixture
async def reader() -> AsyncIterator[Workshop]:
    async with workshop("127.0.0.1") as made:  # type: ignore[attr-defined]
        yield made


@pytest.fixture
async def guarded() -> AsyncIterator[Workshop]:
    async with workshop() as made:  # type: ignore[attr-defined]
        yield made


def test_the_main_part_is_kept_and_the_rest_is_not() -> None:
    assert main_text(PAGE) == ("A page", "Heading\nFirst bold words.\none\ntwo")


def test_a_page_without_a_main_part_gives_its_body() -> None:
    assert main_text("<p>Hello<br>world</p><div hidden>no</div>") == ("", "Hello\nworld")
    assert main_text("") == ("", "")
    assert main_text("<h1>Title</h1>text") == ("Title", "Title\ntext")


async def test_a_page_is_fetched_with_title_and_main_text(server: Server, reader: Workshop) -> None:
    server.answers = {"/go": redirect("/page"), "/page": reply(PAGE.encode(), Content_Type="text/html; charset=utf-8")}
    found = await reader.result("web_fetch", url=server.url("/go"))
    assert found == {"url": server.url("/page"), "title": "A page", "text": "Heading\nFirst bold words.\none\ntwo"}


async def test_at_most_8000_characters_come_back(server: Server, reader: Workshop) -> None:
    server.answers = {"/": reply(f"<p>{'字' * 20_000}</p>".encode(), Content_Type="text/html; charset=utf-8")}
    found = await reader.result("web_fetch", url=server.url("/"))
    assert found["text"] == "字" * MAX_CHARS
    assert found["left_out"] == "12000 of 20000 characters"


async def test_plain_text_comes_as_it_is_and_what_is_no_text_is_refused(server: Server, reader: Workshop) -> None:
    server.answers = {
        "/text": reply(b"a < b"),
        "/json": reply(b'{"a": 1}', Content_Type="application/json"),
        "/image": reply(b"\x89PNG", Content_Type="image/png"),
        "/gone": reply(b"secret", "410 Gone"),
    }
    assert (await reader.result("web_fetch", url=server.url("/text")))["text"] == "a < b"
    assert (await reader.result("web_fetch", url=server.url("/json")))["text"] == '{"a": 1}'
    assert "image/png" in str((await reader.call("web_fetch", {"url": server.url("/image")})).error)
    gone = await reader.call("web_fetch", {"url": server.url("/gone")})
    assert gone.error == "the page answered with status 410"


async def test_b031_a_private_page_is_not_fetched(server: Server, guarded: Workshop) -> None:
    server.answers = {"/": reply(b"secret")}
    outcome = await guarded.call("web_fetch", {"url": server.url("/")})
    assert "address not allowed" in str(outcome.error)
    assert server.connections == 0
