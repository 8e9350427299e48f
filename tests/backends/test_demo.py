from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from gateway.backends.backend import Backend, ModelCall
from gateway.backends.demo import DemoBackend
from gateway.chat.blocks import Image, Message, Text, ToolCall, ToolResult
from gateway.config.models import BackendConfig
from gateway.errors import ConfigError, InvalidRequest, UpstreamTimeout
from tests.backends.contract import BackendContract, model_call, parsed, read_stream
from tests.backends.demo_loop import talk
from tests.backends.demo_tools import CALCULATOR, EVERYTHING, WEATHER
from tests.backends.openai_schemas import check_answer, check_chunk
from tests.clocks import HandClock


def demo(**params: Any) -> DemoBackend:
    return DemoBackend("demo", BackendConfig(provider="demo", params=params), HandClock())


class TestDemoMeetsTheContract(BackendContract):
    @asynccontextmanager
    async def texting(self) -> AsyncIterator[Backend]:
        yield demo()

    calling = texting

    @asynccontextmanager
    async def failing(self) -> AsyncIterator[tuple[Backend, ModelCall]]:
        yield demo(delay_ms=500), model_call("hello", timeout_s=0.1)


async def test_first_answer_says_that_it_is_a_demo_and_how_to_add_a_model() -> None:
    for question, word in (("hello there", "demo backend"), ("你好", "演示后端")):
        answer = await demo().complete(model_call(question))
        assert word in answer.message.text
        assert "demo-1" in answer.message.text
        assert "provider: openai" in answer.message.text
        assert json.loads(answer.body)["model"] == "demo-1"


async def test_later_answers_do_not_repeat_the_note() -> None:
    said = await demo().complete(model_call("hello", Message("assistant", (Text("hi"),)), "and now?"))
    assert "demo backend" not in said.message.text


async def test_first_answer_after_tool_rounds_still_carries_the_note() -> None:
    told = await talk(demo(), "what is 2 + 3?", CALCULATOR)
    assert told.calls
    assert "demo backend" in told.answer


async def test_same_conversation_gets_the_same_words_whatever_the_seed() -> None:
    texts = {(await demo().complete(model_call("hello", seed=seed))).message.text for seed in (None, 1, 2, 2)}
    assert len(texts) == 1


async def test_words_come_one_by_one_and_chinese_character_by_character() -> None:
    for question, pieces in (("one two three", 10), ("讲一个故事", 20)):
        streamed = await read_stream(demo(), model_call(question))
        deltas = [chunk.choices[0].delta for chunk in streamed.chunks if chunk.choices]
        words = [delta.content for delta in deltas if delta and isinstance(delta.content, str) and delta.content]
        assert len(words) >= pieces
        assert all(len(word.strip()) == 1 for word in words if "\u4e00" <= word.strip()[:1] <= "\u9fff")


async def test_delay_is_waited_before_each_word() -> None:
    clock = HandClock()
    backend = DemoBackend("demo", BackendConfig(provider="demo", params={"delay_ms": 20}), clock)
    start = clock.monotonic()
    streamed = await read_stream(backend, model_call("hello", timeout_s=60))
    assert clock.monotonic() - start == pytest.approx(0.02 * len(streamed.chunks))


async def test_stream_longer_than_the_call_may_take_times_out() -> None:
    with pytest.raises(UpstreamTimeout):
        await read_stream(demo(delay_ms=100), model_call("hello", timeout_s=0.5))


async def test_stop_sequence_ends_the_text_and_is_not_part_of_it() -> None:
    whole = (await demo().complete(model_call("alpha beta gamma"))).message.text
    assert "beta" in whole
    for stop in ("beta", ["nowhere", "beta"]):
        answer = await demo().complete(model_call("alpha beta gamma", stop=stop))
        assert answer.message.text == whole[: whole.index("beta")]
        assert answer.finish_reason == "stop"
        assert (await read_stream(demo(), model_call("alpha beta gamma", stop=stop))).text == answer.message.text


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("question", ["antidisestablishmentarianism is long", "今天天气不错"])
async def test_length_limit_is_kept_and_said(name: str, limit: int, question: str) -> None:
    whole = (await demo().complete(model_call(question))).message.text
    answer = await demo().complete(model_call(question, **{name: limit}))
    streamed = await read_stream(demo(), model_call(question, **{name: limit}))
    assert answer.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == limit
    assert 0 < len(answer.message.text) < len(whole)
    assert whole.startswith(answer.message.text)
    assert streamed.text == answer.message.text
    assert streamed.finish_reasons == ["length"]


async def test_usage_grows_with_the_conversation() -> None:
    short = await demo().complete(model_call("hello"))
    long = await demo().complete(model_call("hello", Message("assistant", (Text("hi " * 50),)), "hello"))
    assert short.usage is not None
    assert long.usage is not None
    assert long.usage.prompt_tokens > short.usage.prompt_tokens + 40


async def test_several_choices_are_answered_under_their_indexes() -> None:
    answer = await demo().complete(model_call("hello", n=3))
    body = check_answer(answer.body)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    streamed = await read_stream(demo(), model_call("hello", n=3))
    finished = [
        c["index"] for chunk in streamed.chunks for c in check_chunk(chunk.data)["choices"] if c["finish_reason"]
    ]
    assert finished == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "many"}, "max_completion_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"stop": [1]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
    ],
)
async def test_what_it_cannot_honour_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await demo().complete(model_call("hello", **fields))
    assert caught.value.param == param
    with pytest.raises(InvalidRequest):
        await read_stream(demo(), model_call("hello", **fields))


async def test_unknown_fields_change_nothing() -> None:
    plain = await demo().complete(model_call("hello"))
    other = await demo().complete(
        model_call("hello", temperature=2, metadata={"a": "b"}, something={"new": 1}, tools=None)
    )
    assert other.message.text == plain.message.text


@pytest.mark.parametrize("params", [{"delay_ms": -1}, {"delay_ms": "slow"}, {"delay_ms": True}, {"speed": 3}])
def test_wrong_parameters_are_named(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        demo(**params)
    assert next(iter(params)) in caught.value.message


def test_model_that_does_not_say_demo_is_refused() -> None:
    with pytest.raises(ConfigError, match="demo-"):
        DemoBackend("demo", BackendConfig(provider="demo", model="gpt-4o"))


async def test_image_is_admitted_not_to_be_seen() -> None:
    message = Message("user", (Text("what is this?"), Image("data:image/png;base64,AA==")))
    assert "cannot see" in (await demo().complete(model_call(message))).message.text


async def test_json_object_is_json_without_the_note() -> None:
    answer = await demo().complete(model_call("hello", response_format={"type": "json_object"}))
    assert isinstance(json.loads(answer.message.text), dict)


async def test_forced_choice_always_calls_with_arguments_the_schema_takes() -> None:
    tools = [tool.offer for tool in EVERYTHING]
    for question in ("hello", "你好", "", "what is 3 * 7?"):
        answer = await demo().complete(model_call(question, tools=tools, tool_choice="required"))
        assert answer.finish_reason == "tool_calls"
        for tool in EVERYTHING:
            choice = {"type": "function", "function": {"name": tool.name}}
            named = await demo().complete(model_call(question, tools=tools, tool_choice=choice))
            calls = parsed(named.message.tool_calls)
            assert {name for name, _ in calls} == {tool.name}
            for _, arguments in calls:
                assert set(tool.offer["function"]["parameters"]["required"]) <= set(arguments)
                assert all(isinstance(value, (str, int)) for value in arguments.values())


async def test_choice_of_none_never_calls() -> None:
    told = await talk(demo(), "what is 3 * 7?", CALCULATOR, tool_choice="none")
    assert not told.calls


async def test_allowed_tools_narrow_what_is_called() -> None:
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]},
    }
    assert not (await talk(demo(), "what is 3 * 7?", CALCULATOR, WEATHER, tool_choice=choice)).calls
    assert (await talk(demo(), "weather in Rome", CALCULATOR, WEATHER, tool_choice=choice)).calls


async def test_parallel_calls_switched_off_come_one_by_one() -> None:
    told = await talk(demo(), "what is 3 * 7 and 12 / 5?", CALCULATOR, parallel_tool_calls=False)
    assert [len(round_) for round_ in told.rounds] == [1, 1]
    assert "21" in told.answer
    assert "2.4" in told.answer


async def test_call_that_was_answered_is_not_made_again_even_when_forced() -> None:
    history = (
        Message("assistant", (ToolCall("call_1", "calculator", '{"expression":"3*7"}'),)),
        Message("tool", (ToolResult("call_1", "21"),)),
    )
    for choice in ("auto", "required"):
        call = model_call("what is 3 * 7?", *history, tools=[CALCULATOR.offer], tool_choice=choice)
        answer = await demo().complete(call)
        assert not answer.message.tool_calls
        assert "21" in answer.message.text


async def test_closing_the_stream_stops_it() -> None:
    async with aclosing(demo().stream(model_call("hello"))) as batches:
        await anext(batches)
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


async def test_schema_that_holds_itself_everywhere_is_read_in_no_time() -> None:
    itself = {"$ref": "#"}
    objects = {"type": "object", "properties": {f"p{number}": itself for number in range(50)}}
    unions = {"type": "null", "anyOf": [itself] * 20, "properties": {"a": {"anyOf": [itself] * 20}}}
    for parameters in (objects, unions):
        tool = {"type": "function", "function": {"name": "x", "parameters": parameters}}
        began = time.process_time()  # not the wall's: a busy machine is no fault of the schema
        await demo().complete(model_call("hello 5", tools=[tool]))
        assert time.process_time() - began < 2


async def test_values_of_any_size_and_depth_are_refused_by_name() -> None:
    for field, raw in (("temperature", b"1e999"), ("seed", b"9" * 10_000), ("metadata", b"[" * 5000 + b"]" * 5000)):
        call = model_call("hello")
        call = msgspec.structs.replace(call, fields={**call.fields, field: msgspec.Raw(raw)})
        with pytest.raises(InvalidRequest) as caught:
            await demo().complete(call)
        assert caught.value.param == field
    with pytest.raises(InvalidRequest):
        await demo().complete(model_call("hello", tool_choice={"type": "allowed_tools", "allowed_tools": 5}))


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "array", "minItems": 10**9, "items": {"type": "string", "minLength": 10**9}},
        {"type": "string", "minLength": 10**12},
        {"type": "string", "pattern": "a{9999999999}"},
        {"type": "string", "minLength": "many"},
        {"type": "number", "minimum": 1e308, "multipleOf": 1e-300},
    ],
    ids=str,
)
async def test_schema_that_asks_for_more_than_there_is_costs_no_memory(wanted: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": wanted}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "x", "parameters": schema}}
    tracemalloc.start()
    try:
        await demo().complete(model_call("hello 5", tools=[tool], tool_choice="required"))
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with pytest.raises(InvalidRequest, match="schema"):
            await demo().complete(model_call("hello 5", response_format=form))
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
