"""The weekly-report drill on a whole gateway, beside plain truncation and a plain summary."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.chat.codecs.chat_completions import decode_message
from gateway.scribe.tokens import conversation_tokens
from tests.scribe.weekly import TURNS, has_all, result, script
from tests.serving import native_config, serving
from tests.upstream import Reply, ScriptedUpstream, UpstreamRequest, answer, call, strict_history

PATH = "/v1/chat/completions"
CONTEXT = 8192
# What is left for messages: the answer's reserve and a twentieth.
BUDGET = int((CONTEXT - 1024) * 0.95)
SYSTEM = {"role": "system", "content": "You write reports from what your tools return."}

Messages = list[dict[str, Any]]


def tokens(messages: Sequence[dict[str, Any]]) -> int:
    return conversation_tokens([decode_message(json.dumps(each).encode()) for each in messages])


def truncated(messages: Messages) -> Messages:
    """The newest messages that fit, pairs kept whole: what most programs do."""
    out: Messages = []
    for message in reversed(messages[1:]):
        if tokens([SYSTEM, message, *out]) > BUDGET:
            break
        out.insert(0, message)
    while out and out[0]["role"] != "user":
        out.pop(0)
    return [SYSTEM, *out]


def plainly_summed_up(messages: Messages) -> Messages:
    """The last two turns, and the beginning of every message before them as far as a quarter of the room goes."""
    at = [index for index, each in enumerate(messages) if each["role"] == "user"][-2:][0]
    told = [f"{each['role']}: {str(each.get('content'))[:80]}" for each in messages[1:at]]
    while tokens([{"role": "user", "content": "\n".join(told)}]) > BUDGET // 4:
        told.pop(0)
    return truncated([SYSTEM, {"role": "user", "content": "\n".join(told)}, *messages[at:]])


async def test_what_a_turn_needs_is_there_thirty_turns_later(tmp_path: Path, capsys: Any) -> None:
    right = {"gateway": 0, "truncation": 0, "summary": 0}
    sent = {"gateway": 0, "everything": 0}
    asked = 0
    async with (
        ScriptedUpstream(then=lambda r: strict_history(r) or answer("It is done.")) as up,
        serving(tmp_path, native_config(up.base_url, backend={"context_tokens": CONTEXT})) as on,
    ):
        for seed in range(4):
            talk, messages = script(seed), [SYSTEM]
            for turn in range(TURNS):
                messages.append({"role": "user", "content": talk.said[turn]})
                status, _, got = await on.post(PATH, {"model": "m", "messages": messages})
                assert status == 200, got
                got_it = up.requests[-1].messages
                asked += 1
                right["gateway"] += has_all(got_it, talk.holds[turn])
                right["truncation"] += has_all(truncated(messages), talk.holds[turn])
                right["summary"] += has_all(plainly_summed_up(messages), talk.holds[turn])
                sent["gateway"] += tokens(got_it)
                sent["everything"] += tokens(messages)
                assert tokens(got_it) <= BUDGET
                tail: Messages = [
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [call(f"c{turn}", "sales", json.dumps({"t": turn}))],
                    },
                    {"role": "tool", "tool_call_id": f"c{turn}", "content": result(seed, turn)},
                    {"role": "assistant", "content": f"In turn {turn} the figures were as the table shows. " * 4},
                ]
                messages += tail
    share = {name: round(count / asked, 4) for name, count in right.items()}
    cost = round(sent["gateway"] / sent["everything"], 4)
    with capsys.disabled():
        sys.stdout.write(f"\nturns with every fact: {share}, tokens sent: {cost} of everything\n")
    assert share["gateway"] >= 0.98
    assert cost <= 0.4
    assert share["gateway"] > max(share["truncation"], share["summary"])


PLUGIN = """
import json, random
from gateway.tools import tool

@tool()
async def sales(turn: int) -> str:
    \"\"\"Tell what was sold when a report is asked for.

    turn: which
    \"\"\"
    dice = random.Random(turn)
    return json.dumps([{"shop": f"S{dice.randrange(9999)}", "sold": dice.randrange(9999)} for _ in range(180)])

def register(registry):
    registry.add(sales)
"""


async def test_a_session_that_is_cut_by_messages_too_keeps_what_is_needed(tmp_path: Path, capsys: Any) -> None:
    right = asked = sent = everything = 0

    def model(request: UpstreamRequest) -> Reply:
        refused = strict_history(request)
        if refused is not None or request.messages[-1]["role"] == "tool":
            return refused or answer("It is done. " * 20)
        return answer(None, calls=[call(f"c{request.number}", "sales", json.dumps({"turn": request.number}))])

    config = native_config("", backend={"context_tokens": CONTEXT}, context={"sessions": {"store": True}})
    route = {"model": "m", "tools": ["sales"], "match": "when", "when": {"models": ["auto"]}}
    async with ScriptedUpstream(then=model) as up:
        config["backends"]["b1"]["base_url"] = up.base_url
        async with serving(tmp_path, config, {"r": route}, {"sales": PLUGIN}) as on:
            for seed in range(2):
                talk = script(seed)
                for turn in range(TURNS):
                    before = len(up.requests)
                    body = {"model": "auto", "messages": [{"role": "user", "content": talk.said[turn]}]}
                    status, _, got = await on.post(PATH, body, x_gateway_session=f"s{seed}")
                    assert status == 200, got
                    first, *_ = up.requests[before:]
                    asked += 1
                    right += has_all(first.messages, talk.holds[turn])
                    sent += tokens(first.messages)
                _, _, shown = await on.get(f"/v1/sessions/s{seed}")
                assert len(shown["messages"]) >= 4 * TURNS
                everything += sum(tokens(shown["messages"][: 4 * turn + 1]) for turn in range(TURNS))
    with capsys.disabled():
        sys.stdout.write(f"\nsession: turns with every fact: {right / asked:.4f}, tokens: {sent / everything:.4f}\n")
    assert right / asked >= 0.98
    assert sent / everything <= 0.4
