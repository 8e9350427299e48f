"""The ReAct protocol around a backend: when it is used, and that it costs nothing where it is not."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from gateway.backends.react import Learned, ReactBackend
from gateway.errors import UpstreamRefused
from tests.backends.contract import CALCULATOR, model_call, read_stream
from tests.fakes import ScriptedBackend
from tests.frames import d, f, tc, u

BOTH = pytest.mark.parametrize("streamed", [False, True])
HELLO = (d({"role": "assistant", "content": "Hel"}), d({"content": "lo."}), f("stop"))
REFUSALS: dict[str, bool] = {
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set': True,
    "tools param requires --jinja flag": True,
    'No endpoints found that support tool use. Try disabling "lookup".': True,
    "`tool calling` is not supported with this model": True,
    "deepseek-reasoner does not support Function Calling": True,
    "Function calling is not enabled for models/gemma-3-1b-it": True,
    "Unsupported parameter: 'tools' is not supported with this model.": True,
    "openrouter does not support parameters: ['tools'], for model=x": True,
    "Unrecognized request argument supplied: tools": True,
    "Invalid schema for function 'lookup': schema type 'foo' is not supported": False,
    "tools[0].function.parameters: `oneOf` is not supported": False,
    "tool_choice 'required' is not supported": False,
    "Unknown field tools[0].strict": False,
    "'messages' with role 'tool' must follow a message with 'tool_calls'": False,
}  # fmt: skip


async def told(backend: ReactBackend, call: Any, *, streamed: bool) -> str:
    return (await read_stream(backend, call)).text if streamed else (await backend.complete(call)).message.text


@BOTH
@pytest.mark.parametrize("words", REFUSALS)
async def test_only_a_refusal_of_tools_themselves_counts(words: str, streamed: bool) -> None:
    inner = ScriptedBackend(UpstreamRefused(words, status=400), then=HELLO)
    backend = ReactBackend(inner, Learned(text_only=False))
    call = model_call("hi", tools=[CALCULATOR])
    if REFUSALS[words]:
        assert await told(backend, call, streamed=streamed) == "Hello."
        assert ["tools" in each.fields for each in inner.calls] == [True, False]
        # What was learned is remembered, for every key of the backend.
        await told(ReactBackend(inner, backend._learned), call, streamed=streamed)
        assert "tools" not in inner.calls[2].fields
        return
    with pytest.raises(UpstreamRefused) as caught:
        await told(backend, call, streamed=streamed)
    assert caught.value.message == words
    await told(backend, call, streamed=streamed)
    assert ["tools" in each.fields for each in inner.calls] == [True, True]


@BOTH
async def test_a_model_that_takes_tools_is_asked_as_it_is(streamed: bool) -> None:
    text = 'Action: calculator\nAction Input: {"expression": "1"}'
    inner = ScriptedBackend(then=(d({"role": "assistant", "content": text}), f("stop")))
    backend = ReactBackend(inner, Learned(text_only=False))
    call = model_call("hi", tools=[CALCULATOR])
    for _ in range(2):
        assert await told(backend, call, streamed=streamed) == text
    assert inner.calls == [call, call]


async def test_a_refusal_that_comes_behind_the_first_words_is_the_answer_s_failure() -> None:
    failing = (d({"content": "Hel"}), UpstreamRefused("tools are not supported", status=400))
    inner = ScriptedBackend(failing, then=HELLO)
    backend = ReactBackend(inner, Learned(text_only=False))
    with pytest.raises(UpstreamRefused):
        await read_stream(backend, model_call("hi", tools=[CALCULATOR]))
    assert len(inner.calls) == 1


@BOTH
async def test_calls_that_a_model_makes_in_the_protocol_of_its_server_pass(streamed: bool) -> None:
    said = (tc(0, id="c1", name="calculator", arguments='{"expression": "1"}'), f("tool_calls"))
    backend = ReactBackend(ScriptedBackend(then=said), Learned(text_only=True))
    call = model_call("hi", tools=[CALCULATOR])
    if streamed:
        out = await read_stream(backend, call)
        calls, reason = out.calls, out.finish_reasons
    else:
        answer = await backend.complete(call)
        calls, reason = answer.message.tool_calls, [answer.finish_reason or ""]
    assert [(each.id, each.name, each.arguments) for each in calls] == [("c1", "calculator", '{"expression": "1"}')]
    assert reason == ["tool_calls"]


async def test_every_choice_of_a_stream_is_read_by_itself() -> None:
    pieces = [("Final Ans", 0), ("Action: calculator\nActio", 1), ("wer: 1", 0), ('n Input: {"expression": "2"}', 1)]
    frames = [d({"content": text}, index=index) for text, index in pieces]
    inner = ScriptedBackend(then=(*frames, f("stop"), f("stop", index=1), u(5, 7)))
    backend = ReactBackend(inner, Learned(text_only=True))
    async with aclosing(backend.stream(model_call("hi", tools=[CALCULATOR], n=2))) as batches:
        chunks = [chunk async for batch in batches for chunk in batch]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    first = "".join(str(c.delta.content or "") for c in choices if c.index == 0 and c.delta)
    assert first == "1"
    calls = [call for c in choices if c.index == 1 and c.delta for call in c.delta.tool_calls or ()]
    assert [(call.index, call.function.name) for call in calls if call.function] == [(0, "calculator")]
    assert [(c.index, c.finish_reason) for c in choices if c.finish_reason] == [(0, "stop"), (1, "tool_calls")]
    assert chunks[-1].fields.usage is not None
