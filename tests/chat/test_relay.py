from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.chunk import Chunk, ChunkChoice, ChunkFields, Delta, decode_chunk
from gateway.chat.relay import DONE, KEEP_ALIVE, StreamWriter
from gateway.chat.scanner import RunScanner
from gateway.chat.sse import SseParser
from gateway.chat.usage import Usage
from tests.chat.strategies import texts

HEAD = {"id": "chatcmpl-gateway", "created": 1_750_000_000, "model": "asked"}
UPSTREAM = {"id": "chatcmpl-up", "object": "chat.completion.chunk", "created": 17, "model": "up/stream"}


def writer(**options: Any) -> StreamWriter:
    return StreamWriter("chatcmpl-gateway", 1_750_000_000, "asked", **options)


def sent(*chunks: Chunk, by: StreamWriter | None = None) -> list[dict[str, Any]]:
    """What a client reads of these chunks."""
    parser = SseParser()
    written = (by or writer()).frames(chunks)
    events = parser.feed(written)
    assert parser.close() == []
    assert written.count(b"data: ") >= len(events)
    return [json.loads(event) for event in events]


def came(delta: Any, *, spaced: bool = False, **head: Any) -> Chunk:
    body = {**UPSTREAM, **head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    separators = (", ", ": ") if spaced else (",", ":")
    return decode_chunk(json.dumps(body, ensure_ascii=False, separators=separators).encode())


def made(delta: dict[str, Any]) -> Chunk:
    data = json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode()
    return Chunk(data, ChunkFields(choices=[ChunkChoice(0, Delta(content=delta.get("content")), None)]))


def named(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: body[name] for name in HEAD} for body in chunks]


def test_chunks_pass_as_they_came_but_for_the_three_values() -> None:
    bodies = sent(came({"content": "a"}), came({"content": "b"}))
    assert named(bodies) == [HEAD, HEAD]
    assert [body["choices"][0]["delta"]["content"] for body in bodies] == ["a", "b"]
    raw = came({"content": "é\\u00e9"}).data
    expected = (
        raw.replace(b"chatcmpl-up", b"chatcmpl-gateway")
        .replace(b"up/stream", b"asked")
        .replace(b":17,", b":1750000000,")
    )
    assert writer().frames([decode_chunk(raw)]) == b"data: " + expected + b"\n\n"


def test_content_that_looks_like_the_values_is_untouched() -> None:
    text = '"id":"chatcmpl-up","created":17,"model":"up/stream"'
    for first in ({"content": "x"}, {"content": text}):
        bodies = sent(came(first), came({"content": text}))
        assert bodies[1]["choices"][0]["delta"]["content"] == text
        assert named(bodies) == [HEAD, HEAD]


def test_nested_value_that_equals_the_chunk_s_is_untouched() -> None:
    call = {
        "tool_calls": [
            {"index": 0, "id": "chatcmpl-up", "type": "function", "function": {"name": "f", "arguments": ""}}
        ]
    }
    bodies = sent(came({"content": "x"}), came(call), came({"content": "y"}))
    assert bodies[1]["choices"][0]["delta"] == call
    assert named(bodies) == [HEAD] * 3


def test_value_that_stands_twice_is_the_answers_own_in_both_places() -> None:
    data = came({"content": "a"}).data
    for name in (b'"id":"chatcmpl-up"', b'"created":17', b'"model":"up/stream"'):
        for twice in (data.replace(name, name + b"," + name), data[:-1] + b"," + name + b"}"):
            assert named(sent(decode_chunk(twice))) == [HEAD]


def test_other_spacing_under_the_same_id_is_named_too() -> None:
    assert named(sent(came({"content": "a"}), came({"content": "b"}, spaced=True))) == [HEAD, HEAD]


def test_number_is_not_taken_for_the_head_of_a_longer_one() -> None:
    body = {**UPSTREAM, "x": {"created": 170}, "choices": []}
    for order in (list(body), list(reversed(body))):
        shuffled = {name: body[name] for name in order}
        data = json.dumps(shuffled, separators=(",", ":")).encode()
        assert sent(decode_chunk(data))[0]["x"] == {"created": 170}


def test_chunk_of_the_gateway_says_what_is_asked_and_no_more() -> None:
    frame = json.loads(writer().chunk({"content": "x"}, "stop")[6:])
    assert frame == {
        **HEAD,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": None, "finish_reason": "stop"}],
    }
    assert json.loads(writer(with_usage=True).chunk({})[6:])["usage"] is None
    last = json.loads(writer().usage(Usage(40, 11))[6:])
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 51


def test_end_mark_is_an_event_and_a_keep_alive_is_none() -> None:
    assert SseParser().feed(KEEP_ALIVE + DONE) == [b"[DONE]"]


ids = st.sampled_from(["a", 'q"uote', "é", "chatcmpl-gateway", "", None])
numbers = st.sampled_from([0, 1, 17, 1700, 17.0, 17.5, 1_750_000_000, None])


def _upstream_chunk(head: tuple[Any, Any, Any], text: str, spaced: bool, missing: frozenset[str]) -> Chunk:
    values = {"id": head[0], "created": head[1], "model": head[2]}
    body = {name: value for name, value in values.items() if name not in missing}
    body["choices"] = [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
    return decode_chunk(
        json.dumps(body, ensure_ascii=spaced, separators=(", ", ": ") if spaced else (",", ":")).encode()
    )


upstream_chunks = st.builds(
    _upstream_chunk,
    st.tuples(ids, numbers, ids),
    st.one_of(texts, st.sampled_from(['"id":"a"', '"created":17', '{"model": "a"}'])),
    st.booleans(),
    st.frozensets(st.sampled_from(["id", "created", "model"]), max_size=2),
)
own_chunks = texts.map(lambda text: made({"content": text}))


@given(st.lists(st.lists(st.one_of(upstream_chunks, own_chunks), max_size=4), max_size=4))
def test_any_mix_of_chunks_is_one_answer_to_the_client(batches: list[list[Chunk]]) -> None:
    one = writer()
    bodies = [body for batch in batches for body in sent(*batch, by=one)]
    assert named(bodies) == [HEAD] * sum(map(len, batches))
    said = [json.loads(chunk.data)["choices"] for batch in batches for chunk in batch]
    assert [body["choices"] for body in bodies] == said


@given(st.lists(texts, min_size=2, max_size=8), st.booleans())
def test_run_is_written_as_its_chunks_would_be(said: list[str], spaced: bool) -> None:
    chunks = [came({"content": text}, spaced=spaced) for text in said]
    runs = RunScanner()
    runs.learn(chunks[0])
    found = runs.scan([chunk.data for chunk in chunks], 0)
    assert found is not None
    assert writer().frames([found[0]]) == writer().frames(chunks)


def test_run_whose_values_cannot_be_replaced_is_written_chunk_by_chunk() -> None:
    chunks = [came({"content": text}, nested={"id": "chatcmpl-up"}) for text in "ab"]
    runs = RunScanner()
    runs.learn(chunks[0])
    found = runs.scan([chunk.data for chunk in chunks], 0)
    assert found is not None
    bodies = sent(found[0])
    assert named(bodies) == [HEAD, HEAD]
    assert [body["nested"] for body in bodies] == [{"id": "chatcmpl-up"}] * 2
