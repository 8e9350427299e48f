"""The mixed-turn drill: random conversations in which a model calls the client's tools and the gateway's, together, in
parallel, over several rounds; clients that branch and regenerate, and that write what they were given in forms of their own;
users behind one key whose texts are equal.

Two gateways share one database and take turns, as replicas do and as one does after a restart. The upstream refuses every
history that is not a continuation, byte for byte, of what it was sent before and what it answered. Each tool result
carries a token of its own; an answer that shows a token of somebody else's turn is a foreign result.

Run by the suite for a while and by `make mixed-drill` with 500 conversations.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.ids import new_call_id
from tests.frames import DONE, Frame, d, f, tc
from tests.replies import Reply, answer, call, error, stream
from tests.serving import Served, native_config, serving
from tests.strict_history import history_fault
from tests.upstream import ScriptedUpstream, UpstreamRequest

PLUGIN = """\
import itertools
from gateway.tools import ToolContext, tool

numbers = itertools.count()

@tool
async def lookup(what: str, ctx: ToolContext) -> str:
    \"\"\"Look something up.

    what: the thing to look up
    \"\"\"
    return f"<{ctx.trace_id}.{next(numbers)}>"

@tool
async def measure(n: int, ctx: ToolContext) -> dict:
    \"\"\"Measure something.

    n: which one
    \"\"\"
    return {"at": n, "token": f"<{ctx.trace_id}.{next(numbers)}>"}

def register(registry):
    registry.add(lookup)
    registry.add(measure)
"""

CLIENT_TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "The client's.", "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("open_door", "ask_user")
]
# How clients write what they were given when they send it back. `functions`: in the older form, one call and no ids.
HABITS = ("plain", "respelled", "wordless", "parts", "extras", "shuffled", "functions")


class _Sent(msgspec.Struct):
    messages: list[msgspec.Raw]
    tools: msgspec.Raw = msgspec.Raw(b"")


_sent = msgspec.json.Decoder(_Sent).decode


def _prefixes(request: UpstreamRequest) -> list[bytes]:
    """A name for each prefix of what was sent, tools and all, byte by byte; the first is that of no message."""
    sent = _sent(request.raw)
    link = hashlib.sha256(bytes(sent.tools)).digest()
    links = [link]
    for raw in sent.messages:
        link = hashlib.sha256(link + bytes(raw)).digest()
        links.append(link)
    return links


class StrictUpstream:
    """Answers by a function of the history; refuses histories that are no continuation of what it has seen.

    Args:
        seed: of the answers.

    Attributes:
        refused: what was wrong, in order.
        mixed: how many answers called tools of both sides.
    """

    def __init__(self, seed: int) -> None:
        self.refused: list[str] = []
        self.mixed = 0
        self._seed = seed
        # What was answered to a list of messages, by the bytes of that list.
        self._answered: dict[bytes, dict[str, Any]] = {}

    def answer(self, request: UpstreamRequest) -> Reply:
        messages = request.messages
        wrong = history_fault(request.json)
        prefixes = _prefixes(request)
        fault = wrong[1] if wrong else self._no_continuation(messages, prefixes)
        if fault is not None:
            self.refused.append(fault)
            return error(400, fault)
        names = {tool["function"]["name"] for tool in request.json.get("tools", ())}
        said = self._said(messages, prefixes[-1], names)
        self._answered[prefixes[-1]] = said
        calls = [
            call(each["id"], each["function"]["name"], each["function"]["arguments"])
            for each in said.get("tool_calls", ())
        ]
        if not request.json.get("stream"):
            return answer(said["content"], calls=calls)
        frames: list[Frame] = [d({"role": "assistant", "content": ""})]
        frames += [d({"content": piece}) for piece in (said["content"] or "").split(" ") if piece]
        for index, each in enumerate(said.get("tool_calls", ())):
            arguments = each["function"]["arguments"]
            middle = len(arguments) // 2
            frames.append(tc(index, id=each["id"], name=each["function"]["name"], arguments=arguments[:middle]))
            frames.append(tc(index, arguments=arguments[middle:]))
        return stream(*frames, f("tool_calls" if calls else "stop"), DONE)

    def _no_continuation(self, messages: list[dict[str, Any]], prefixes: Sequence[bytes]) -> str | None:
        """Each assistant message has to stand behind what was sent before it was given."""
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            given = self._answered.get(prefixes[index])
            if given is None:
                return f"messages[{index}] stands behind something that was never sent: {messages[:index]}"
            if not _is_said(given, message):
                return f"messages[{index}] is not what was answered: {message} instead of {given}"
        return None

    def _said(self, messages: list[dict[str, Any]], prefix: bytes, names: set[str]) -> dict[str, Any]:
        digest = hashlib.sha256(str(self._seed).encode() + prefix).digest()
        chance = random.Random(digest)
        behind = next((n for n, m in enumerate(reversed(messages)) if m["role"] == "user"), 0)
        tokens = sorted({word for m in messages if m["role"] == "tool" for word in _tokens(m["content"])})
        text = f"Seen {' '.join(f'<{token}>' for token in tokens)} {digest.hex()[:12]}"
        if behind > 6 or chance.random() < 0.35:
            return {"content": text}
        calls: list[tuple[str, str, str]] = []
        for _ in range(chance.choice((1, 1, 2, 3))):
            name = chance.choice(sorted(names))
            theirs = {"wide": 1.0, "door": "é", "at": [1, 2e0]}
            arguments = {"lookup": {"what": "x"}, "measure": {"n": chance.randrange(9)}}.get(name, theirs)
            # Few ids, used again and again, as weak servers do. Who drops words has nothing but ids to be known by: two
            # replicas that are given the same one at the same moment both take it for new.
            call_id = new_call_id() if "wordless" in _text(messages[-1 - behind]) else f"call_{len(calls)}"
            calls.append((name, json.dumps(arguments), call_id))
        ours = {name in ("lookup", "measure") for name, _, _ in calls}
        self.mixed += len(ours) == 2
        said = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments, call_id in calls
        ]
        return {"content": chance.choice((None, "Let me see. ")), "tool_calls": said}


def _is_said(given: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Whether a message is the one that was given, but for what its client changed.

    That is the names of calls, the words beside them, and in the older form all of the client's calls but one. What the
    gateway has to put back stands as it was.
    """
    before, now = _calls(given), _calls(message)
    ours = [each for each in before if each[0] in ("lookup", "measure")]
    others = iter(before)
    fewer = all(each in others for each in now) and [each for each in now if each in ours] == ours
    text = _text(message)
    return (fewer and bool(now) == bool(before)) and (text == _text(given) or (not text and bool(now) and not ours))


def _calls(message: Mapping[str, Any]) -> list[Any]:
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or ()]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return ("".join(part["text"] for part in content) if isinstance(content, list) else content).replace(" ", "")


def _tokens(text: str) -> list[str]:
    return [piece.split(">")[0] for piece in text.split("<")[1:]]


@dataclass
class Person:
    """One client: its visible history, and the traces of its own requests.

    Attributes:
        foreign: tokens of somebody else's that it was shown.
    """

    http: aiohttp.ClientSession
    served: tuple[Served, Served]
    chance: random.Random
    opening: str
    user: str
    habit: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    traces: set[str] = field(default_factory=set)
    foreign: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    async def talk(self, turns: int) -> None:
        """Say something, `turns` times; sometimes go back and say it otherwise, or ask for the answer again."""
        for number in range(turns):
            # Who reads an answer takes longer than the rounds behind it need to be written.
            for each in self.served:
                await each.gateway.turns.continuity.flush()
            text = self.opening if number == 0 else f"And {self.opening} {number}?"
            self.messages.append({"role": "user", "content": text})
            await self._until_answered()
            for each in self.served:
                await each.gateway.turns.continuity.flush()
            moved = self.chance.random()
            users = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
            if moved < 0.2:
                place = self.chance.choice(users)
                self.messages = [
                    *self.messages[:place],
                    {"role": "user", "content": f"Rather {number}, {self.opening}"},
                ]
                self.counts["branches"] += 1
                await self._until_answered()
            elif moved < 0.35 and self.habit != "functions":
                # Without ids, an equal message with another past behind it would be two things.
                self.messages = self.messages[: users[-1] + 1]
                self.counts["regenerated"] += 1
                await self._until_answered()

    async def _until_answered(self) -> None:
        for _ in range(8):
            message = await self._ask()
            if message is None:
                return
            content = f"done by {self.user}"
            if call := message.get("function_call"):
                self.messages += [message, {"role": "function", "name": call["name"], "content": content}]
                continue
            calls = list(message.get("tool_calls") or ())
            self.messages.append(_rewritten(message, self.habit))
            if self.habit == "shuffled":
                self.chance.shuffle(calls)
            for each in calls:
                self.messages.append({"role": "tool", "tool_call_id": each["id"], "content": content})
            if not calls:
                return

    async def _ask(self) -> dict[str, Any] | None:
        request: dict[str, Any] = {"model": "auto", "messages": self.messages}
        if self.habit == "functions":
            request["functions"] = [tool["function"] for tool in CLIENT_TOOLS]
        else:
            request["tools"] = CLIENT_TOOLS
        streamed = self.chance.random() < 0.5
        url = f"{self.chance.choice(self.served).url}/v1/chat/completions"
        self.counts["requests"] += 1
        async with self.http.post(url, json={**request, "stream": streamed}) as response:
            if response.status != 200:
                self.failures.append(f"{response.status}: {(await response.text())[:400]}")
                return None
            self.traces.add(response.headers["x-gateway-trace"])
            message = (
                _assembled(await response.text()) if streamed else (await response.json())["choices"][0]["message"]
            )
        self.foreign += [
            token for token in _tokens(message.get("content") or "") if token.split(".")[0] not in self.traces
        ]
        older = message.get("function_call") or {"name": ""}
        shown = {older["name"], *(each["function"]["name"] for each in message.get("tool_calls") or ())}
        if shown & {"lookup", "measure"}:
            self.failures.append("a call of ours was shown")
        kept = {"role": "assistant", "content": message.get("content")}
        for name in ("tool_calls", "function_call"):
            if message.get(name):
                kept[name] = message[name]
        return kept


def _rewritten(message: dict[str, Any], habit: str) -> dict[str, Any]:
    """A message as a client with this habit sends it back, now and ever after."""
    calls = message.get("tool_calls") or []
    match habit:
        case "respelled" if calls:
            # As JavaScript does: no spaces, whole numbers without their point, no escapes.
            spelled = [
                {
                    **each,
                    "function": {
                        **each["function"],
                        "arguments": json.dumps(
                            _whole(json.loads(each["function"]["arguments"])),
                            separators=(",", ":"),
                            ensure_ascii=False,
                            sort_keys=True,
                        ),
                    },
                }
                for each in calls
            ]
            return {**message, "tool_calls": spelled}
        case "wordless" if calls:
            return {**message, "content": None}
        case "parts" if message["content"]:
            middle = len(message["content"]) // 2
            texts = (message["content"][:middle], message["content"][middle:])
            return {**message, "content": [{"type": "text", "text": text} for text in texts]}
        case "extras":
            return {**message, "refusal": None, "annotations": [], "audio": None, "function_call": None}
    return message


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) else value


def _assembled(text: str) -> dict[str, Any]:
    content: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    older = {"name": "", "arguments": ""}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        frame = json.loads(line[6:])
        if "error" in frame:
            raise AssertionError(frame)
        for choice in frame["choices"]:
            delta = choice["delta"]
            content.append(delta.get("content") or "")
            if piece := delta.get("function_call"):
                older["name"] += piece.get("name") or ""
                older["arguments"] += piece.get("arguments") or ""
            for piece in delta.get("tool_calls") or ():
                known = calls.setdefault(
                    piece["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                known["id"] += piece.get("id") or ""
                known["function"]["name"] += piece["function"].get("name") or ""
                known["function"]["arguments"] += piece["function"].get("arguments") or ""
    assert sorted(calls) == list(range(len(calls))), "indexes run from 0"
    message: dict[str, Any] = {"content": "".join(content) or None}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    if older["name"]:
        message["function_call"] = older
    return message


@dataclass(frozen=True)
class Report:
    """What the drill found."""

    conversations: int
    requests: int
    branches: int
    regenerated: int
    mixed: int
    refused: list[str]
    failures: list[str]
    foreign: list[str]


async def drill(folder: Path, conversations: int, *, seed: int = 1, at_once: int = 12) -> Report:
    """Hold that many conversations."""
    strict = StrictUpstream(seed)
    routes = {"all": {"model": "m", "match": "when", "when": {"has_tools": True}, "tools": ["lookup", "measure"]}}
    database = {"database": f"sqlite:///{folder / 'shared.db'}"}
    for name in ("a", "b"):
        (folder / name).mkdir()
    async with ScriptedUpstream(then=strict.answer) as upstream:
        config = native_config(upstream.base_url, storage=database, tools={"plugins": ["plugins"], "max_rounds": 9})
        async with (
            serving(folder / "a", config, routes, {"drill": PLUGIN}) as a,
            serving(folder / "b", config, routes, {"drill": PLUGIN}) as b,
            aiohttp.ClientSession() as http,
        ):
            chance = random.Random(seed)
            people: list[Person] = []
            for number in range(conversations):
                habit = HABITS[number // 2 % len(HABITS)]
                # Every second one says what the one before says; but without ids nobody can tell the two apart.
                shared = "wordless" if habit == "wordless" else "topic"
                topic = f"function {number}" if habit == "functions" else f"{shared} {number // 2}"
                people.append(Person(http, (a, b), random.Random(chance.random()), topic, f"user {number}", habit))
            slots = asyncio.Semaphore(at_once)

            async def one(person: Person) -> None:
                async with slots:
                    await person.talk(person.chance.choice((2, 3, 4)))

            async with asyncio.timeout(120 + 3 * conversations):
                await asyncio.gather(*map(one, people))
    counts = sum((person.counts for person in people), Counter[str]())
    return Report(
        conversations,
        counts["requests"],
        counts["branches"],
        counts["regenerated"],
        strict.mixed,
        strict.refused,
        [failure for person in people for failure in person.failures],
        [token for person in people for token in person.foreign],
    )


def main() -> int:
    """Run it and say what was found; 1 where anything was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(drill(Path(folder), arguments.conversations, seed=arguments.seed))
    print(
        f"seed {arguments.seed}: {found.conversations} conversations, {found.requests} requests, {found.branches} branches, "
        f"{found.regenerated} regenerated, {found.mixed} answers that called both sides, {len(found.refused)} refused, "
        f"{len(found.failures)} failed, {len(found.foreign)} foreign results"
    )
    faults = [*found.refused, *found.failures, *found.foreign]
    for fault in faults[:20]:
        print(fault[:2000], file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
