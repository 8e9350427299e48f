"""A head that is met again is not read again, and nobody can tell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.api import connection
from gateway.api.connection import Connection
from gateway.api.cycle import CYCLE, ClientGone, Cycle
from gateway.api.head import Head, head_of
from gateway.api.http import read_body
from gateway.errors import GatewayError


class Wire(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.closed = False

    def write(self, _: bytes) -> None:  # type: ignore[override]
        """Written."""

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self.closed

    def close(self) -> None:
        """Close."""
        self.closed = True

    def pause_reading(self) -> None:
        """Never mind."""

    def resume_reading(self) -> None:
        """Never mind."""


Seen = list[tuple[Any, ...]]


class Counting(Connection):
    """Counts the heads it has to read."""

    parsed = 0

    def on_message_begin(self) -> None:
        """One more."""
        self.parsed += 1
        super().on_message_begin()


async def fed(*pieces: bytes, hurried: bool = False) -> tuple[Seen, bool, int]:
    """What an app gets of a client that writes these pieces, whether it was let go, and how many heads were parsed.

    A `hurried` one waits for no answer.
    """
    seen: Seen = []

    async def app(scope: Scope, _: Any, __: Any) -> None:
        cycle: Cycle = scope[CYCLE]
        try:
            body = await read_body(scope, 1000)
        except (ClientGone, GatewayError) as error:
            body = type(error).__name__.encode()
        assert cycle.said is None or b"content-encoding" not in dict(scope["headers"])
        seen.append((scope["method"], scope["path"], scope["query_string"], scope["headers"], cycle.keep_alive, body))
        cycle.answer(200, b"{}")

    state = ServerState()
    config = Config(app, log_config=None)
    config.loaded_app = app
    made = Counting(config, state, {})
    wire = Wire()
    made.connection_made(wire)
    for piece in pieces:
        if wire.closed:
            break
        made.data_received(piece)
        for _ in range(0 if hurried else 3):
            await asyncio.sleep(0)
    for _ in range(3 * len(pieces)):
        await asyncio.sleep(0)
    closed = wire.closed
    made.connection_lost(None)
    await asyncio.gather(*state.tasks)
    return seen, closed, made.parsed


def post(body: bytes = b"hello", *lines: str, length: str | None = None) -> bytes:
    named = [
        "POST /v1/x?a=1 HTTP/1.1",
        "Host: here",
        f"Content-Length: {length or len(body)}",
        "Authorization: Bearer k",
    ]
    return "\r\n".join([*named, *lines, "", ""]).encode() + body


async def test_from_the_third_request_on_a_head_is_known_whatever_its_body() -> None:
    bodies = [b"one", b"two", b"three", b"", b"x" * 500, b"x" * 2000]
    seen, closed, parsed = await fed(*map(post, bodies))
    assert [each[-1] for each in seen] == [*bodies[:-1], b"BodyTooLarge"]
    assert [dict(each[3])[b"content-length"] for each in seen] == [b"%d" % len(body) for body in bodies]
    assert (closed, parsed) == (False, 2)


async def test_a_client_that_never_says_the_same_is_not_learned_from_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[bytes] = []

    def learning(data: bytes, *rest: Any) -> Head | None:
        learned.append(data)
        return head_of(data, *rest)

    monkeypatch.setattr(connection, "head_of", learning)
    seen, _, parsed = await fed(*(post(b"x", f"traceparent: {number}") for number in range(20)))
    assert (len(seen), parsed, len(learned)) == (20, 20, 4)


async def test_another_key_is_another_head() -> None:
    other = post().replace(b"Bearer k", b"Bearer K")
    seen, _, parsed = await fed(post(), post(), other, post(), post())
    assert [dict(each[3])[b"authorization"] for each in seen] == [b"Bearer k"] * 2 + [b"Bearer K"] + [b"Bearer k"] * 2
    assert parsed == 4  # the other one was learned


async def test_what_is_no_whole_request_is_no_known_head() -> None:
    whole = post(b"")
    for cut in range(1, len(whole)):
        seen, closed, _ = await fed(whole, whole, whole[:cut], whole[cut:], whole)
        assert ([each[-1] for each in seen], closed) == ([b""] * 4, False), whole[:cut]
        # The rest of one is none.
        seen, closed, _ = await fed(whole, whole[:cut], whole[cut:], whole[cut:])
        assert (len(seen), closed) == (2, bool(whole[cut:].strip())), whole[:cut]
        seen, closed, _ = await fed(whole, whole, whole, whole[cut:])
        assert (len(seen), closed) == (3, bool(whole[cut:].strip())), whole[:cut]


ODD = [
    post(b"hello", length="05"),
    post(b"hello", length="+5"),
    post(b"hello", length="4"),
    post(b"hello", length="6"),
    post(b"hello", length="5 "),
    post(b"hello", length="5\r\nContent-Length: 5"),
    post(b"hello", length="5\r\n 5"),
    post(b"hello", "Content-Encoding: gzip"),
    post(b"hello", "Connection: close"),
    post(b"hello", "Expect: 100-continue"),
    post(b"5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
    post(b"5\r\nhello\r\n0\r\n\r\n").replace(b"Content-Length: 15", b"Transfer-Encoding: chunked"),
    post() + b"\r\n",
    b"\r\n" + post(),
    b"\r\n\r\n" + post(),
    post().replace(b"\r\n", b"\n"),
    post().replace(b"\r\n\r\n", b"\n\n"),
    post(b"a\r\n\r\nb"),
    post(b"\r\n\r\n"),
    post(b"").replace(b"POST", b"GET").replace(b"Content-Length: 0\r\n", b""),
    post().replace(b"HTTP/1.1", b"HTTP/1.0"),
    post().replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Host", b"Connection: keep-alive\r\nHost"),
    post().replace(b"Content-Length: ", b"content-LENGTH:\t "),
    post().replace(b"here", b"content-length: 5"),
    post().replace(b"Host", b"X-Content-Length: 5\r\nHost"),
    post(b"hello", "Upgrade: h2c", "Connection: Upgrade"),
    post() + post(),
    post() + post().replace(b"Bearer k", b"Bearer K"),
    post() + post()[:40],
    b"rubbish",
    b"\0",
]


def both(*pieces: bytes, hurried: bool = False) -> None:
    """Let a client be heard by a connection that knows heads again, and by one that does not."""
    known = asyncio.run(fed(*pieces, hurried=hurried))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_MOST_STRANGE", 0)
        parsed = asyncio.run(fed(*pieces, hurried=hurried))
    assert known[:2] == parsed[:2]
    assert parsed[2] >= known[2]


@pytest.mark.parametrize("odd", ODD)
def test_odd_requests_are_read_alike_however_often_they_come(odd: bytes) -> None:
    both(post(), odd, odd, odd)
    both(post(), odd, post(), odd, post(b"other"))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.just(post()), st.just(post(b"other one")), st.sampled_from(ODD)), max_size=6),
    st.lists(st.tuples(st.integers(0, 2000), st.sampled_from([b"", b"\r", b"\n", b":", b" ", b"0", b"a"])), max_size=2),
    st.lists(st.integers(0, 2000), max_size=3),
    st.booleans(),
)
def test_what_is_read_is_the_same_with_heads_known_or_not(
    messages: list[bytes], changes: list[tuple[int, bytes]], cuts: list[int], hurried: bool
) -> None:
    pieces = [post(), post(), *messages]
    for at, byte in changes:
        which = at % len(pieces)
        spot = at % (len(pieces[which]) or 1)
        pieces[which] = pieces[which][:spot] + byte + pieces[which][spot + 1 :]
    for cut in cuts:
        which = cut % len(pieces)
        spot = cut % (len(pieces[which]) or 1)
        pieces[which : which + 1] = [pieces[which][:spot], pieces[which][spot:]]
    pieces = [piece for piece in pieces if piece]
    both(*pieces, hurried=hurried)
