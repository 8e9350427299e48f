"""Both lanes over everything recorded: exact bytes for `dialect: openai`, OpenAI's schemas for all others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.native import NativeBackend
from gateway.chat.sse import EventTooLarge, SseParser
from gateway.config.models import BackendConfig
from tests.backends.contract import Streamed, model_call, read_stream
from tests.backends.openai_schemas import check_chunk
from tests.chat.recordings import needs_recordings, upstream_streams
from tests.frames import DONE, FRAMINGS, Frame, Framing
from tests.upstream import ScriptedUpstream, stream

UGLY = Framing(newline=b"\r\n", space=False, bom=True, comments=True, fields=True, multi_line=True)


def frames_of(recorded: list[bytes]) -> list[Frame]:
    return [Frame(json.loads(payload)) for payload in recorded]


def written(frames: list[Frame], framing: Framing) -> bytes:
    return b"".join(framing.event(frame, first=not at) for at, frame in enumerate(frames))


def payloads(*pieces: bytes) -> list[Any]:
    parser = SseParser()
    found = [payload for piece in pieces for payload in parser.feed(piece)]
    return [json.loads(payload) for payload in (*found, *parser.close())]


@needs_recordings
@pytest.mark.parametrize("framing", [*FRAMINGS.values(), UGLY], ids=[*FRAMINGS, "ugly"])
def test_no_cut_changes_what_is_read_of_any_recording(framing: Framing) -> None:
    for recorded in upstream_streams():
        # Enough of each to have its first, its usual and its last chunks.
        frames = frames_of([*recorded[:3], *recorded[-3:]])
        data = written(frames, framing).removesuffix(framing.newline)
        expected = [frame.payload for frame in frames]
        assert payloads(data) == expected
        assert payloads(*(data[at : at + 1] for at in range(len(data)))) == expected
        for at in range(0, len(data), 23):
            assert payloads(data[:at], data[at:]) == expected


async def read(dialect: str, frames: list[Frame], framing: Framing, *sizes: int) -> Streamed:
    reply = stream(frames, framing=framing)
    async with ScriptedUpstream(reply.cut(*sizes) if sizes else reply) as upstream:
        config = BackendConfig.model_validate(
            {"provider": "openai", "base_url": upstream.base_url, "model": "up", "dialect": dialect}
        )
        backend = NativeBackend("b1", config)
        try:
            return await read_stream(backend, model_call("hi"))
        finally:
            await backend.close()


@needs_recordings
async def test_both_lanes_hear_the_same_of_every_recording_however_it_is_written() -> None:
    for recorded in upstream_streams():
        frames = [*frames_of(recorded[:40]), *frames_of(recorded[-3:]) * (len(recorded) > 40)]
        exact = await read("openai", [*frames, DONE], Framing())
        loose = await read("compatible", [*frames, DONE], Framing())
        assert [json.loads(chunk.data) for chunk in exact.chunks] == [frame.payload for frame in frames]
        for chunk in loose.chunks:
            check_chunk(chunk.data)
        ugly = await read("compatible", frames, UGLY, 61, 1, 7)
        assert [chunk.data for chunk in ugly.chunks] == [chunk.data for chunk in loose.chunks]
        said = [
            (each.text, [(c.name, c.arguments) for c in each.calls], each.finish_reasons, each.usages)
            for each in (exact, loose)
        ]
        # Some servers say `stop` behind a call.
        assert said[0][:2] == said[1][:2]
        assert said[0][3] == said[1][3]
        assert loose.finish_reasons == (["tool_calls"] if loose.calls else exact.finish_reasons[:1])
        assert loose.roles == ["assistant"]


@pytest.mark.parametrize("line", [b"x", b"data: x\n"], ids=["one line", "many lines"])
def test_event_without_end_is_given_up_at_its_bound(line: bytes) -> None:
    parser = SseParser(limit_bytes=1000)
    parser.feed(b"data: ")
    for _ in range(900 // len(line)):
        assert parser.feed(line) == []
    with pytest.raises(EventTooLarge):
        parser.feed(line * 101)


def test_long_event_in_small_pieces_is_put_together_once() -> None:
    data = b"data: " + b"x" * 200_000
    parser = SseParser()
    for at in range(len(data)):
        assert parser.feed(data[at : at + 1]) == []
    assert parser.feed(b"\n\n") == [b"x" * 200_000]
    assert parser.close() == []
