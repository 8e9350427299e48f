"""The kill drill of approvals: a gateway that is killed again and again while calls wait for a human, are made once approved,
and are undone where a later step failed.

Looked for: an effect that nobody has approved, one that happened twice, one that was approved and forgotten; an effect that was
to be undone and is forgotten, one that was undone twice, and one that is told as undone and was not.

Run by the suite for a while and by `make kill-drill` for longer.
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
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.program import Program, program, write_drill
from tests.replies import Reply, answer, call
from tests.serving import native_config
from tests.upstream import ScriptedUpstream, UpstreamRequest

PLUGIN = """\
import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from gateway.tools import tool

FILE = Path(__file__).parent.parent / "rows.db"

async def happen(name, slot):
    await asyncio.sleep(random.random() * 0.4)
    with closing(sqlite3.connect(FILE, isolation_level=None, timeout=20)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS made (tool TEXT, slot TEXT)")
        connection.execute("INSERT INTO made VALUES (?, ?)", (name, slot))
    await asyncio.sleep(random.random() * 0.4)
    return {"slot": slot}

@tool(writes=True, needs_confirmation=True)
async def sign(slot: str) -> dict:
    \"\"\"Sign, once a human has said so.

    slot: what
    \"\"\"
    return await happen("sign", slot)

@tool(writes=True)
async def cancel(slot: str) -> dict:
    \"\"\"Cancel a reservation.

    slot: which
    \"\"\"
    if random.random() < 0.2:
        raise RuntimeError("try again")
    return await happen("cancel", slot)

@tool(writes=True, compensate=cancel)
async def reserve(slot: str) -> dict:
    \"\"\"Reserve.

    slot: what
    \"\"\"
    return await happen("reserve", slot)

@tool(writes=True)
async def charge(slot: str) -> dict:
    \"\"\"Charge, which fails.

    slot: what for
    \"\"\"
    raise ValueError("declined")

def register(registry):
    registry.add(sign, cancel, reserve, charge)
"""
PLANS: Mapping[str, tuple[str, ...]] = {"sign": ("sign",), "chain": ("reserve", "reserve", "charge")}
ADMIN = "secret-admin-of-the-drill"
APP = "secret-client-of-the-drill"
PATIENCE_S = 300.0
SETTLE_S = 150.0


def reply(request: UpstreamRequest) -> Reply:
    """The model: the next call of what was ordered, and words in the end."""
    ordered = json.loads(next(m["content"] for m in request.messages if m["role"] == "user"))
    number = sum(m["role"] == "tool" for m in request.messages)
    plan = PLANS[ordered["kind"]]
    if number >= len(plan):
        return answer("That is all.")
    return answer(calls=[call("call_0", plan[number], json.dumps({"slot": f"{ordered['ticket']}.{number}"}))])


@dataclass
class Client:
    """Wants one answer, and asks until it has one."""

    ticket: str
    kind: str
    text: str | None = None
    refused: list[str] = field(default_factory=list)

    async def run(self, http: aiohttp.ClientSession, url: str, chance: random.Random) -> None:
        """Ask with a key of its own, so that it is one turn however often it asks."""
        content = json.dumps({"ticket": self.ticket, "kind": self.kind})
        body = {"model": "auto", "messages": [{"role": "user", "content": content}]}
        headers = {"authorization": f"Bearer {APP}", "Idempotency-Key": f"key-{self.ticket}"}
        until = time.monotonic() + PATIENCE_S
        while self.text is None and time.monotonic() < until:
            try:
                async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                    said = await response.json()
                    if response.status == 200:
                        self.text = said["choices"][0]["message"]["content"]
                        return
                    self.refused.append(f"{response.status}: {said}")
            except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError):
                pass
            await asyncio.sleep(0.1 + chance.random() * 0.3)


@dataclass(frozen=True)
class Report:
    """What the drill found; `faults` is empty where all is well."""

    turns: int
    kills: int
    signed: int
    rejected: int
    undone: int
    unknown: int
    faults: list[str]


def verdict(
    clients: list[Client],
    rows: list[tuple[str, str]],
    approvals: list[tuple[str, str, Any, Any, str]],
    effects: list[tuple[str, str, str, str]],
    owed: Mapping[str, tuple[str, str | None]],
) -> list[str]:
    """What is wrong.

    Args:
        clients: with their answers.
        rows: tool and slot of everything that happened.
        approvals: slot, status, whether it went well, when it was finished, and what was told of each.
        effects: id, tool, slot and status of each effect in the ledger.
        owed: status of the undoing of an effect, and the effect that undoes it, by the effect's id.
    """
    happened = Counter(rows)
    faults = [f"{name} of {slot} happened {count} times" for (name, slot), count in happened.items() if count > 1]
    by_slot: dict[str, list[tuple[str, str, Any, Any, str]]] = {}
    for each in approvals:
        by_slot.setdefault(each[0], []).append(each)
    for name, slot in happened:
        if name == "sign" and not any(each[1] == "approved" for each in by_slot.get(slot, ())):
            faults.append(f"{slot} was signed, and nobody has approved it: {by_slot.get(slot)}")
    for slot, status, ok, finished, content in approvals:
        if status == "pending":
            faults.append(f"{slot} was never decided")
        elif status == "approved" and finished is None:
            faults.append(f"{slot} was approved and forgotten")
        elif status == "approved" and bool(ok) != bool(happened["sign", slot]) and "not known" not in (content or ""):
            faults.append(f"{slot}: told {content}, happened {happened['sign', slot]} times")
    faults += _undone_faults(happened, effects, owed)
    faults += [f"{client.ticket}: no answer: {client.refused[-1:]}" for client in clients if client.text is None]
    return faults


def _undone_faults(
    happened: Mapping[tuple[str, str], int],
    effects: list[tuple[str, str, str, str]],
    owed: Mapping[str, tuple[str, str | None]],
) -> list[str]:
    """What is wrong with what was to be undone."""
    faults = []
    statuses = {effect: status for effect, _, _, status in effects}
    for effect, name, slot, status in effects:
        if name != "reserve" or status != "done":
            continue
        undoing, made = owed.get(effect, ("missing", None))
        if undoing in ("missing", "pending"):
            faults.append(f"{slot} was to be undone and is {undoing}")
        elif undoing == "done" and not happened["cancel", slot]:
            faults.append(f"{slot} is told as undone and was not")
        elif undoing == "failed" and happened["cancel", slot]:
            faults.append(f"{slot} was undone and is told as not: {statuses.get(made or '')}")
    return faults


async def drill(folder: Path, turns: int, *, seconds: float = 300, seed: int = 1, at_once: int = 8) -> Report:
    """Ask for that many turns, or for as many as there is time for, and kill the gateway meanwhile."""
    chance = random.Random(seed)
    clients: list[Client] = []
    kills = 0
    begun = time.monotonic()
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    timeout = aiohttp.ClientTimeout(total=60)
    async with ScriptedUpstream(then=reply) as upstream, aiohttp.ClientSession(timeout=timeout) as http:
        _write_files(folder, upstream.base_url)
        over, asked = asyncio.Event(), asyncio.Event()

        async def serve() -> None:
            nonlocal kills
            while True:
                with ExitStack() as stack:
                    made = program(folder, "--port", str(port))
                    running: Program = await asyncio.to_thread(stack.enter_context, made)
                    try:
                        late = asked.is_set() or time.monotonic() - begun > seconds
                        await asyncio.wait_for(over.wait(), None if late else 0.5 + chance.random() * 4)
                    except TimeoutError:
                        running.process.send_signal(signal.SIGKILL)
                        await asyncio.to_thread(running.process.wait, 20)
                        kills += 1
                        continue
                    await asyncio.to_thread(running.stop)
                    return

        async def ask() -> None:
            while len(clients) < turns and time.monotonic() - begun < seconds:
                client = Client(f"t{len(clients)}", chance.choice(tuple(PLANS)))
                clients.append(client)
                await client.run(http, url, chance)

        async def decide() -> None:
            """Approvers: two at once, now and then, and neither knows whether the other was heard."""
            headers = {"authorization": f"Bearer {ADMIN}"}
            while not over.is_set():
                await asyncio.sleep(0.1 + chance.random() * 0.2)
                try:
                    async with http.get(f"{url}/v1/approvals?status=pending&limit=100", headers=headers) as response:
                        waits = (await response.json()).get("data", [])
                    for each in waits:
                        path, body = ("reject", {"reason": "no"}) if chance.random() < 0.3 else ("approve", {})
                        async with http.post(
                            f"{url}/v1/approvals/{each['id']}/{path}", json=body, headers=headers
                        ) as response:
                            await response.read()
                except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError):
                    continue

        serving = asyncio.create_task(serve())
        deciding = [asyncio.create_task(decide()) for _ in range(2)]
        try:
            await asyncio.gather(*(ask() for _ in range(at_once)))
            asked.set()
            await _settled(folder)
        finally:
            over.set()
            await asyncio.gather(serving, *deciding)
    rows = _select(folder / "rows.db", "SELECT tool, slot FROM made")
    approvals = [
        (json.loads(arguments)["slot"], *rest)
        for arguments, *rest in _select(
            folder / "hermes.db",
            "SELECT arguments, status, ok, finished_at, content FROM approvals WHERE kind = 'call'",
        )
    ]
    effects = [
        (effect, name, json.loads(arguments)["slot"], status)
        for effect, name, arguments, status in _select(
            folder / "hermes.db", "SELECT id, tool, arguments, status FROM effects"
        )
    ]
    owed = {
        effect: (status, made)
        for effect, status, made in _select(
            folder / "hermes.db", "SELECT effect_id, status, made_id FROM compensations"
        )
    }
    return Report(
        turns=len(clients),
        kills=kills,
        signed=sum(name == "sign" for name, _ in rows),
        rejected=sum(status == "rejected" for _, status, *_ in approvals),
        undone=sum(status == "done" for status, _ in owed.values()),
        unknown=sum(status == "unknown" for _, _, _, status in effects),
        faults=verdict(clients, rows, approvals, effects, owed),
    )


async def _settled(folder: Path) -> None:
    """Wait until nothing is decided, made or undone any more; what never comes to an end is the verdict's to tell."""
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        open_ones = _select(
            folder / "hermes.db",
            "SELECT (SELECT count(*) FROM runs WHERE status IN ('queued', 'running', 'cancelling')"
            # What is to be looked at once an approval has expired, a day from now, is not waited for.
            f" AND due_at < {time.time() + 3600})"
            " + (SELECT count(*) FROM approvals WHERE status = 'pending')"
            " + (SELECT count(*) FROM approvals WHERE status = 'approved' AND finished_at IS NULL)"
            " + (SELECT count(*) FROM compensations WHERE status = 'pending')",
        )
        if open_ones[0][0] == 0:
            return
        await asyncio.sleep(0.3)


def _select(file: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(file, timeout=20)) as connection:
        return connection.execute(query).fetchall()


def _write_files(folder: Path, base_url: str) -> None:
    config = native_config(
        base_url,
        storage={"database": f"sqlite:///{folder / 'hermes.db'}"},
        tools={"plugins": ["plugins"], "max_rounds": 8},
        keys={"admin_key": ADMIN, "static": {"app": {"key": APP}}},
        approvals={"wait_s": 1.5},
        on_failure="compensate",
    )
    write_drill(folder, config, ["sign", "reserve", "charge"], PLUGIN)


def main() -> int:
    """Run it and say what was found; 1 where anything was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(drill(Path(folder), arguments.turns, seconds=arguments.seconds, seed=arguments.seed))
    print(
        f"seed {arguments.seed}: {found.turns} turns, {found.kills} kills, {found.signed} signed, {found.rejected} rejected, "
        f"{found.undone} undone, {found.unknown} unknown, {len(found.faults)} faults"
    )
    for fault in found.faults[:20]:
        print(fault, file=sys.stderr)
    return int(bool(found.faults))


if __name__ == "__main__":
    sys.exit(main())
