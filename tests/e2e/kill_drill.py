"""The kill drill: a gateway that is killed again and again while its writing tools run, and clients that ask again.

Writing tools insert rows into a database of their own. The model names other figures each time it is asked, so that asking it
twice shows. Looked for: an effect that happened twice, one that happened and was told as failed, one that was told as done
and did not happen, one that nobody can account for, and a client that never gets its answer.

Run by the suite for a while and by `make kill-drill` for 300 turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.program import Program, program, write_drill
from tests.frames import DONE, d, f, tc
from tests.replies import Reply, answer, call, stream
from tests.serving import native_config
from tests.upstream import ScriptedUpstream, UpstreamRequest

PLUGIN = """\
import asyncio
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from gateway.tools import ToolContext, tool

FILE = Path(__file__).parent.parent / "rows.db"

def rows():
    connection = sqlite3.connect(FILE, isolation_level=None, timeout=20)
    connection.execute("CREATE TABLE IF NOT EXISTS made (tool TEXT, slot TEXT, amount INTEGER, key TEXT)")
    return closing(connection)

def insert(name, slot, amount, key):
    with rows() as connection:
        connection.execute("INSERT INTO made VALUES (?, ?, ?, ?)", (name, slot, amount, key))
    return {"slot": slot, "amount": amount}

def found(name, column, value):
    with rows() as connection:
        made = connection.execute(f"SELECT slot, amount FROM made WHERE tool = ? AND {column} = ?", (name, value))
        row = made.fetchone()
    return None if row is None else {"slot": row[0], "amount": row[1]}

async def slowly():
    await asyncio.sleep(random.random() * 0.4)

@tool
async def look(slot: str, amount: int) -> dict:
    \"\"\"Look something up.

    slot: what for
    amount: any number
    \"\"\"
    await slowly()
    return {"slot": slot, "amount": amount}

@tool(writes=True)
async def pay(slot: str, amount: int, ctx: ToolContext) -> dict:
    \"\"\"Pay. Nobody can find out later whether it was paid.

    slot: what for
    amount: in cents
    \"\"\"
    await slowly()
    made = insert("pay", slot, amount, ctx.idempotency_key)
    await slowly()
    return made

@tool(writes=True, probe=lambda ctx: found("book", "key", ctx.idempotency_key))
async def book(slot: str, amount: int, ctx: ToolContext) -> dict:
    \"\"\"Book. The books tell later whether it was booked.

    slot: what for
    amount: in cents
    \"\"\"
    await slowly()
    made = insert("book", slot, amount, ctx.idempotency_key)
    await slowly()
    return made

@tool(writes=True, idempotency_key=["slot"], probe=lambda slot: found("ship", "slot", slot))
def ship(slot: str, amount: int) -> dict:
    \"\"\"Ship, once for each slot. Blocks its thread.

    slot: what for
    amount: how many
    \"\"\"
    time.sleep(random.random() * 0.3)
    made = insert("ship", slot, amount, slot)
    time.sleep(random.random() * 0.3)
    return made

@tool(writes=True, idempotency_key=["slot"])
async def send(slot: str, amount: int, ctx: ToolContext) -> dict:
    \"\"\"Send, once for each slot. Nobody can find out later whether it was sent.

    slot: what for
    amount: how many
    \"\"\"
    await slowly()
    made = insert("send", slot, amount, ctx.idempotency_key)
    await slowly()
    return made

def register(registry):
    registry.add(look, pay, book, ship, send)
"""
WRITING = ("pay", "book", "ship", "send")
# Rounds of one turn: what is called in each of its answers.
PLANS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("pay",),),
    (("book",),),
    (("ship",),),
    (("pay", "pay"),),
    (("look",), ("book", "look")),
    (("look",), ("look",), ("send",)),
    (("pay",), ("look",), ("book",)),
    (("book", "pay", "ship"),),
    (("look", "send"), ("ship", "look")),
    (("book",), ("book",), ("book", "book")),
)
# How long one client asks for one answer before it counts as lost: on a busy machine a start takes longer than a life.
PATIENCE_S = 400.0


class Model:
    """Calls what the user's message says, round by round, and tells the results in the end.

    Attributes:
        asked: how often it was asked for an answer with calls, by ticket and round.
    """

    def __init__(self, seed: int) -> None:
        self.asked: Counter[tuple[str, int]] = Counter()
        self._figures = 0
        self._chance = random.Random(seed)

    def answer(self, request: UpstreamRequest) -> Reply:
        messages = request.messages
        ordered = json.loads(next(m["content"] for m in messages if m["role"] == "user"))
        plan, ticket = ordered["plan"], ordered["ticket"]
        through = [m for m in messages if m["role"] == "assistant"]
        streamed = bool(request.json.get("stream"))
        pause = self._chance.random() * 0.1
        if len(through) >= len(plan):
            text = json.dumps(_results(messages))
            if streamed:
                half = len(text) // 2
                return stream(d({"content": text[:half]}), d({"content": text[half:]}), f("stop"), DONE).delayed(pause)
            return answer(text).delayed(pause)
        number = len(through)
        self.asked[ticket, number] += 1
        calls = []
        for position, name in enumerate(plan[number]):
            self._figures += 1
            arguments = json.dumps({"slot": f"{ticket}.{number}.{position}", "amount": self._figures})
            # One id for all, as weak servers do.
            calls.append(call("call_0", name, arguments))
        if not streamed:
            return answer(calls=calls).delayed(pause)
        frames = [
            tc(index, id=each["id"], name=each["function"]["name"], arguments=each["function"]["arguments"])
            for index, each in enumerate(calls)
        ]
        return stream(*frames, f("tool_calls"), DONE).delayed(pause)


def _results(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What the model was told of each call, by the call's slot: results stand behind their calls, in their order."""
    found: dict[str, Any] = {}
    for place, message in enumerate(messages):
        for offset, each in enumerate(message.get("tool_calls") or (), start=1):
            result = messages[place + offset]
            if (result["role"], result["tool_call_id"]) != ("tool", each["id"]):
                raise AssertionError(f"the result of {each} is not where it belongs: {messages}")
            found[json.loads(each["function"]["arguments"])["slot"]] = json.loads(result["content"])
    return found


@dataclass
class Client:
    """Wants one answer, and asks until it has one.

    Attributes:
        results: what the answer said, by slot.
        attempts: how often it asked.
    """

    ticket: str
    plan: tuple[tuple[str, ...], ...]
    keyed: bool
    streamed: bool
    impatient: bool
    results: dict[str, Any] | None = None
    attempts: int = 0
    refused: list[str] = field(default_factory=list)

    async def run(self, http: aiohttp.ClientSession, url: str, chance: random.Random) -> None:
        """Ask until there is an answer, as the OpenAI SDK does or with a key."""
        body = {
            "model": "auto",
            "stream": self.streamed,
            "messages": [{"role": "user", "content": json.dumps({"ticket": self.ticket, "plan": self.plan})}],
        }
        until = time.monotonic() + PATIENCE_S
        while self.results is None and time.monotonic() < until:
            headers = {"x-stainless-retry-count": str(self.attempts)}
            if self.keyed:
                headers["Idempotency-Key"] = f"key-{self.ticket}"
            # Who gives up without a key may have been answered in that moment: that nobody can tell apart.
            hurried = self.impatient and self.keyed and self.attempts < 3
            timeout = aiohttp.ClientTimeout(total=0.3 + chance.random() if hurried else 30)
            self.attempts += 1
            try:
                async with http.post(url, json=body, headers=headers, timeout=timeout) as response:
                    text = await response.text()
                    if response.status == 200:
                        said = _said(text) if self.streamed else json.loads(text)["choices"][0]["message"]["content"]
                        if said is not None:
                            self.results = json.loads(said)
                            return
                    else:
                        self.refused.append(f"{response.status}: {text[:300]}")
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                pass
            await asyncio.sleep(0.1 + chance.random() * 0.3)


def _said(text: str) -> str | None:
    """The text of a stream; None where it did not come to its end."""
    if not text.endswith("data: [DONE]\n\n"):
        return None
    frames = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if any("error" in frame for frame in frames):
        return None
    return "".join(c["delta"].get("content") or "" for frame in frames for c in frame["choices"])


@dataclass(frozen=True)
class Report:
    """What the drill found; `faults` is empty where all is well."""

    turns: int
    attempts: int
    kills: int
    effects: int
    unknown: int
    rows: int
    faults: list[str]


def verdict(
    clients: list[Client], rows: list[tuple[str, str, int]], effects: Mapping[str, tuple[str, str]]
) -> list[str]:
    """What is wrong with the rows beside the answers and the ledger.

    Args:
        clients: with what they were told.
        rows: tool, slot and amount of everything that happened.
        effects: by slot, what the ledger says: tool and status.
    """
    faults = []
    made: dict[str, list[tuple[str, int]]] = {}
    for name, slot, amount in rows:
        made.setdefault(slot, []).append((name, amount))
    wanted = {
        f"{client.ticket}.{number}.{position}": (client, name)
        for client in clients
        for number, names in enumerate(client.plan)
        for position, name in enumerate(names)
        if name in WRITING
    }
    faults += [f"{slot}: nobody wanted it: {made[slot]}" for slot in made if slot not in wanted]
    for slot, (client, name) in wanted.items():
        status = effects.get(slot, ("-", "missing"))[1]
        faults += [f"{slot}: {fault}" for fault in _faults(slot, name, client.results, made.get(slot, []), status)]
    for client in clients:
        if client.results is None:
            faults.append(f"{client.ticket}: no answer after {client.attempts} attempts; {client.refused[-1:]}")
        # Of a store that is busy or a process that stops the client hears in time; nothing else may go wrong.
        faults += [f"{client.ticket}: refused: {text}" for text in client.refused if not text.startswith("503")]
    return faults


def _faults(
    slot: str, name: str, results: Mapping[str, Any] | None, here: list[tuple[str, int]], status: str
) -> Iterator[str]:
    """What is wrong with one effect: what its client was told, what happened, what the ledger says."""
    if len(here) > 1:
        yield f"{name} happened {len(here)} times: {here}, the ledger says {status}"
    if results is None:
        return
    told = results.get(slot)
    if told is None:
        yield f"{name} is not in the answer"
    elif told["ok"]:
        if here != [(name, told["result"]["amount"])]:
            yield f"told {told}, happened {here}"
        if status != "done":
            yield f"told as done, the ledger says {status}"
    elif "not known" not in told["error"] or status != "unknown":
        yield f"told {told}, happened {here}, the ledger says {status}"


async def drill(folder: Path, turns: int, *, seconds: float = 600, seed: int = 1, at_once: int = 16) -> Report:
    """Ask for that many turns, or for as many as there is time for, and kill the gateway meanwhile."""
    chance = random.Random(seed)
    model = Model(seed)
    clients: list[Client] = []
    kills = 0
    begun = time.monotonic()
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with ScriptedUpstream(then=model.answer) as upstream, aiohttp.ClientSession() as http:
        _write_files(folder, upstream.base_url)
        over = asyncio.Event()

        async def serve() -> None:
            nonlocal kills
            while True:
                with ExitStack() as stack:
                    made = program(folder, "--port", str(port))
                    running: Program = await asyncio.to_thread(stack.enter_context, made)
                    try:
                        # Once no more is asked for, the last ones get their answers.
                        late = time.monotonic() - begun > seconds
                        await asyncio.wait_for(over.wait(), None if late else 0.3 + chance.random() * 4)
                    except TimeoutError:
                        running.process.send_signal(signal.SIGKILL)
                        await asyncio.to_thread(running.process.wait, 20)
                        kills += 1
                        continue
                    await asyncio.to_thread(running.stop)
                    return

        async def ask() -> None:
            while len(clients) < turns and time.monotonic() - begun < seconds:
                number = len(clients)
                plan = chance.choice(PLANS)
                client = Client(f"t{number}", plan, number % 2 == 0, chance.random() < 0.5, chance.random() < 0.3)
                clients.append(client)
                await client.run(http, url, chance)

        serving = asyncio.create_task(serve())
        asking = asyncio.gather(*(ask() for _ in range(at_once)))
        try:
            await asking
        finally:
            over.set()
            await serving
    rows = _select(folder / "rows.db", "SELECT tool, slot, amount FROM made")
    ledger = _select(folder / "hermes.db", "SELECT tool, status, arguments FROM effects")
    effects = {json.loads(arguments)["slot"]: (name, status) for name, status, arguments in ledger}
    faults = verdict(clients, rows, effects)
    unknown = sum(status == "unknown" for _, status in effects.values())
    attempts = sum(client.attempts for client in clients)
    return Report(len(clients), attempts, kills, len(ledger), unknown, len(rows), faults)


def _select(file: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def _write_files(folder: Path, base_url: str) -> None:
    config = native_config(
        base_url,
        storage={"database": f"sqlite:///{folder / 'hermes.db'}"},
        tools={"plugins": ["plugins"], "max_rounds": 8},
    )
    write_drill(folder, config, ["look", *WRITING], PLUGIN)


def main() -> int:
    """Run it and say what was found; 1 where anything was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(drill(Path(folder), arguments.turns, seconds=arguments.seconds, seed=arguments.seed))
    print(
        f"seed {arguments.seed}: {found.turns} turns, {found.attempts} attempts, {found.kills} kills, "
        f"{found.effects} effects, {found.unknown} unknown, {found.rows} rows, {len(found.faults)} faults"
    )
    for fault in found.faults[:20]:
        print(fault, file=sys.stderr)
    return int(bool(found.faults))


if __name__ == "__main__":
    sys.exit(main())
