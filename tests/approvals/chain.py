"""A chain of reservations that can be undone, and a charge that fails.

Knows the tools and what has happened to whom. What is expected is the test's.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.approvals.office import KEYS, QUICK, Office
from tests.replies import Reply, answer, call
from tests.serving import native_config, serving
from tests.upstream import Script, ScriptedUpstream, UpstreamRequest

PLUGIN = """\
import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from gateway.tools import ToolContext, ToolFatal, ToolRetry, tool

FOLDER = Path(__file__).parent.parent

def happened(name, said):
    with closing(sqlite3.connect(FOLDER / "world.db", isolation_level=None, timeout=20)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS done (name TEXT, said TEXT, key TEXT)")
        connection.execute("INSERT INTO done VALUES (?, ?, '')", (name, said))

def told(name):
    file = FOLDER / name
    return file.read_text() if file.exists() else ""

async def may_fail(name):
    while (FOLDER / f"hold-{name}").exists():
        await asyncio.sleep(0.02)
    left = told(f"fails-{name}")
    if not left:
        return None
    if left == "error result":
        return {"error": "it said no"}
    if int(left):
        (FOLDER / f"fails-{name}").write_text(str(int(left) - 1))
        raise RuntimeError(f"{name} is out of order")

@tool(writes=True)
async def cancel_car(booking_id: str) -> dict:
    \"\"\"Cancel a car.

    booking_id: of the car
    \"\"\"
    if (error := await may_fail("cancel_car")) is not None:
        return error
    happened("cancel_car", booking_id)
    return {"cancelled": booking_id}

@tool(writes=True)
async def cancel_hotel(booking_id: str, nights: int) -> dict:
    \"\"\"Cancel a hotel.

    booking_id: of the hotel
    nights: how many
    \"\"\"
    if (error := await may_fail("cancel_hotel")) is not None:
        return error
    happened("cancel_hotel", f"{booking_id} {nights}")
    return {"cancelled": booking_id}

@tool(writes=True, compensate=cancel_car)
async def reserve_car(days: int) -> dict:
    \"\"\"Reserve a car.

    days: how many
    \"\"\"
    happened("reserve_car", str(days))
    return {"booking_id": f"CAR-{days}"}

@tool(writes=True, compensate="cancel_hotel", result_fields=["city"])
async def reserve_hotel(nights: int) -> dict:
    \"\"\"Reserve a hotel.

    nights: how many
    \"\"\"
    happened("reserve_hotel", str(nights))
    return {"booking_id": f"HOTEL-{nights}", "city": "Ulm"}

@tool(writes=True)
async def charge(cents: int) -> dict:
    \"\"\"Charge.

    cents: how much
    \"\"\"
    while (FOLDER / "hold-charge").exists():
        await asyncio.sleep(0.02)
    if told("charge") == "fatal":
        raise ToolFatal("the bank has closed")
    if told("charge") == "retry":
        raise ToolRetry("in whole cents")
    raise ValueError("the card was declined")

@tool(writes=True, needs_confirmation=True)
async def sign(text: str) -> dict:
    \"\"\"Sign.

    text: what
    \"\"\"
    happened("sign", text)
    return {"signed": text}

@tool
async def look(what: str) -> dict:
    \"\"\"Look something up.

    what: the thing
    \"\"\"
    return {"seen": what}

def register(registry):
    registry.add(cancel_car, cancel_hotel, reserve_car, reserve_hotel, charge, sign, look)
"""
TOOLS = ["reserve_car", "reserve_hotel", "charge", "sign", "look"]
ROUTE: Mapping[str, Any] = {"model": "m", "match": "when", "when": {"models": ["auto"]}, "tools": TOOLS}
STEPS = (("look", {"what": "cars"}), ("reserve_car", {"days": 2}), ("reserve_hotel", {"nights": 3}))
LAST = ("charge", {"cents": 900})


def script(*steps: tuple[str, Any]) -> Script:
    """A model that asks for these calls, one a round, and then says that all is done."""

    def reply(request: UpstreamRequest) -> Reply:
        number = sum(message["role"] == "tool" for message in request.messages)
        if number >= len(steps):
            return answer("All done.")
        name, arguments = steps[number]
        return answer(calls=[call(f"call_{number}", name, json.dumps(arguments))])

    return reply


@asynccontextmanager
async def chain(folder: Path, then: Script, mode: str | None = "compensate", **more: Any) -> AsyncIterator[Office]:
    """A gateway with these tools."""
    async with ScriptedUpstream(then=then) as upstream:
        approvals = {"wait_s": 0, **more.pop("approvals", {})}
        settings = native_config(
            upstream.base_url, keys=KEYS, approvals=approvals, **({"on_failure": mode} if mode else {}), **more
        )
        async with serving(folder, settings, {"r": ROUTE}, {"chain": PLUGIN}, pace=QUICK) as served:
            yield Office(served, upstream)
