"""The demo backend fails on demand: by itself, and through a whole gateway."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.backend import ModelCall
from gateway.backends.demo import DemoBackend
from gateway.backends.demo.misbehaving import broken_json
from gateway.backends.demo.numerals import numeral
from gateway.backends.demo.patterns import text_for
from gateway.chat.chunk import Chunk
from gateway.config.models import BackendConfig
from gateway.errors import InvalidRequest, UpstreamBroken, UpstreamTimeout, UpstreamUnavailable
from tests.backends.contract import model_call, read_stream
from tests.backends.demo_loop import talk
from tests.backends.demo_tools import CALCULATOR, CLOCK
from tests.clocks import HandClock
from tests.serving import Served, serving

QUESTION = "what is 6 * 7?"


def demo(clock: HandClock | None = None, **config: Any) -> DemoBackend:
    return DemoBackend("demo", BackendConfig(provider="demo", **config), clock or HandClock())


def wanting(kind: str) -> dict[str, Any]:
    return {"metadata": {"demo": kind}}


async def _collect(backend: DemoBackend, call: ModelCall, into: list[Chunk]) -> None:
    async for batch in backend.stream(call):
        into += batch


@pytest.mark.parametrize(("kind", "status"), [("rate_limit", 429), ("error", 500)])
async def test_refusals_come_before_anything_else(kind: str, status: int) -> None:
    for ask in (demo().complete, lambda call: read_stream(demo(), call)):
        with pytest.raises(UpstreamUnavailable) as caught:
            await ask(model_call(QUESTION, **wanting(kind)))
        assert caught.value.status == status
        assert (caught.value.retry_after_s is not None) == (kind == "rate_limit")


async def test_stalled_stream_says_half_and_waits_for_its_idle_timeout() -> None:
    clock = HandClock()
    said: list[Chunk] = []
    with pytest.raises(UpstreamTimeout):
        await _collect(demo(clock, idle_timeout_s=7), model_call(QUESTION, timeout_s=60, **wanting("stall")), said)
    assert len(said) > 2
    assert clock.at - HandClock().at == pytest.approx(7)


async def test_stalled_answer_takes_all_the_time_there_is() -> None:
    clock = HandClock()
    with pytest.raises(UpstreamTimeout):
        await demo(clock).complete(model_call(QUESTION, timeout_s=30, **wanting("stall")))
    assert clock.at - HandClock().at == pytest.approx(30)


async def test_cut_stream_ends_without_a_finish_reason() -> None:
    chunks: list[Chunk] = []
    with pytest.raises(UpstreamBroken):
        await _collect(demo(), model_call(QUESTION, **wanting("cut")), chunks)
    assert len(chunks) > 2
    assert not any(choice.finish_reason for chunk in chunks for choice in chunk.choices)
    with pytest.raises(UpstreamBroken):
        await demo().complete(model_call(QUESTION, **wanting("cut")))


async def test_arguments_are_broken_once_and_mended_when_that_was_said() -> None:
    answer = await demo().complete(model_call(QUESTION, tools=[CALCULATOR.offer], **wanting("bad_json")))
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.message.tool_calls[0].arguments)
    with pytest.raises(UpstreamBroken):
        await demo().complete(model_call(QUESTION, **wanting("bad_json")))


async def test_looping_model_calls_the_same_for_ever() -> None:
    with pytest.raises(AssertionError, match="no answer after six rounds"):
        await talk(demo(), QUESTION, CALCULATOR, **wanting("loop"))
    spoken = await demo().complete(model_call("hello", **wanting("loop")))
    assert spoken.finish_reason == "length"
    assert spoken.message.text.count("hello") > 10


@pytest.mark.parametrize("kind", ["explode", "", 5, True])
async def test_unknown_misbehaviour_is_refused_by_name(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="rate_limit") as caught:
        await demo().complete(model_call(QUESTION, **wanting(kind)))
    assert caught.value.param == "metadata.demo"


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5)) | st.lists(st.integers()) | st.integers() | st.text())
def test_broken_json_is_never_json(value: Any) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken_json(json.dumps(value)))


CONFIG: dict[str, Any] = {
    "backends": {
        "demo": {"provider": "demo", "timeout_s": 0.5, "idle_timeout_s": 0.5},
    },
    "models": {"m": {"backends": ["demo"], "retries": 0, "tools": ["calculator"]}},
    "router": {"default": "m", "semantic": {"enabled": False}},
}
PLUGIN = '''
from gateway.tools import tool

@tool
def calculator(expression: str) -> str:
    """Calculate when the user asks for arithmetic.

    expression: the arithmetic to do, for example 3 + 4
    """
    return str(eval(expression, {"__builtins__": {}}))

def register(registry):
    registry.add(calculator)
'''


async def _asked(served: Served, kind: str, question: str, *, stream: bool) -> Any:
    async with served.sdk() as client:
        messages: Any = [{"role": "user", "content": question}]
        extra = {"metadata": {"demo": kind}}
        if not stream:
            answer = await client.chat.completions.create(model="m", messages=messages, extra_body=extra)
            return answer.choices[0].message.content
        text = ""
        async for chunk in await client.chat.completions.create(
            model="m", messages=messages, extra_body=extra, stream=True
        ):
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        return text


async def test_each_misbehaviour_reaches_an_sdk_as_the_error_it_stands_for(tmp_path: Path) -> None:
    async with serving(tmp_path, CONFIG, plugins={"sums": PLUGIN}) as served:
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as limited:
                await _asked(served, "rate_limit", "hello", stream=stream)
            assert "retry-after" in limited.value.response.headers
            with pytest.raises(openai.InternalServerError):
                await _asked(served, "error", "hello", stream=stream)
            for kind in ("stall", "cut"):
                with pytest.raises(openai.APIError):
                    await _asked(served, kind, "hello", stream=stream)
            # Arguments that cannot be read are not run, and the model is told; calls without end are ended.
            assert "42" in await _asked(served, "bad_json", QUESTION, stream=stream)
            assert "42" in await _asked(served, "loop", QUESTION, stream=stream)
            # A good answer closes the breaker before the next round of faults.
            with pytest.raises(openai.BadRequestError):
                await _asked(served, "nonsense", "hello", stream=stream)
            assert "hello" in await _asked_plainly(served, "hello")


async def _asked_plainly(served: Served, question: str) -> str:
    _, _, body = await served.post(
        "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": question}]}
    )
    return str(body["choices"][0]["message"]["content"])


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^[A-Z]{2}-\d{4}$"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(low|mid|high)$"}}, "required": ["a"]},
    {"type": "string", "pattern": r"^(\([0-9]{3}\))?[0-9]{3}-[0-9]{4}$"},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2},
    {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]},
    {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "v": {"type": "string"},
                    "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                },
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
    },
]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("question", ["Rome tomorrow for 3 days, ann@example.org", "你好"])
async def test_structured_answer_is_accepted_by_its_schema(schema: dict[str, Any], question: str) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = await demo().complete(model_call(question, response_format=asked, n=2))
    jsonschema.validate(json.loads(answer.message.text), schema, format_checker=jsonschema.FormatChecker())
    streamed = await read_stream(demo(), model_call(question, response_format=asked))
    assert streamed.text == answer.message.text


@pytest.mark.parametrize(
    "schema", [{"not": {}}, {"type": "strnig"}, {"$ref": "https://example.com/elsewhere.json"}, {"pattern": "("}]
)
async def test_schema_without_an_answer_is_refused_by_name(schema: dict[str, Any]) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(InvalidRequest) as caught:
        await demo().complete(model_call("hello", response_format=asked))
    assert caught.value.param == "response_format.json_schema.schema"


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_any_pattern_is_read_without_an_error(pattern: str) -> None:
    assert len(text_for(pattern)) <= 2000


@pytest.mark.parametrize(
    ("words", "digits"),
    [
        ("seven", "7"),
        ("twenty-five", "25"),
        ("one hundred and five", "105"),
        ("two thousand three hundred", "2300"),
        ("ninety nine thousand", "99000"),
        ("三百二十", "320"),
        ("十一", "11"),
        ("两千零五", "2005"),
        ("seven eight", None),
        ("twenty thirty", None),
        ("三四", None),
    ],
)
def test_numbers_in_words_are_numbers(words: str, digits: str | None) -> None:
    assert numeral(words) == digits


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("what weekday is it tomorrow?", "tomorrow: Tuesday, 2024-12-31"),
        ("what day is the day after tomorrow", "day after tomorrow: Wednesday, 2025-01-01"),
        ("昨天星期几", "昨天：星期日，2024-12-29"),
    ],
)
async def test_other_days_are_told_from_today(question: str, expected: str) -> None:
    today = {"date": "2024-12-30", "weekday": "Monday", "time": "10:00:00"}
    clock = replace(CLOCK, run=lambda timezone="UTC": today)
    assert expected in (await talk(demo(), question, clock)).answer


@pytest.mark.parametrize(
    "question", ["What time is it in Atlantis?", "亚特兰蒂斯现在几点", "time in Rome and Atlantis"]
)
async def test_place_without_a_known_zone_goes_to_the_tool_as_it_is(question: str) -> None:
    asked = [arguments.get("timezone") for _, arguments in (await talk(demo(), question, CLOCK)).calls]
    assert {"Atlantis", "亚特兰蒂斯"} & set(asked)
    assert "UTC" not in asked


async def test_question_in_two_halves_says_which_half_it_has_no_tool_for() -> None:
    told = await talk(demo(), "what is three plus four, and what's the weather in Rome?", CALCULATOR)
    assert [arguments for _, arguments in told.calls] == [{"expression": "3+4"}]
    assert "no tool that answers “what's the weather in Rome”" in told.answer
