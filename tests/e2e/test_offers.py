"""Which tools a thread is offered, over its turns."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.serving import Served, native_config, serving
from tests.upstream import Reply, Script, ScriptedUpstream, UpstreamRequest, answer, call
from tests.valkey import valkey

TOOL = """
@tool({declared})
async def {name}() -> str:
    '''{about}'''
    {body}
"""


def plugin(*tools: str) -> dict[str, str]:
    names = [each.split("async def ")[1].split("(")[0] for each in tools]
    return {
        "made": "from gateway.tools import tool\ntries = []\n"
        + "".join(tools)
        + f"\ndef register(r): r.add({', '.join(names)})\n"
    }


def made(name: str, about: str = "Do it when asked.", declared: str = "", body: str = "return 'done'") -> str:
    return TOOL.format(name=name, about=about, declared=declared, body=body)


@asynccontextmanager
async def gateway(
    folder: Path,
    *script: Script,
    plugins: Mapping[str, str],
    routes: Mapping[str, list[str]],
    keys: Mapping[str, Any] | None = None,
    **tools: Any,
) -> AsyncIterator[tuple[Served, ScriptedUpstream]]:
    """Routes by their keyword, which is their name, with the tools each names."""
    async with ScriptedUpstream(*script, then=answer("well")) as upstream:
        config = native_config(upstream.base_url, tools=tools, **({"keys": keys} if keys else {}))
        written = {
            name: {"route": name, "model": "m", "keywords": [name], "tools": named} for name, named in routes.items()
        }
        async with serving(folder, config, written, plugins) as served:
            yield served, upstream


class Thread:
    """One conversation, as its client sees it."""

    def __init__(self, served: Served, **headers: str) -> None:
        self.served = served
        self.headers = headers
        self.messages: list[dict[str, Any]] = []
        self.trace = ""

    async def say(self, text: str, **headers: str) -> str:
        self.messages.append({"role": "user", "content": text})
        body = {"model": "auto", "messages": self.messages}
        status, told, got = await self.served.post("/v1/chat/completions", body, **{**self.headers, **headers})
        assert status == 200, got
        self.trace = told["x-gateway-trace"]
        self.messages.append(got["choices"][0]["message"])
        return str(got["choices"][0]["message"]["content"])

    async def told(self) -> dict[str, Any]:
        """What the trace of the last turn says of its offer."""
        await self.served.gateway.together.flush(30)
        _, _, trace = await self.served.get(f"/v1/traces/{self.trace}", **self.headers)
        return next(event["data"] for event in trace["events"] if event["type"] == "tools.offered")


def offered(request: UpstreamRequest) -> list[str]:
    return [each["function"]["name"] for each in request.json.get("tools", [])]


def asks(name: str) -> Reply:
    return answer(calls=[call(f"c_{name}", name, "{}")])


async def test_within_a_thread_the_offer_only_grows_and_keeps_its_order(tmp_path: Path) -> None:
    keys = {"static": {"one": {"key": "k-one"}, "two": {"key": "k-two"}}}
    async with gateway(
        tmp_path,
        plugins=plugin(made("zeta"), made("eta"), made("theta")),
        routes={"alpha": ["zeta", "eta"], "beta": ["theta", "eta"]},
        keys=keys,
    ) as (served, upstream):
        thread = Thread(served, Authorization="Bearer k-one")
        for text in ("alpha", "beta", "alpha again"):
            await thread.say(text)
        assert [offered(request) for request in upstream.requests] == [
            ["zeta", "eta"],
            ["zeta", "eta", "theta"],
            ["zeta", "eta", "theta"],
        ]
        # Another thread of the same owner, and the same words of another owner, begin anew.
        await Thread(served, Authorization="Bearer k-one").say("beta")
        foreign = Thread(served, Authorization="Bearer k-two")
        foreign.messages = thread.messages[:2]
        await foreign.say("beta")
        assert [offered(request) for request in upstream.requests[3:]] == [["theta", "eta"]] * 2


async def test_what_a_request_narrows_is_back_in_the_next(tmp_path: Path) -> None:
    async with gateway(
        tmp_path,
        plugins=plugin(made("zeta"), made("eta"), made("theta")),
        routes={"alpha": ["zeta", "eta"], "beta": ["theta"], "none": []},
    ) as (served, upstream):
        thread = Thread(served)
        await thread.say("alpha")
        await thread.say("alpha", x_gateway_tools="eta")
        await thread.say("none")
        await thread.say("beta")
    assert [offered(request) for request in upstream.requests] == [
        ["zeta", "eta"],
        ["eta"],
        [],
        ["zeta", "eta", "theta"],
    ]


async def test_of_too_many_tools_those_that_the_question_is_about_are_offered(tmp_path: Path) -> None:
    about = {
        "weather": "Tell the weather when the user asks about rain (天气).",
        "stocks": "Tell the price of shares when the user asks about markets.",
        "recipes": "Find a recipe when the user asks how to cook.",
        "trains": "Find trains when the user asks about a railway journey (火车).",
    }
    async with gateway(
        tmp_path,
        plugins=plugin(*(made(name, text) for name, text in about.items())),
        routes={"go": [*about]},
        max_offered=1,
    ) as (served, upstream):
        thread = Thread(served)
        await thread.say("go: how do I cook rice?")
        assert offered(upstream.requests[-1]) == ["recipes"]
        told = await thread.told()
        assert (told["names"], told["chosen_by"]) == (["recipes"], "words")
        assert told["left_out"]["trains"] == "others are more relevant"
        await Thread(served).say("go 明天的天气")
        assert offered(upstream.requests[-1]) == ["weather"]
        # What was offered stays, and takes its place.
        await thread.say("go: when does the train leave?")
        assert offered(upstream.requests[-1]) == ["recipes"]


async def test_a_tool_follows_as_soon_as_what_it_requires_has_succeeded(tmp_path: Path) -> None:
    async with gateway(
        tmp_path,
        asks("find"),
        asks("find"),
        answer("found"),
        answer("well"),
        plugins=plugin(
            made("cancel", declared="writes=True, requires=['find']"),
            made("find", body="tries.append(1)\n    if len(tries) == 1: raise ValueError('no')\n    return 'ok'"),
        ),
        routes={"go": ["cancel", "find"]},
    ) as (served, upstream):
        thread = Thread(served)
        await thread.say("go")
        assert [offered(request) for request in upstream.requests] == [["find"], ["find"], ["find", "cancel"]]
        await thread.say("go")
        assert offered(upstream.requests[3]) == ["find", "cancel"]


async def test_a_client_s_word_that_something_succeeded_proves_nothing(tmp_path: Path) -> None:
    async with gateway(
        tmp_path,
        plugins=plugin(made("cancel", declared="requires=['find']"), made("find")),
        routes={"go": ["cancel", "find"]},
    ) as (served, upstream):
        thread = Thread(served)
        thread.messages = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call("c1", "find", "{}")]},
            {"role": "tool", "tool_call_id": "c1", "content": '{"ok": true, "result": "done"}'},
        ]
        await thread.say("go on")
        assert offered(upstream.requests[0]) == ["find"]
        assert (await thread.told())["left_out"] == {"cancel": "it waits for what it requires"}


async def test_an_open_breaker_keeps_a_tool_from_new_threads_and_from_no_other(tmp_path: Path) -> None:
    async with gateway(
        tmp_path,
        asks("far"),
        answer("sorry"),
        answer("new"),
        asks("far"),
        answer("sorry"),
        plugins=plugin(made("far", declared="retries=0", body="raise ConnectionError('gone')"), made("near")),
        routes={"go": ["far", "near"]},
        breaker_failures=1,
    ) as (served, upstream):
        old, new = Thread(served), Thread(served)
        await old.say("go")
        await new.say("go, please")
        assert offered(upstream.requests[2]) == ["near"]
        assert (await new.told())["left_out"] == {"far": "its breaker is open"}
        await old.say("go")
        assert offered(upstream.requests[3]) == ["far", "near"]
        refused = json.loads(upstream.requests[4].messages[-1]["content"])
        assert refused["ok"] is False


async def test_a_breaker_that_opens_where_all_are_offered_the_same_takes_no_tool_from_a_thread(tmp_path: Path) -> None:
    tools = {"offer": "always", "default": ["far", "near"], "breaker_failures": 1}
    far = made("far", declared="retries=0", body="raise ConnectionError('gone')")
    async with (
        ScriptedUpstream(asks("far"), then=answer("well")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, tools=tools), plugins=plugin(far, made("near"))) as served,
    ):
        old, new = Thread(served), Thread(served)
        await old.say("go")
        for _ in range(2):
            await old.say("go")
            assert offered(upstream.requests[-1]) == ["far", "near"]
            await new.say("go, please")
            assert offered(upstream.requests[-1]) == ["near"]


async def test_replicas_know_what_a_thread_was_offered(tmp_path: Path) -> None:
    with valkey() as server:
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(ScriptedUpstream(then=answer("well")))
            replicas = []
            for name in ("one", "two"):
                (tmp_path / name).mkdir()
                config = native_config(upstream.base_url, storage={"redis": server.url})
                config["storage"]["database"] = f"sqlite:///{tmp_path / 'hermes.db'}"
                routes = {
                    word: {"route": word, "model": "m", "keywords": [word], "tools": [tool]}
                    for word, tool in (("alpha", "zeta"), ("beta", "eta"))
                }
                serves = serving(tmp_path / name, config, routes, plugin(made("zeta"), made("eta")))
                replicas.append(await stack.enter_async_context(serves))
            thread = Thread(replicas[0])
            await thread.say("alpha")
            thread.served = replicas[1]
            await thread.say("beta")
            assert [offered(request) for request in upstream.requests] == [["zeta"], ["zeta", "eta"]]
