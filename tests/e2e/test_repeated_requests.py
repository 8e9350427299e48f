"""Requests that are sent again: one turn, one effect, one answer, over real sockets with the OpenAI SDK."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.test_openai_node import node
from tests.frames import DONE, d, f
from tests.replies import answer, call, error, stream
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream, UpstreamRequest

PLUGIN = """\
import asyncio
import sqlite3
from pathlib import Path
from gateway.tools import ToolContext, ToolFatal, tool

FILE = Path(__file__).parent.parent / "paid.db"

def rows():
    connection = sqlite3.connect(FILE)
    connection.execute("CREATE TABLE IF NOT EXISTS paid (amount INTEGER, key TEXT)")
    return connection

@tool(writes=True)
async def pay(amount: int, wait_s: float, ctx: ToolContext) -> str:
    \"\"\"Pay an amount.

    amount: in cents
    wait_s: how long it takes
    \"\"\"
    await asyncio.sleep(wait_s)
    with rows() as connection:
        connection.execute("INSERT INTO paid VALUES (?, ?)", (amount, ctx.idempotency_key))
    return f"paid {amount}"

@tool(writes=True, idempotency_key=["order"])
async def ship(order: str, note: str) -> str:
    \"\"\"Ship an order.

    order: its number
    note: for the driver
    \"\"\"
    with rows() as connection:
        connection.execute("INSERT INTO paid VALUES (0, ?)", (order,))
    return f"shipped {order}"

@tool(writes=True)
async def lose(amount: int) -> str:
    \"\"\"Pay over a line that breaks once the bank has it.

    amount: in cents
    \"\"\"
    with rows() as connection:
        connection.execute("INSERT INTO paid VALUES (?, 'lost')", (amount,))
    raise ConnectionResetError("the line broke")

@tool(writes=True)
async def stop(amount: int) -> str:
    \"\"\"End the turn.

    amount: in cents
    \"\"\"
    with rows() as connection:
        connection.execute("INSERT INTO paid VALUES (?, 'stop')", (amount,))
    raise ToolFatal("the account is closed")

@tool(writes=True, idempotency_key=lambda amount: open("/nowhere"))
async def unnamed(amount: int) -> str:
    \"\"\"Pay under a key that cannot be made.

    amount: in cents
    \"\"\"
    with rows() as connection:
        connection.execute("INSERT INTO paid VALUES (?, 'unnamed')", (amount,))
    return "paid"

def register(registry):
    registry.add(pay, ship, lose, stop, unnamed)
"""
ROUTE = {
    "model": "m",
    "match": "when",
    "when": {"models": ["auto"]},
    "tools": ["pay", "ship", "lose", "stop", "unnamed"],
}
ASK = {"model": "auto", "messages": [{"role": "user", "content": "pay it"}]}


@asynccontextmanager
async def paying(folder: Path, upstream: ScriptedUpstream, **more: Any) -> AsyncIterator[Served]:
    async with serving(folder, native_config(upstream.base_url, **more), {"pay": ROUTE}, {"pay": PLUGIN}) as on:
        yield on


def paid(folder: Path) -> list[tuple[int, str]]:
    with sqlite3.connect(folder / "paid.db") as connection:
        try:
            return [(row[0], row[1]) for row in connection.execute("SELECT amount, key FROM paid")]
        except sqlite3.OperationalError:
            return []


class Bank:
    """A model that pays first and tells then; it names another amount each time it is asked to pay."""

    def __init__(self, wait_s: float = 0.0, name: str = "pay") -> None:
        self.asked = 0
        self._wait_s = wait_s
        self._name = name

    def __call__(self, request: UpstreamRequest) -> Any:
        results = [message for message in request.messages if message["role"] == "tool"]
        if results:
            said = json.loads(results[-1]["content"])
            text = str(said.get("result") or said.get("error"))
            return stream(d({"content": text}), f("stop"), DONE) if request.json.get("stream") else answer(text)
        self.asked += 1
        arguments = {
            "pay": {"amount": 100 + self.asked, "wait_s": self._wait_s},
            "ship": {"order": "SO-1", "note": f"ring {self.asked} times"},
        }.get(self._name, {"amount": 100 + self.asked})
        made = call(f"call_{self.asked}", self._name, json.dumps(arguments))
        if request.json.get("stream"):
            return stream(d({"tool_calls": [{"index": 0, **made}]}), f("tool_calls"), DONE)
        return answer(calls=[made])


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_a_repeat_with_the_same_key_gets_the_first_answer_B088(tmp_path: Path, streamed: bool) -> None:
    bank = Bank()
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream) as on:
        body = {**ASK, "stream": streamed}
        answers = []
        for _ in range(3):
            async with on.http.post(
                f"{on.url}/v1/chat/completions", json=body, headers={"Idempotency-Key": "k1"}
            ) as response:
                answers.append((response.status, dict(response.headers), await response.text()))
        assert [status for status, _, _ in answers] == [200] * 3
        assert [headers.get("x-gateway-replayed") for _, headers, _ in answers] == [None, "true", "true"]
        if streamed:
            assert all("paid 101" in text and text.endswith("data: [DONE]\n\n") for _, _, text in answers)
        else:
            assert answers[0][2] == answers[1][2] == answers[2][2]
        assert {headers["x-gateway-route"] for _, headers, _ in answers} == {"pay"}
        assert len({headers["x-gateway-trace"] for _, headers, _ in answers}) == 3
        assert (bank.asked, len(paid(tmp_path))) == (1, 1)


async def test_equal_requests_at_once_under_one_key_are_one_turn_B088(tmp_path: Path) -> None:
    bank = Bank(wait_s=0.5)
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream) as on:
        found = await asyncio.gather(*(on.post("/v1/chat/completions", ASK, Idempotency_Key="k1") for _ in range(4)))
        assert [status for status, _, _ in found] == [200] * 4
        assert {body["id"] for _, _, body in found} == {found[0][2]["id"]}
        assert sorted("x-gateway-replayed" in headers for _, headers, _ in found) == [False, True, True, True]
        assert (bank.asked, len(paid(tmp_path))) == (1, 1)


async def test_a_key_with_another_body_is_a_conflict_and_with_another_caller_independent_B088(tmp_path: Path) -> None:
    keys = {"static": {name: {"key": f"secret-{name}-000000000000"} for name in "ab"}}
    bank = Bank()
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream, keys=keys) as on:
        a, b = ({"x_api_key": f"secret-{name}-000000000000", "Idempotency_Key": "k1"} for name in "ab")
        assert (await on.post("/v1/chat/completions", ASK, **a))[0] == 200
        other = {**ASK, "messages": [{"role": "user", "content": "pay more"}]}
        status, _, body = await on.post("/v1/chat/completions", other, **a)
        assert (status, body["error"]["code"]) == (409, "idempotency_conflict")
        status, headers, _ = await on.post("/v1/chat/completions", other, **b)
        assert (status, headers.get("x-gateway-replayed")) == (200, None)
        status, _, body = await on.post(
            "/v1/chat/completions", ASK, x_api_key=a["x_api_key"], Idempotency_Key="k" * 5000
        )
        assert (status, body["error"]["param"]) == (400, "Idempotency-Key")
        assert len(paid(tmp_path)) == 2


async def test_a_turn_that_failed_after_its_effect_goes_on_behind_it_B088(tmp_path: Path) -> None:
    bank = Bank()
    failing = [True]

    def model(request: UpstreamRequest) -> Any:
        if request.messages[-1]["role"] == "tool" and failing[0]:
            return error(500, "overloaded")
        return bank(request)

    async with ScriptedUpstream(then=model) as upstream, paying(tmp_path, upstream) as on:
        assert (await on.post("/v1/chat/completions", ASK, Idempotency_Key="k1"))[0] == 502
        failing[0] = False
        status, headers, body = await on.post("/v1/chat/completions", ASK, Idempotency_Key="k1")
        assert (status, body["choices"][0]["message"]["content"]) == (200, "paid 101")
        assert "x-gateway-replayed" not in headers
        assert (bank.asked, [amount for amount, _ in paid(tmp_path)]) == (1, [101])


async def test_the_sdk_s_own_retry_gets_the_first_turn_s_answer(tmp_path: Path) -> None:
    bank = Bank(wait_s=5)
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream) as on:
        async with openai.AsyncOpenAI(base_url=f"{on.url}/v1", api_key="x", timeout=2, max_retries=5) as sdk:
            made = await sdk.chat.completions.create(model="auto", messages=[{"role": "user", "content": "pay it"}])
        assert made.choices[0].message.content == "paid 101"
        assert (bank.asked, len(paid(tmp_path))) == (1, 1)


async def test_the_node_sdk_s_own_retry_gets_the_first_turn_s_answer_plain_and_streamed(tmp_path: Path) -> None:
    bank = Bank(wait_s=5)
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream) as on:
        assert await node("retry.mjs", on.url) == {"plain": "paid 101", "streamed": "paid 102"}
        assert (bank.asked, sorted(amount for amount, _ in paid(tmp_path))) == (2, [101, 102])


async def test_two_equal_requests_of_a_client_that_retries_nothing_are_two_turns(tmp_path: Path) -> None:
    bank = Bank()
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream) as on:
        for _ in range(2):
            assert (await on.post("/v1/chat/completions", ASK))[0] == 200
        # Delivered, so that a retry of the same words is a turn of its own.
        await on.gateway.turns.joining.close()
        assert (await on.post("/v1/chat/completions", ASK, x_stainless_retry_count="1"))[0] == 200
        assert (bank.asked, len(paid(tmp_path))) == (3, 3)


async def test_a_stream_the_client_left_is_taken_up_by_its_key_B088(tmp_path: Path) -> None:
    bank = Bank(wait_s=2)
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream) as on:
        leaving = asyncio.create_task(on.raw_stream(ASK, Idempotency_Key="k1"))
        async with asyncio.timeout(20):
            while not bank.asked:
                await asyncio.sleep(0.01)
        # It leaves while its payment is being made.
        await asyncio.sleep(0.3)
        leaving.cancel()
        await asyncio.wait([leaving])
        text = (await on.raw_stream(ASK, Idempotency_Key="k1")).decode()
        assert "paid 101" in text
        assert (bank.asked, len(paid(tmp_path))) == (1, 1)


async def test_a_declared_key_makes_calls_of_different_turns_one_effect(tmp_path: Path) -> None:
    bank = Bank(name="ship")
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream) as on:
        for _ in range(2):
            status, _, body = await on.post("/v1/chat/completions", ASK)
            assert (status, body["choices"][0]["message"]["content"]) == (200, "shipped SO-1")
        assert (bank.asked, paid(tmp_path)) == (2, [(0, "SO-1")])


async def test_two_equal_calls_in_one_answer_are_two_effects(tmp_path: Path) -> None:
    def model(request: UpstreamRequest) -> Any:
        if request.messages[-1]["role"] == "tool":
            return answer("both")
        arguments = '{"amount": 5, "wait_s": 0}'
        return answer(calls=[call("a", "pay", arguments), call("b", "pay", arguments)])

    async with ScriptedUpstream(then=model) as upstream, paying(tmp_path, upstream) as on:
        assert (await on.post("/v1/chat/completions", ASK))[0] == 200
        assert [amount for amount, _ in paid(tmp_path)] == [5, 5]


async def test_a_payment_whose_connection_broke_is_made_once_however_often_it_is_asked_for_B041(tmp_path: Path) -> None:
    bank = Bank(name="lose")
    failing = [True]

    def model(request: UpstreamRequest) -> Any:
        if request.messages[-1]["role"] == "tool" and failing[0]:
            return error(500, "overloaded")
        return bank(request)

    async with ScriptedUpstream(then=model) as upstream, paying(tmp_path, upstream) as on:
        for _ in range(2):
            assert (await on.post("/v1/chat/completions", ASK, Idempotency_Key="k1"))[0] == 502
        failing[0] = False
        status, headers, body = await on.post("/v1/chat/completions", ASK, Idempotency_Key="k1")
        assert status == 200
        assert "not known" in body["choices"][0]["message"]["content"]
        assert (bank.asked, paid(tmp_path)) == (1, [(101, "lost")])
        kinds = [event["type"] for event in (await on.trace(headers["x-gateway-trace"]))["events"]]
        assert "effect.unknown" in kinds


async def test_a_tool_that_ended_the_turn_ends_it_again_and_is_not_run_again(tmp_path: Path) -> None:
    bank = Bank(name="stop")
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream) as on:
        for _ in range(2):
            status, _, body = await on.post("/v1/chat/completions", ASK, Idempotency_Key="k1")
            assert (status, body["error"]["code"]) == (502, "tool_failed")
        assert (bank.asked, paid(tmp_path)) == (1, [(101, "stop")])


async def test_a_call_whose_key_cannot_be_made_is_not_made(tmp_path: Path) -> None:
    bank = Bank(name="unnamed")
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream) as on:
        status, _, body = await on.post("/v1/chat/completions", ASK)
        assert status == 200
        assert "was not called" in body["choices"][0]["message"]["content"]
        assert paid(tmp_path) == []


async def test_an_answer_that_was_told_again_is_delivered_so_that_the_same_words_are_a_new_turn(tmp_path: Path) -> None:
    bank = Bank()
    async with ScriptedUpstream(then=bank) as upstream, paying(tmp_path, upstream) as on:
        turns = on.gateway.turns
        # The first answer is lost on its way.
        noted, turns.joining.delivered = turns.joining.delivered, lambda joinable: None  # type: ignore[method-assign]
        assert (await on.post("/v1/chat/completions", ASK))[0] == 200
        turns.joining.delivered = noted  # type: ignore[method-assign]
        status, headers, _ = await on.post("/v1/chat/completions", ASK, x_stainless_retry_count="1")
        assert (status, headers.get("x-gateway-replayed")) == (200, "true")
        await turns.joining.close()
        status, headers, _ = await on.post("/v1/chat/completions", ASK, x_stainless_retry_count="1")
        assert (status, headers.get("x-gateway-replayed")) == (200, None)
        assert len(paid(tmp_path)) == 2
