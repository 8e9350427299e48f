"""A stream that is tapped is the stream that is read: every byte to the client, every text to the turn, whatever arrives how."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.http1 import Connection
from gateway.backends.native import NativeBackend
from gateway.backends.tap import Tapped
from gateway.chat.chunk import Chunk, Form, Run, TextName
from gateway.chat.relay import StreamWriter
from gateway.config.models import BackendConfig
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout
from tests.backends.contract import model_call
from tests.chat.recordings import needs_recordings, upstream_streams
from tests.frames import CRLF, DONE, Frame, Framing, d, f, tc, u, words
from tests.upstream import chunk

LF = Framing()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """The upstream's end of a connection: says what the test says, when it says it."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.paused = False

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Client:
    """Reads a stream as a turn does, and may have no room for a run.

    Attributes:
        sent: what the client got.
        said: the text, as it was noted, and `thought` what was before it.
        straight: how many times text came past the stream, and `alone` how many of them were one chunk.
        passed: see `Straight`.
    """

    passed = 0.0

    def __init__(self, room: Callable[[], bool] = lambda: True, *, taps: bool = True) -> None:
        self.sent = b""
        self.said = ""
        self.thought = ""
        self.straight = 0
        self.alone = 0
        self.batches = 0
        self.chunks = 0
        self._writer = StreamWriter("answer", 1, "shown")
        self._room = room
        self._taps = taps

    @property
    def got(self) -> tuple[bytes, str, str]:
        """What the client got and what was noted of it."""
        return self.sent, self.said, self.thought

    async def read(self, stream: AsyncGenerator[Sequence[Chunk], None]) -> None:
        async with aclosing(stream) as batches:
            async for batch in batches:
                self.batches += 1
                self.chunks += len(batch)
                self.sent += self._writer.frames(batch)
                self.said += "".join(_text(each) for each in batch)
                self.thought += "".join(_thought(each) for each in batch)
                # A client that is slow to take it.
                await asyncio.sleep(0)
                assert isinstance(batch, Tapped)
                if self._taps and batch.tap is not None and not batch.tap.is_open:
                    batch.tap.open(self, self._notes)

    def texts(self, form: Form) -> Callable[[bytes], bool] | None:
        around = self._writer.around(form)
        if around is None:
            return None
        before, _, behind = around

        def text(quoted: bytes) -> bool:
            sent = self._room() and self._pass(before[:-1] + quoted + behind[1:])
            self.alone += sent
            return sent

        return text

    def run(self, run: Run) -> bool:
        frames = self._writer.run(run)
        return frames is not None and self._room() and self._pass(frames)

    def _pass(self, frames: bytes) -> bool:
        self.sent += frames
        self.straight += 1
        self.passed = asyncio.get_running_loop().time()
        return True

    def _notes(self, name: TextName) -> Callable[[str], None]:
        return self._say if name == "content" else self._think

    def _say(self, text: str) -> None:
        self.said += text

    def _think(self, text: str) -> None:
        self.thought += text


def _text(chunk: Chunk) -> str:
    return "".join(one.delta.content for one in chunk.choices if one.delta and isinstance(one.delta.content, str))


def _thought(chunk: Chunk) -> str:
    return "".join(one.delta.reasoning_content or one.delta.reasoning or "" for one in chunk.choices if one.delta)


@asynccontextmanager
async def connected(dialect: str, **config: Any) -> AsyncGenerator[tuple[NativeBackend, Connection, Wire]]:
    """A backend with one connection, whose far side is the test's."""
    backend = NativeBackend(
        "b1",
        BackendConfig.model_validate(
            {"provider": "openai", "base_url": "http://up.test/v1", "model": "up", "dialect": dialect, **config}
        ),
    )
    server = backend._server
    connection = Connection(server, asyncio.get_running_loop())
    wire = Wire()
    connection.connection_made(wire)
    server.idle.append(connection)
    try:
        yield backend, connection, wire
    finally:
        connection.connection_lost(None)
        await backend.close()


async def rest() -> None:
    """Until whoever was woken has done what there was to do."""
    for _ in range(6):
        await asyncio.sleep(0)


async def heard(client: Client, pieces: Sequence[bytes], dialect: str = "openai") -> str | None:
    """Let a client read an answer that arrives in these pieces; how it failed."""
    async with connected(dialect) as (backend, connection, _):
        task = asyncio.ensure_future(client.read(backend.stream(model_call("hi"))))
        await rest()
        for piece in pieces:
            if piece and not task.done():
                connection.data_received(piece)
            await rest()
        connection.connection_lost(None)
        try:
            async with asyncio.timeout(5):
                await task
        except GatewayError as error:
            return f"{type(error).__name__}: {error.message}"
        return None


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def events(*frames: Frame, framing: Framing = LF) -> list[bytes]:
    return [framing.event(frame, first=not at) for at, frame in enumerate(frames)]


def arriving(events: Sequence[bytes]) -> list[bytes]:
    """The pieces in which a prompt server says these events: each by itself."""
    return [HEAD, *map(chunked, events), b"0\r\n\r\n"]


def cut(data: bytes, *places: int) -> list[bytes]:
    ends = [*sorted(places), len(data)]
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


PLAIN = [*words("one two three four"), f("stop"), u(3, 4), DONE]


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
@pytest.mark.parametrize("framing", [LF, CRLF], ids=["LF", "CRLF"])
async def test_text_passes_without_waking_the_stream(dialect: str, framing: Framing) -> None:
    client = Client()
    pieces = arriving(events(*words("a b c d e f g h"), f("stop"), DONE, framing=framing))
    assert await heard(client, pieces, dialect) is None
    assert client.said == "a b c d e f g h"
    # The role, the text that shows the form, and the end are read.
    assert (client.straight, client.batches) == (7, 3)
    assert client.alone == (7 if framing is LF else 0)


def padded(*frames: Frame) -> list[Frame]:
    """Chunks as OpenAI pads them, so that their sizes do not tell their texts'."""
    return [
        Frame({**frame.payload, "obfuscation": ("aZ09" * 4)[: at * 7 % 16]})
        if isinstance(frame.payload, dict)
        else frame
        for at, frame in enumerate(frames)
    ]


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_padded_text_passes_with_its_padding(dialect: str) -> None:
    said = events(*padded(*words('a b \u00e9 " \\ f g h'), f("stop"), DONE))
    client = Client()
    assert await heard(client, arriving(said), dialect) is None
    assert client.said == 'a b \u00e9 " \\ f g h'
    assert (client.straight, client.alone, client.batches) == (7, 0, 3)
    paddings = re.findall(rb'"obfuscation": ?"(\w*)"', client.sent)
    assert paddings == (re.findall(rb'"obfuscation": "(\w*)"', b"".join(said)) if dialect == "openai" else [])


@pytest.mark.parametrize("padding", [pytest.param(lambda *frames: frames, id="plain"), padded])
@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_wherever_an_event_is_cut_the_client_gets_the_same(
    dialect: str, padding: Callable[..., Sequence[Frame]]
) -> None:
    said = events(*padding(*words('é " \\ two'), f("stop"), DONE))
    whole = b"".join(said)
    expected = Client(taps=False)
    assert await heard(expected, [HEAD, chunked(whole), b"0\r\n\r\n"], dialect) is None
    # Up to the first text it is read whole, so that there is a tap for what is cut.
    first = len(b"".join(said[:2]))
    for at in range(first, len(whole)):
        client = Client()
        pieces = [chunked(piece) for piece in (whole[:first], whole[first:at], whole[at:]) if piece]
        assert await heard(client, [HEAD, *pieces, b"0\r\n\r\n"], dialect) is None
        assert client.got == expected.got


async def test_wherever_the_framing_is_cut_the_client_gets_the_same() -> None:
    whole = b"".join(arriving(events(*words("a b"), f("stop"), DONE)))
    expected = Client(taps=False)
    assert await heard(expected, [whole]) is None
    for at in range(len(whole)):
        client = Client()
        assert await heard(client, cut(whole, at)) is None
        assert client.got == expected.got


ODD = {
    "a comment": [b": still here\n\n"],
    "a ping": [b"event: ping\ndata: {}\n\n"],
    "an end and what is behind it": [*events(f("stop"), u(1, 2), DONE)],
    "usage": events(u(1, 2)),
    "a role again": events(d({"role": "assistant", "content": "x"})),
    "an empty text": events(d({"content": ""})),
    "another choice": events(d({"content": "x"}, index=1)),
    "a call": events(tc(0, id="call_1", name="t", arguments="{}")),
    "thoughts": events(d({"reasoning_content": "hm"})),
    "a refusal": events(d({"refusal": "no"})),
    "another id": events(chunk(id="other", choices=[{"index": 0, "delta": {"content": "x"}, "finish_reason": None}])),
    "text and an end": events(
        chunk(choices=[{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]),
    ),
    "something else of the same length behind it": [
        event.replace(b"null", b'""  ') for event in events(d({"content": "x"}))
    ],
    "half a character": [event.replace(b'"x"', b'"\\ud83d"') for event in events(d({"content": "x"}))],
    "an error": events(Frame({"error": {"message": "it broke", "type": "server_error"}})),
    "an error event": [b'event: error\ndata: {"error": {"message": "it broke"}}\n\n'],
    "no JSON": [b"data: {nothing}\n\n"],
    "a broken text": [event.replace(b'"x"', b'"x') for event in events(d({"content": "x"}))],
    "an end mark": events(DONE),
}


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "in one read"])
@pytest.mark.parametrize("odd", ODD)
async def test_what_is_not_text_is_read_in_its_place(odd: str, together: bool, dialect: str) -> None:
    before, behind = events(*words("one two three")), events(*words("four five")[1:], f("stop"), u(1, 2), DONE)
    if together:
        middle = [b"".join((before[-1], *ODD[odd], behind[0]))]
        said = [*before[:-1], *middle, *behind[1:]]
    else:
        said = [*before, *ODD[odd], *behind]
    expected, client = Client(taps=False), Client()
    failure = await heard(expected, arriving(said), dialect)
    assert await heard(client, arriving(said), dialect) == failure
    assert client.got == expected.got
    assert client.straight


async def test_what_is_shorter_than_the_form_is_no_text() -> None:
    said = events(*words("a b c"))
    text = said[-1]
    # Two halves of a chunk that overlap: what is before the text and what is behind it both stand there.
    at = text.index(b'"c"')
    odd = text[: at + 1] + text[at + 3 :]
    client = Client()
    failure = await heard(client, arriving([*said, odd, *events(f("stop"), DONE)]))
    assert failure is not None
    assert client.said == "a b c"


async def test_text_behind_chunks_of_another_id_is_written_under_the_answers_own() -> None:
    def another(text: str) -> Frame:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        return chunk(id="another", created=7, model="percent %s", choices=[choice])

    said = events(*words("a b c"), *map(another, ("d", "e", "f")), *words("g h i")[1:], f("stop"), DONE)
    expected, client = Client(taps=False), Client()
    assert await heard(expected, arriving(said)) is None
    assert await heard(client, arriving(said)) is None
    assert client.got == expected.got
    assert b"another" not in client.sent
    # The first of each is read.
    assert client.alone == 6


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "in one read"])
@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_thoughts_pass_as_text_does(dialect: str, together: bool, name: str) -> None:
    thoughts = [d({"content": None, name: each}) for each in ("hm ", "\u00e9 ", '" ', "\\ ", "so")]
    said = events(d({"role": "assistant", "content": ""}), *thoughts, *words("a b c d")[1:], f("stop"), u(1, 2), DONE)
    pieces = [HEAD, chunked(b"".join(said)), b"0\r\n\r\n"] if together else arriving(said)
    expected, client = Client(taps=False), Client()
    assert await heard(expected, pieces, dialect) is None
    assert await heard(client, pieces, dialect) is None
    assert client.got == expected.got
    assert (client.said, client.thought) == ("a b c d", 'hm \u00e9 " \\ so')
    # The first thought and the first text are read: the role with the one, the other alone.
    assert client.alone == (0 if together else 7)
    if together and dialect == "openai":
        # The role, the thoughts, a text, the others, the end, usage.
        assert client.chunks == 6


async def test_what_has_no_room_waits_and_comes_before_what_comes_later() -> None:
    room = iter([True, False, True, False, False, True])
    client, expected = Client(lambda: next(room, True)), Client(taps=False)
    said = events(*words("a b c d e f g h i j"), f("stop"), DONE)
    assert await heard(expected, arriving(said)) is None
    assert await heard(client, arriving(said)) is None
    assert client.got == expected.got
    assert client.straight < 9


async def test_nothing_passes_what_still_waits_to_be_read() -> None:
    client, expected = Client(), Client(taps=False)
    said = events(*words("a b c"), d({"refusal": "x"}), *words("d e f")[1:], f("stop"), DONE)
    assert await heard(expected, arriving(said)) is None
    async with connected("openai") as (backend, connection, _):
        task = asyncio.ensure_future(client.read(backend.stream(model_call("hi"))))
        await rest()
        for at, piece in enumerate(arriving(said)):
            connection.data_received(piece)
            if at < 5:  # everything behind comes before whoever was woken has had its turn
                await rest()
        await task
    assert client.got == expected.got


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_stream_that_is_cut_off_is_broken_and_what_came_was_sent(dialect: str) -> None:
    client = Client()
    failure = await heard(client, arriving(events(*words("a b c d")))[:-1], dialect)
    assert failure is not None
    assert failure.startswith(UpstreamBroken.__name__)
    assert client.said == "a b c d"
    assert client.straight == 3


async def test_silence_is_counted_from_what_passed_last() -> None:
    client = Client()
    pieces = arriving(events(*words("a b c d e f g h i j k l")))[:-1]
    async with connected("openai", idle_timeout_s=0.5) as (backend, connection, _):
        now = asyncio.get_running_loop().time
        task = asyncio.ensure_future(client.read(backend.stream(model_call("hi"))))
        await rest()
        last = now()
        for piece in pieces:
            connection.data_received(piece)
            last = now()
            await asyncio.sleep(0.06)  # together longer than the silence that is allowed
            assert not task.done()
        with pytest.raises(UpstreamTimeout, match=r"nothing for 0\.5 s"):
            await task
        assert 0.49 <= now() - last < 3
    assert client.straight == 11


async def test_deadline_of_the_call_ends_a_stream_that_never_falls_silent() -> None:
    client = Client()
    async with connected("openai") as (backend, connection, _):
        now = asyncio.get_running_loop().time
        began = now()
        task = asyncio.ensure_future(client.read(backend.stream(model_call("hi", timeout_s=0.2))))
        await rest()
        for piece in (HEAD, *map(chunked, events(*words("a b")))):
            connection.data_received(piece)
            await rest()
        again = chunked(events(d({"content": "x"}))[0])
        while not task.done() and now() - began < 2:
            connection.data_received(again)
            await asyncio.sleep(0.01)
        with pytest.raises(UpstreamTimeout):
            await task
        assert 0.19 <= now() - began < 1.9
    assert client.straight > 5


async def test_cancelled_stream_hangs_up_and_nothing_more_passes() -> None:
    client = Client()
    said = arriving(events(*words("a b c d")))[:-1]
    async with connected("openai") as (backend, connection, wire):
        task = asyncio.ensure_future(client.read(backend.stream(model_call("hi"))))
        await rest()
        for piece in said[:4]:
            connection.data_received(piece)
            await rest()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert wire.aborted
        sent = client.sent
        connection.data_received(said[4])
        assert client.sent == sent
    assert client.straight == 1


async def test_stream_larger_than_it_may_be_is_broken_though_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.backends.native._STREAM_BYTES", 2000)
    client = Client()
    failure = await heard(client, arriving(events(*words("x " * 50))))
    assert failure is not None
    assert "a stream of more than 2000 bytes" in failure
    assert 0 < client.straight < 20


@needs_recordings
@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_every_recording_is_the_same_tapped_and_read(dialect: str) -> None:
    straight = 0
    for recorded in upstream_streams():
        said = [*(b"data: %b\n\n" % payload for payload in recorded), b"data: [DONE]\n\n"]
        client, expected = Client(), Client(taps=False)
        failure = await heard(expected, arriving(said), dialect)
        assert await heard(client, arriving(said), dialect) == failure
        assert client.got == expected.got
        straight += client.straight
    assert straight > 40


_FRAMES = st.one_of(
    st.text(max_size=5).map(lambda text: d({"content": text})),
    st.sampled_from(
        [d({"reasoning_content": "r"}), d({"role": "assistant", "content": "x"}), u(1, 2), tc(0, arguments="{")]
    ),
)


@settings(max_examples=60, deadline=None)
@given(
    st.booleans(),
    st.lists(_FRAMES, min_size=4, max_size=25),
    st.lists(st.floats(0, 1), max_size=12),
    st.lists(st.booleans(), max_size=10),
    st.sampled_from(["openai", "compatible"]),
    st.sampled_from([LF, CRLF]),
)
def test_however_it_is_cut_and_whenever_there_is_room_it_is_one_answer(
    pads: bool, frames: list[Frame], cuts: list[float], room: list[bool], dialect: str, framing: Framing
) -> None:
    said = [*words("begin here"), tc(0, id="call_1", name="t", arguments=""), *frames, f("stop"), u(1, 2), DONE]
    said = padded(*said) if pads else said
    whole = b"".join(events(*said, framing=framing))
    pieces = [HEAD, *(chunked(piece) for piece in cut(whole, *(int(at * len(whole)) for at in cuts)) if piece)]
    has_room = iter(room)

    async def both() -> None:
        client, expected = Client(lambda: next(has_room, True)), Client(taps=False)
        failure = await heard(expected, [*pieces, b"0\r\n\r\n"], dialect)
        assert await heard(client, [*pieces, b"0\r\n\r\n"], dialect) == failure
        assert client.got == expected.got

    asyncio.run(both())
