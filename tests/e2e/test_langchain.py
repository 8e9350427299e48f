"""LangChain's ChatOpenAI, unmodified, against the shipped gateway."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from tests.e2e.program import Program

# LangChain keeps one HTTP client for all its objects, and with it the event loop it was first used in.
pytestmark = pytest.mark.asyncio(loop_scope="module")
QUESTION = "what is 12.5% of 18,640?"


class Place(BaseModel):
    """Where to go, and for how long."""

    city: str
    days: int


@tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"{len(city) * 7} degrees in {city}"


@pytest.fixture
def chat(shipped: Program) -> ChatOpenAI:
    return ChatOpenAI(
        openai_api_base=f"{shipped.url}/v1", openai_api_key=SecretStr("any"), model_name="auto", max_retries=0
    )


async def test_invoke_answers_with_usage(chat: ChatOpenAI) -> None:
    got = await chat.ainvoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    assert "2330" in str(got.content)
    assert isinstance(got, AIMessage)
    assert got.usage_metadata is not None
    assert got.usage_metadata["total_tokens"] > 0
    assert got.response_metadata["finish_reason"] == "stop"
    assert got.tool_calls == []


async def test_stream_joins_to_the_answer_of_invoke(chat: ChatOpenAI) -> None:
    whole = await chat.ainvoke(QUESTION)
    pieces = [piece async for piece in chat.astream(QUESTION, stream_usage=True)]
    assert "".join(str(piece.content) for piece in pieces) == whole.content
    assert len(pieces) > 10
    assert [p.usage_metadata for p in pieces if p.usage_metadata] == [whole.usage_metadata]


async def test_synchronous_invoke_and_stream_work_too(chat: ChatOpenAI) -> None:
    def ask() -> tuple[str, str]:
        return str(chat.invoke(QUESTION).content), "".join(str(piece.content) for piece in chat.stream(QUESTION))

    whole, joined = await asyncio.to_thread(ask)
    assert "2330" in whole
    assert joined == whole


async def test_bound_tools_make_their_round_trip(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([get_weather])
    question = HumanMessage("what is the weather in Rome, and in Paris?")
    first = await bound.ainvoke([question])
    assert isinstance(first, AIMessage)
    assert [call["args"] for call in first.tool_calls] == [{"city": "Rome"}, {"city": "Paris"}]
    results = [await get_weather.ainvoke(call) for call in first.tool_calls]
    assert all(isinstance(result, ToolMessage) for result in results)
    last = await bound.ainvoke([question, first, *results])
    assert "28 degrees in Rome" in str(last.content)
    assert "35 degrees in Paris" in str(last.content)


async def test_streamed_tool_calls_add_up(chat: ChatOpenAI) -> None:
    pieces = [p async for p in chat.bind_tools([get_weather]).astream("what is the weather in Rome, and in Paris?")]
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece  # type: ignore[assignment]
    assert isinstance(whole, AIMessage)
    assert [call["args"] for call in whole.tool_calls] == [{"city": "Rome"}, {"city": "Paris"}]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_structured_output_is_an_instance(chat: ChatOpenAI, method: str) -> None:
    asking = chat.with_structured_output(Place, method=method)  # type: ignore[arg-type]
    got = await asking.ainvoke("a trip to Rome for 3 days")
    assert isinstance(got, Place)
