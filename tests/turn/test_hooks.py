from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from gateway.chat.blocks import Message, Reasoning, Text
from gateway.chat.codecs.chat_completions import decode_request
from gateway.chat.request import ChatRequest
from gateway.errors import HookFailed, InvalidRequest, NotAllowed
from gateway.observe.events import Recorder
from gateway.routing.decision import Decision
from gateway.turn.hooks import Hooks
from gateway.turn.prepare import NO_WISHES
from gateway.turn.stream import Sink
from tests.fakes import ScriptedBackend
from tests.frames import d, f, u
from tests.turn.stage import TRACE_ID, Stage, stage

SAID = [d({"reasoning_content": "secret thought"}), d({"content": "call 555"}), f("stop"), u(1, 1)]


async def answered(on: Stage, sink: Sink | None = None) -> Recorder:
    """Run a request through the service; its trace."""
    finished: list[Recorder] = []

    class Keeps:
        def finished(self, trace: Recorder) -> None:
            finished.append(trace)

    request = decode_request(b'{"model":"auto","messages":[{"role":"user","content":"hi"}]}')
    try:
        await on.service(Keeps()).answer(TRACE_ID, on.principal, request, NO_WISHES, "/x", lambda turn: sink, b"")
    finally:
        assert len(finished) == 1
    return finished[0]


async def test_request_hook_changes_what_is_asked() -> None:
    async def shorten(request: ChatRequest, principal: Any) -> ChatRequest:
        return msgspec.structs.replace(request, messages=(Message("user", (Text("changed"),)),))

    async def looks(request: ChatRequest, principal: Any) -> None:
        assert request.messages[0].text == "changed"

    async with stage(ScriptedBackend(SAID), hooks={"on_request": [shorten, looks]}) as on:
        trace = await answered(on)
        assert on.backend.calls[0].messages[0].text == "changed"
        assert [event.data["hook"] for event in trace.events if event.type == "hook.changed"] == ["on_request"]


async def test_request_hook_refuses() -> None:
    async def refuse(request: ChatRequest, principal: Any) -> None:
        raise NotAllowed("not today")

    async with stage(ScriptedBackend(), hooks={"on_request": [refuse]}) as on:
        with pytest.raises(NotAllowed, match="not today"):
            await answered(on)
        assert on.backend.calls == []


async def test_decision_hook_changes_where_it_goes() -> None:
    async def elsewhere(decision: Decision, request: Any, principal: Any) -> Decision:
        return msgspec.structs.replace(decision, route=None, strategy="default")

    async with stage(ScriptedBackend(SAID), hooks={"on_decision": [elsewhere]}) as on:
        turn = await on.prepare()
        assert (turn.decision.route, turn.decision.strategy) == (None, "default")


async def test_answer_hook_changes_every_part_of_the_answer() -> None:
    async def redact(message: Message, principal: Any) -> Message:
        return Message("assistant", (Text(message.text.replace("555", "***")),))

    async with stage(ScriptedBackend(SAID), hooks={"on_answer": [redact]}) as on:
        result = await on.run(streamed=False)
        assert result.body is not None
        message = json.loads(result.body)["choices"][0]["message"]
        assert message["content"] == "call ***"
        assert b"secret thought" not in result.body
        assert on.events("hook.changed") == [{"hook": "on_answer"}]


async def test_answer_hook_that_changes_nothing_leaves_the_answer_as_it_was() -> None:
    async def looks(message: Message, principal: Any) -> None:
        assert message.blocks == (Reasoning("secret thought"), Text("call 555"))

    async with stage(ScriptedBackend(SAID), hooks={"on_answer": [looks]}) as on:
        result = await on.run(streamed=False)
        assert result.body is not None
        message = json.loads(result.body)["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("call 555", "secret thought")


async def test_answer_hook_refuses_the_answer() -> None:
    async def refuse(message: Message, principal: Any) -> None:
        raise InvalidRequest("blocked by a filter")

    async with stage(ScriptedBackend(SAID), hooks={"on_answer": [refuse]}) as on:
        with pytest.raises(InvalidRequest, match="filter"):
            await on.run(streamed=False)


async def test_answers_that_a_hook_would_not_see_are_not_given() -> None:
    async def looks(message: Message, principal: Any) -> None:
        return

    async with stage(ScriptedBackend(), hooks={"on_answer": [looks]}) as on:
        with pytest.raises(InvalidRequest) as caught:
            await on.prepare(n=2)
        assert caught.value.param == "n"


async def test_hooks_run_in_order_and_each_sees_what_the_one_before_made() -> None:
    async def add(message: Message, principal: Any) -> Message:
        return Message("assistant", (Text(message.text + "x"),))

    hooks = Hooks({"on_answer": [add, add, add]})
    assert (await hooks.answer(Message("assistant", (Text(""),)), None)).text == "xxx"  # type: ignore[arg-type]


@pytest.mark.parametrize("seam", ["on_request", "on_decision"])
async def test_hook_that_never_answers_does_not_hold_the_turn_for_ever(seam: str) -> None:
    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    async with stage(ScriptedBackend(), hooks={seam: [hangs]}, turn_timeout_s=0.05) as on:
        with pytest.raises(HookFailed, match="did not let the turn begin"):
            await asyncio.wait_for(answered(on), 5)
