"""Streams and answers that are written carelessly, and failures that try to look like answers: each told for what it is."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from gateway.errors import UpstreamBroken, UpstreamRefused
from tests.backends.contract import model_call, parsed, read_stream
from tests.backends.openai_schemas import check_answer
from tests.backends.test_native import failure, scripted
from tests.backends.test_native_quirks import BOTH, DIALECTS, packed
from tests.frames import Frame, usage
from tests.upstream import DONE, Eof, Reply, Stall, body, chunk, d, error, f, stream, tc, u, words


def lines_of(*frames: Frame) -> bytes:
    return b"".join(b"data: " + json.dumps(frame.payload).encode() + b"\n" for frame in frames)


def counted(**tokens: Any) -> Reply:
    return stream(words("ok"), f("stop"), chunk(choices=[], usage=tokens), DONE)


def typed(kind: str) -> Reply:
    return Reply(headers=(("content-type", kind),), steps=(b"\n" + stream(words("ok"), f("stop"), u(3, 1), DONE).body,))


END = {"index": 0, "delta": {}, "finish_reason": "stop"}
HEARD: dict[str, tuple[Reply, tuple[int, int] | None]] = {
    "end mark in other words": (stream(words("ok"), f("stop"), b"data: [done]\n\n"), None),
    "end mark as text": (stream(words("ok"), f("stop"), b'data: "[DONE]"\n\n'), None),
    "end mark alone": (stream(words("ok"), DONE), None),
    "garbage behind the finish": (stream(words("ok"), f("stop"), b"data: {broken\n\n", u(3, 1), DONE), (3, 1)),
    "error behind the finish": (stream(words("ok"), f("stop"), Frame({"error": {"message": "late"}}), DONE), None),
    "garbage behind the end mark": (stream(words("ok"), f("stop"), DONE, b"data: {\n\nHTTP/1.1 200\r\n"), None),
    "events parted by one line break": (stream(lines_of(*words("ok"), f("stop")) + b"data: [DONE]\n\n"), None),
    "events under the type of JSON": (typed("application/json"), (3, 1)),
    "events under the type of a page": (typed("text/html"), (3, 1)),
    "an empty error beside each text": (
        stream(chunk(choices=[END | {"delta": {"content": "ok"}}], error={}), DONE),
        None,
    ),
    "usage in other names": (counted(input_tokens=3, output_tokens=1), (3, 1)),
    "usage that only says the sum": (counted(total_tokens=4), (4, 0)),
    "usage first": (stream(u(3, 0), words("ok"), f("stop"), u(3, 1), DONE), (3, 1)),
}
LOOSE_USAGE = {
    "usage that says nothing": (counted(), None),
    "usage in the choice": (stream(words("ok"), chunk(choices=[END | {"usage": usage(3, 1)}]), DONE), (3, 1)),
    "usage of odd types in the choice": (
        stream(words("ok"), chunk(choices=[END | {"usage": {"prompt_tokens": []}}])),
        None,
    ),
    "usage of Groq": (stream(words("ok"), chunk(choices=[END], x_groq={"usage": usage(3, 1)}), DONE), (3, 1)),
}


@pytest.mark.parametrize(
    ("dialect", "how"),
    [*((d, h) for d in ("openai", "compatible") for h in HEARD), *(("compatible", h) for h in LOOSE_USAGE)],
)
async def test_stream_that_is_written_carelessly_is_a_whole_answer_B070_B071_B073(dialect: str, how: str) -> None:
    reply, tokens = (HEARD | LOOSE_USAGE)[how]
    async with scripted(reply, dialect=dialect) as (upstream, backend):
        said = await read_stream(backend, model_call("hi"))
    assert said.text == "ok"
    assert said.finish_reasons in (["stop"], [] if how == "end mark alone" else ["stop"])
    last = [(each.prompt_tokens, each.completion_tokens) for each in said.usages][-1:]
    assert last == ([] if tokens is None else [tokens])
    assert len(upstream.requests) == 1


BROKEN: dict[str, tuple[Reply, str]] = {
    "an event of the name error": (stream(words("ok"), b"event: error\ndata: out of luck\n\n", DONE), "out of luck"),
    "the same with JSON": (stream(words("ok"), b'event: error\ndata: {"msg":"no luck"}\n\n', DONE), "no luck"),
    "a list of errors": (stream(words("ok"), Frame({"errors": [{"message": "no luck"}]}), DONE), "no luck"),
    "a list of faults": (
        stream(words("ok"), Frame({"detail": [{"loc": ["n"], "msg": "no luck"}]}), DONE),
        "n: no luck",
    ),
    "the type error": (stream(words("ok"), Frame({"type": "error", "msg": "no luck"}), DONE), "no luck"),
    "an error that is a list": (stream(words("ok"), Frame({"error": ["no luck"]}), DONE), "no luck"),
    "a finish reason error": (
        stream(words("ok"), chunk(choices=[END | {"finish_reason": "error", "error": "no luck sk-abc123XYZ9"}]), DONE),
        "no luck ***",
    ),
    "an end mark alone": (stream(DONE), "is empty"),
    "nothing but usage": (stream(u(1, 0), DONE), "is empty"),
    "nothing": (stream(b""), "is empty"),
    "no content": (Reply(204), "is empty"),
    "only comments": (stream(b": hello\n\n"), "is empty"),
}


@DIALECTS
@pytest.mark.parametrize("how", BROKEN)
async def test_stream_that_fails_never_looks_like_an_end_B068(dialect: str, how: str) -> None:
    reply, told = BROKEN[how]
    async with scripted(reply, dialect=dialect) as (_, backend):
        caught = await failure(backend, streamed=True)
    assert isinstance(caught, UpstreamBroken)
    assert told in caught.message


@BOTH
async def test_error_in_a_choice_is_a_failure_and_tells_no_secret(streamed: bool) -> None:
    failed = {"index": 0, "finish_reason": None, "error": {"message": "no luck TEST-SECRET-1"}}
    reply = (
        stream(words("ok"), chunk(choices=[failed | {"delta": {}}]), DONE)
        if streamed
        else body({"choices": [failed | {"message": {"role": "assistant", "content": "ok"}}]})
    )
    async with scripted(reply, dialect="compatible", api_key="TEST-SECRET-1") as (_, backend):
        assert (await failure(backend, streamed=streamed)).message == "no luck ***"


@DIALECTS
async def test_answers_of_a_stream_are_complete_when_each_has_ended(dialect: str) -> None:
    first, second = d({"content": "a"}), d({"content": "b"}, index=1)
    cut = stream(first, f("stop"), second)
    late = stream(first, f("stop"), second, f("stop", index=1))
    alone = stream(first, f("stop"), DONE)
    broken = stream(first, f("stop"), second, Frame({"error": "no luck"}), DONE)
    async with scripted(cut, broken, late, alone, dialect=dialect) as (_, backend):
        asked = model_call("hi", n=2)
        assert "cut off" in (await failure(backend, streamed=True, call=asked)).message
        assert "no luck" in (await failure(backend, streamed=True, call=asked)).message
        assert len((await read_stream(backend, asked)).chunks) == 4
        assert (await read_stream(backend, asked)).text == "a", "a server that makes only one"


async def test_whole_calls_under_one_index_and_no_id_are_several() -> None:
    def whole(arguments: str) -> Frame:
        return tc(0, name="add", arguments=arguments)

    several = stream(whole('{"x":1}'), whole('{"x":2}'), f("tool_calls"), DONE)
    repeated = stream(whole('{"x":'), whole("1}"), whole(""), f("tool_calls"), DONE)
    async with scripted(several, repeated, dialect="compatible") as (_, backend):
        assert parsed((await read_stream(backend, model_call("hi"))).calls) == [("add", {"x": 1}), ("add", {"x": 2})]
        assert parsed((await read_stream(backend, model_call("hi"))).calls) == [("add", {"x": 1})]


def whole(source: Any = None, *, finish: Any = "stop", head: dict[str, str] | None = None, **more: Any) -> Reply:
    message = {"role": "assistant", "content": "ok"} if source is None else source
    made = {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}
    return Reply(
        headers=(("content-type", "application/json"), *(head or {}).items()), steps=(json.dumps(made).encode(),)
    )


def choices(said: Any) -> Reply:
    return body({"choices": said})


WHOLE: dict[str, Reply] = {
    "content that is a number": whole({"content": 42}),
    "content that is an object": whole({"content": {"text": "ok"}}),
    "no finish reason": choices([{"message": {"content": "ok"}}]),
    "a finish reason that is a number": whole(finish=1),
    "one choice instead of a list": choices({"message": {"content": "ok"}, "finish_reason": "stop"}),
    "a delta instead of a message": choices([{"delta": {"content": "ok"}}]),
    "a text instead of a message": choices([{"text": "ok"}]),
    "half a character": body(b'{"choices":[{"message":{"content":"ok\\ud83d"},"finish_reason":"stop"}]}'),
    "a byte order mark": body(b"\xef\xbb\xbf" + whole().body),
    "an empty error": whole(error={}),
}
EXACT_TOO: dict[str, Reply] = {
    "events": Reply(steps=(stream(words("ok"), f("stop"), u(3, 1), DONE).body,)),
    "events without an end mark": Reply(steps=(stream(words("ok"), f("stop")).body,)),
    "blank lines before it": body(b"\n\n \n" + whole().body),
    "another status of success": Reply(201, whole().headers, whole().steps),
    "the type of text": Reply(headers=(("content-type", "text/plain"),), steps=whole().steps),
    "a header of 30 KB": whole(head={"x-policy": "a" * 30_000}),
    "four hundred headers": whole(head={f"x-{number}": "v" for number in range(400)}),
    "gzip by its old name": packed(whole(), "x-gzip", gzip.compress(whole().body)),
}


@pytest.mark.parametrize(
    ("dialect", "how"), [*(("compatible", h) for h in WHOLE | EXACT_TOO), *(("openai", h) for h in EXACT_TOO)]
)
async def test_answer_that_is_written_carelessly_is_read(dialect: str, how: str) -> None:
    async with scripted((WHOLE | EXACT_TOO)[how], dialect=dialect) as (_, backend):
        got = await backend.complete(model_call("hi"))
    told = "42" if "number" in how and "content" in how else "ok\N{REPLACEMENT CHARACTER}" if "half" in how else "ok"
    assert (got.message.text, got.finish_reason) in ((told, "stop"), (told, None))
    if dialect == "compatible":
        check_answer(got.body)


@BOTH
async def test_half_a_character_harms_no_exact_answer_either_B074(streamed: bool) -> None:
    cut = b'{"id":"a","model":"m","created":1,"choices":[{"index":0,"message":{"content":"ok\\ud83d"},"finish_reason":"stop"}]}'
    reply = stream(b"data: " + cut.replace(b"message", b"delta") + b"\n\n", DONE) if streamed else body(cut)
    async with scripted(reply, dialect="openai") as (_, backend):
        if streamed:
            assert (await read_stream(backend, model_call("hi"))).text == "ok"
        else:
            assert (await backend.complete(model_call("hi"))).message.text == "ok\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (whole({"content": ""}, error={"message": "no luck", "code": 500}), "no luck"),
        (body({"code": 1301, "msg": "no luck", "success": False}), "no luck"),
        (stream(words("ok")), "cut off"),
        (stream(words("ok"), Frame({"error": "no luck"}), DONE), "no luck"),
        (stream(DONE), "cut off"),
        (choices([]), "not a chat completion"),
        (choices([None]), "not a chat completion"),
    ],
)
async def test_answer_that_is_none_is_an_error_in_its_own_words(dialect: str, reply: Reply, told: str) -> None:
    async with scripted(Reply(reply.status, (), reply.steps), dialect=dialect) as (_, backend):
        assert told in (await failure(backend, streamed=False)).message


@BOTH
@pytest.mark.parametrize(
    "steps", [(b'{"error":{"mess', Eof()), (b'{"error":', Stall()), (Stall(),)], ids=["cut", "stalled", "no body"]
)
async def test_status_of_a_refusal_counts_though_its_words_do_not_come(
    monkeypatch: pytest.MonkeyPatch, streamed: bool, steps: Any
) -> None:
    monkeypatch.setattr("gateway.backends.reading._REFUSAL_S", 0.2)
    async with scripted(Reply(429, (("retry-after", "7"),), steps, length=999)) as (_, backend):
        caught = await failure(backend, streamed=streamed)
    assert (getattr(caught, "status", None), caught.retry_after_s) == (429, 7)
    async with scripted(packed(error(400, "x"), "br", b"x")) as (_, backend):
        assert isinstance(await failure(backend, streamed=streamed), UpstreamRefused)


@BOTH
async def test_trace_of_the_upstream_s_program_is_not_passed_on(streamed: bool) -> None:
    python = 'boom\nTraceback (most recent call last):\n  File "/srv/app.py", line 1\nValueError: x'
    java = "NullPointerException: boom\n\tat com.example.Main.run(Main.java:5)\n\tat com.example.X.y(X.java:1)"
    for words_said in (python, java):
        plain = Reply(500, steps=(words_said.encode(),))
        async with scripted(plain, error(500, words_said)) as (_, backend):
            for _ in range(2):
                told = (await failure(backend, streamed=streamed)).message
                assert "boom" in told
                assert not any(part in told for part in ("Traceback", "app.py", "Main.java"))
