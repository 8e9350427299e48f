"""Long conversations over real sockets: what goes upstream when there is no room for all of it."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError
from tests.serving import Served, native_config, serving
from tests.upstream import Reply, ScriptedUpstream, UpstreamRequest, answer, call, error, strict_history
from tests.values import strings

PATH = "/v1/chat/completions"
TOO_LONG = error(400, "maximum context length is 2000 tokens", code="context_length_exceeded")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def asking(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def text_of(request: UpstreamRequest) -> str:
    return json.dumps(request.messages, ensure_ascii=False)


async def test_a_conversation_under_the_limit_passes_untouched_and_one_over_it_is_cut(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=lambda r: strict_history(r) or answer("ok")) as up,
        serving(tmp_path, native_config(up.base_url, backend={"context_tokens": 3000})) as on,
    ):
        short = [user("hello"), said("hi"), user("region East China, please")]
        assert (await on.post(PATH, asking(*short)))[0] == 200
        assert up.requests[-1].messages == short
        long = [user("Order SO-2024-0318 is mine.")]
        for turn in range(20):
            long += [said("word " * 200), user(f"question {turn}")]
        status, headers, _ = await on.post(PATH, asking(*long))
        assert status == 200
        assert len(up.requests[-1].raw) < 3000 * 4
        assert "- order: SO-2024-0318" in up.requests[-1].messages[-1]["content"]
        trace = await on.trace(headers["x-gateway-trace"])
        (event,) = [each for each in trace["events"] if each["type"] == "context.windowed"]
        assert event["data"]["dropped"] > 0
        assert {"tag": "order", "value": "SO-2024-0318"} in event["data"]["pins"]
        # The next turn begins with the same bytes, and says how many.
        long += [said("short"), user("and then?")]
        _, headers, _ = await on.post(PATH, asking(*long))
        trace = await on.trace(headers["x-gateway-trace"])
        (event,) = [each for each in trace["events"] if each["type"] == "context.windowed"]
        before, now = up.requests[-2].messages, up.requests[-1].messages
        assert now[: len(before) - 1] == before[:-1]
        assert event["data"]["prefix_share"] > 0


async def test_tools_and_pictures_are_counted_and_the_larger_backend_gets_the_request_B057(tmp_path: Path) -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool_{at}", "description": "word " * 300, "parameters": {}}}
        for at in range(160)
    ]
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}]
    body = asking(user("word " * 500), said("yes"), {"role": "user", "content": parts}, tools=tools)
    async with (
        ScriptedUpstream(then=answer("small")) as small,
        ScriptedUpstream(then=answer("large")) as large,
    ):
        config = native_config(small.base_url, backend={"context_tokens": 32_000})
        config["backends"]["b2"] = {**config["backends"]["b1"], "base_url": large.base_url, "context_tokens": 200_000}
        config["models"] = {"m": {"backends": ["b1"], "fallbacks": ["big"]}, "big": {"backends": ["b2"]}}
        async with serving(tmp_path, config) as on:
            status, headers, got = await on.post(PATH, body)
            assert (status, got["choices"][0]["message"]["content"]) == (200, "large")
            assert not small.requests
            assert len(large.requests[0].json["tools"]) == 160
            events = (await on.trace(headers["x-gateway-trace"]))["events"]
            failed = next(each["data"] for each in events if each["type"] == "attempt.failed")
            assert failed["outcome"] == "too_long"
            status, _, got = await on.post(PATH, body, x_gateway_fallbacks="none")
            assert (status, got["error"]["code"], got["error"]["param"]) == (400, "context_length_exceeded", "tools")
            assert "tools (" in got["error"]["message"]
            assert not small.requests


async def test_what_cannot_shrink_is_tried_once_more_and_then_named_B055(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=TOO_LONG) as up,
        serving(tmp_path, native_config(up.base_url, backend={"context_tokens": 4000})) as on,
    ):
        talk = [{"role": "system", "content": "rule " * 1500}]
        for turn in range(20):
            talk += [user(f"question {turn} region East China"), said("word " * 100)]
        status, _, got = await on.post(PATH, asking(*talk, user("last")))
        assert (status, got["error"]["code"]) == (400, "context_length_exceeded")
        assert "system messages (" in got["error"]["message"]
        assert len(up.requests) <= 2
        status, _, got = await on.post(PATH, asking({"role": "system", "content": "rule " * 9000}, user("hi")))
        assert (status, got["error"]["code"]) == (400, "context_length_exceeded")
        assert len(up.requests) <= 2, "it is not even asked"


async def test_a_backend_whose_limit_nobody_told_is_asked_once_more_with_less(tmp_path: Path) -> None:
    def limited(request: UpstreamRequest) -> Reply:
        return strict_history(request) or (TOO_LONG if len(request.raw) > 20_000 else answer("fits"))

    talk: list[dict[str, Any]] = [user("My customer number is 4711.")]
    for turn in range(20):
        talk += [said("word " * 250), user(f"question {turn}")]
    async with ScriptedUpstream(then=limited) as up, serving(tmp_path, native_config(up.base_url)) as on:
        status, _, got = await on.post(PATH, asking(*talk))
        assert (status, got["choices"][0]["message"]["content"]) == (200, "fits")
        assert len(up.requests) == 2
        assert "4711" in text_of(up.requests[-1])


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [("last", ["system", "assistant", "tool", "user"]), ("fresh", ["system", "user"]), ("none", None)],
)
async def test_a_route_says_which_strategy_it_takes(tmp_path: Path, strategy: str, kept: list[str] | None) -> None:
    talk = [
        {"role": "system", "content": "be brief"},
        user("first"),
        {"role": "assistant", "content": None, "tool_calls": [call("c", "find", "{}")]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
        said("there it is"),
        user("verbatim"),
    ]
    route = {"model": "m", "keywords": ["verbatim"], "context": {"strategy": strategy}}
    async with (
        ScriptedUpstream(then=lambda r: strict_history(r) or answer("ok")) as up,
        serving(tmp_path, native_config(up.base_url), {"r": route}) as on,
    ):
        assert (await on.post(PATH, {"model": "auto", "messages": talk}))[0] == 200
        sent = up.requests[-1].messages
        assert sent == talk if kept is None else [each["role"] for each in sent] == kept


def one_system_in_front(request: UpstreamRequest) -> Reply:
    roles = [each["role"] for each in request.messages]
    if "system" in roles[1:] or "developer" in roles[1:]:
        return error(400, "System message must be at the beginning.")
    return strict_history(request) or answer("ok")


def no_developer(request: UpstreamRequest) -> Reply:
    return error(400, "unknown role") if "developer" in text_of(request) else answer("ok")


def in_turns(request: UpstreamRequest) -> Reply:
    roles = [each["role"] for each in request.messages if each["role"] != "system"]
    fine = roles[0] == "user" and all(one != other for one, other in itertools.pairwise(roles))
    return (strict_history(request) or answer("ok")) if fine else error(400, "roles must alternate")


SHAPES: list[list[dict[str, Any]]] = [
    [{"role": "system", "content": "CLIENT"}, user("hi"), said("hello"), user("verbatim")],
    [user("verbatim")],
    [{"role": "system", "content": "CLIENT"}, {"role": "system", "content": "MORE"}, user("verbatim")],
    [{"role": "developer", "content": "CLIENT"}, user("verbatim")],
    [user("hi"), {"role": "system", "content": "MIDDLE"}, said("yes"), user("verbatim")],
    [said("welcome"), user("one"), user("two"), said("a"), said("b"), user("verbatim")],
]


@pytest.mark.parametrize(
    ("capability", "upstream"),
    [
        ({"system_anywhere": False, "developer_role": False}, one_system_in_front),
        ({"developer_role": False}, no_developer),
        ({"alternation": True, "system_anywhere": False, "developer_role": False}, in_turns),
    ],
    ids=["S", "T", "U"],
)
async def test_strict_templates_take_what_the_gateway_adds_B061(
    tmp_path: Path, capability: dict[str, bool], upstream: Any
) -> None:
    route = {"model": "m", "keywords": ["verbatim"], "system": "OPERATOR", "context": {"recent_turns": 1}}
    backend = {"capabilities": capability, "context_tokens": 1200}
    async with (
        ScriptedUpstream(then=upstream) as up,
        serving(tmp_path, native_config(up.base_url, backend=backend), {"r": route}) as on,
    ):
        for shape in SHAPES:
            await taken(on, up, shape)


async def taken(on: Served, up: ScriptedUpstream, shape: list[dict[str, Any]]) -> None:
    """A conversation of this shape is answered, as it is and long enough that there are notes on top."""
    early = [user("My order is SO-2024-0318."), said("word " * 900)]
    at = next(index for index, each in enumerate(shape) if each["role"] not in ("system", "developer"))
    for messages in (shape, [*shape[:at], *early, *shape[at:]]):
        status, _, got = await on.post(PATH, {"model": "auto", "messages": messages})
        assert status == 200, got
        sent = up.requests[-1].messages
        assert sent[0]["role"] in ("system", "developer")
        first = sent[0]["content"]
        if shape[0]["content"] == "CLIENT":
            assert first.startswith("CLIENT")
        assert "OPERATOR" in first
        assert "verbatim" in sent[-1]["content"]
        assert "SO-2024-0318" not in first
    assert "- order: SO-2024-0318" in up.requests[-1].messages[-1]["content"]


def summing(
    folder: Path, model: ScriptedUpstream, writer: ScriptedUpstream, context: int, **more: Any
) -> dict[str, Any]:
    config = native_config(
        model.base_url, backend={"context_tokens": context, "price": {"input_per_mtok": 1, "output_per_mtok": 1}}
    )
    config["backends"]["w1"] = {**config["backends"]["b1"], "base_url": writer.base_url, "context_tokens": None}
    config["models"]["writer"] = {"backends": ["w1"], "retries": 0}
    config["context"] = {"summary": {"model": "writer"}, **more}
    return config


def long_talk(turns: int = 14) -> list[dict[str, Any]]:
    talk = [user("We still need the invoice of March."), said("Noted.")]
    for turn in range(turns):
        talk += [user(f"question {turn}"), said("word " * 120)]
    return [*talk, user("go on")]


async def test_a_model_sums_up_before_the_answer_where_that_is_the_strategy_B059(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=lambda r: strict_history(r) or answer("ok")) as up,
        ScriptedUpstream(
            then=answer("SUMMARY", usage={"prompt_tokens": 900, "completion_tokens": 5, "total_tokens": 905})
        ) as writer,
        serving(tmp_path, summing(tmp_path, up, writer, 3000, strategy="summary")) as on,
    ):
        talk = long_talk()
        status, headers, got = await on.post(PATH, asking(*talk))
        assert status == 200, got
        assert len(writer.requests) == 1
        last = up.requests[-1].messages[-1]["content"]
        assert "SUMMARY" in last
        assert "- Open: We still need the invoice of March." in last
        events = (await on.trace(headers["x-gateway-trace"]))["events"]
        (told,) = [each["data"] for each in events if each["type"] == "context.summarised"]
        assert told["error"] is None
        # The next turns use it; nothing is summed up twice, and it was paid once.
        for _ in range(2):
            talk += [said("fine"), user("next")]
            assert (await on.post(PATH, asking(*talk)))[0] == 200
            assert "SUMMARY" in up.requests[-1].messages[-1]["content"]
        assert len(writer.requests) == 1
        await on.gateway.turns._permits._writer.flush()
        _, _, usage = await on.get("/v1/usage?by=key")
        assert usage["data"][0]["prompt_tokens"] >= 900
        assert usage["data"][0]["turns"] == 3


async def test_a_model_sums_up_behind_the_answer_for_the_next_turn(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=lambda r: strict_history(r) or answer("ok")) as up,
        ScriptedUpstream(then=answer("SUMMARY")) as writer,
        serving(tmp_path, summing(tmp_path, up, writer, 3000)) as on,
    ):
        talk = long_talk(30)
        assert (await on.post(PATH, asking(*talk)))[0] == 200
        assert "SUMMARY" not in up.requests[-1].messages[-1]["content"]
        async with asyncio.timeout(20):
            while not writer.requests or on.gateway.turns._scribe._summarising._running:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        talk += [said("fine"), user("next")]
        assert (await on.post(PATH, asking(*talk)))[0] == 200
        assert "SUMMARY" in up.requests[-1].messages[-1]["content"]
        assert len(writer.requests) == 1


async def test_a_summary_that_is_no_shorter_is_rejected_and_not_asked_for_again_B055(tmp_path: Path) -> None:
    limits: list[Reply] = [TOO_LONG, TOO_LONG, TOO_LONG]
    async with (
        ScriptedUpstream(*limits, then=answer("ok")) as up,
        ScriptedUpstream(then=answer("word " * 6000)) as writer,
        serving(tmp_path, summing(tmp_path, up, writer, 3000, strategy="summary")) as on,
    ):
        talk = long_talk()
        status, _, got = await on.post(PATH, asking(*talk))
        assert (status, got["error"]["code"]) == (400, "context_length_exceeded")
        assert "What cannot be left out is" in got["error"]["message"]
        assert (len(up.requests), len(writer.requests)) == (2, 1)
        talk += [said("fine"), user("next")]
        await on.post(PATH, asking(*talk))
        assert len(writer.requests) == 1
        assert "- Open: We still need the invoice of March." in up.requests[-1].messages[-1]["content"]


@pytest.mark.parametrize("reply", [error(500, "down"), answer("")], ids=["down", "empty"])
async def test_without_a_model_that_answers_the_summary_is_extracted(tmp_path: Path, reply: Reply) -> None:
    async with (
        ScriptedUpstream(then=answer("ok")) as up,
        ScriptedUpstream(then=reply) as writer,
        serving(tmp_path, summing(tmp_path, up, writer, 3000, strategy="summary")) as on,
    ):
        assert (await on.post(PATH, asking(*long_talk())))[0] == 200
        assert "- Open: We still need the invoice of March." in up.requests[-1].messages[-1]["content"]
        assert "- User: question 3" in up.requests[-1].messages[-1]["content"]


STRATEGY = """
def only_questions(messages):
    if any("broken" in str(message["content"]) for message in messages):
        raise ValueError("no")
    return [at for at, message in enumerate(messages) if "?" in str(message.get("content"))]

def register(registry):
    registry.add_strategy("only-questions", only_questions)
"""


async def test_a_plugin_may_bring_a_strategy_and_one_that_nobody_brings_is_refused(tmp_path: Path) -> None:
    talk = [
        user("hello"),
        {"role": "assistant", "content": None, "tool_calls": [call("c", "find", "{}")]},
        {"role": "tool", "tool_call_id": "c", "content": "what?"},
        said("fine"),
        user("go on"),
    ]
    async with ScriptedUpstream(then=lambda r: strict_history(r) or answer("ok")) as up:
        config = native_config(up.base_url, context={"strategy": "only-questions"})
        async with serving(tmp_path, config, plugins={"chooses": STRATEGY}) as on:
            assert (await on.post(PATH, asking(*talk)))[0] == 200
            assert [each["role"] for each in up.requests[-1].messages] == ["assistant", "tool", "user"]
            assert (await on.post(PATH, asking(*talk, said("broken"), user("now"))))[0] == 200
            assert len(up.requests[-1].messages) == 7
        with pytest.raises(
            ConfigError, match=r"gateway.yaml:\d+: there is no strategy `only-questions`; there are `auto`"
        ):
            async with serving(tmp_path, {**config, "tools": {"plugins": []}}):
                raise AssertionError("it must not start")


async def test_half_a_private_value_is_never_sent_nor_traced(tmp_path: Path) -> None:
    talk = [user("Our contact is anna@example.com. Always write to anna@example.com, and call 13800138000.")]
    for turn in range(12):
        talk += [said("word " * 120 + "anna@example.com " * turn), user(f"question {turn}")]
    async with (
        ScriptedUpstream(then=lambda r: strict_history(r) or answer("ok")) as up,
        ScriptedUpstream(then=answer("They write to somebody.")) as writer,
    ):
        for strategy in ("window", "summary"):
            folder = tmp_path / strategy
            folder.mkdir()
            config = summing(folder, up, writer, 1500, strategy=strategy)
            async with serving(folder, {**config, "privacy": {"mode": "mask"}}) as on:
                trace = ""
                for end in range(9, len(talk) + 1, 4):
                    status, headers, got = await on.post(PATH, asking(*talk[:end]))
                    assert status == 200, got
                    trace = " ".join(strings(await on.trace(headers["x-gateway-trace"])))
                    seen = "".join(text_of(each) for each in (*up.requests, *writer.requests))
                    for text in (trace, seen):
                        for half in ("anna@", "anna", "example.co", "138001", "0138000"):
                            assert half not in text
                assert "context.windowed" in trace
                assert "contact: [[email:" in up.requests[-1].messages[-1]["content"]
