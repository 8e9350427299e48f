"""Nothing is kept longer than it is of use, and nothing goes before what needs it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.config.models import GatewayConfig
from gateway.store.memory import MemoryStore
from gateway.store.sql import SqlStore
from gateway.store.store import JournalEntry, Store
from gateway.store.turn_records import EffectRow, HiddenRow, TurnRow
from gateway.tools.settling import Settling
from gateway.turn.pruner import HIDDEN_S, Pruner
from tests.clocks import HandClock

NOW = 1_750_000_000.0
DAY_S = 86_400.0


def config(**sections: Any) -> GatewayConfig:
    return GatewayConfig.model_validate(
        {
            "backends": {"demo": {"provider": "demo"}},
            "models": {"m": {"backends": ["demo"]}},
            "router": {"default": "m"},
            **sections,
        }
    )


async def fill(store: Store, age_s: float) -> None:
    """One record of each kind, this old."""
    at, name = NOW - age_s, f"{age_s:.0f}"
    await store.turns.begin(
        TurnRow(
            turn_id=name, owner="o", key=name, body_hash="b", holder="h", held_until=at, created_at=at, updated_at=at
        )
    )
    entry = JournalEntry(
        turn_id=name, trace_id="t", owner="o", round=1, kind="answer", position=0, content={}, created_at=at
    )
    await store.journal.append([entry])
    for status in ("done", "unknown", "started"):
        row = EffectRow(
            id=f"{status}-{name}",
            effect_key=f"{status}-{name}",
            owner="o",
            turn_id=name,
            trace_id="t",
            round=1,
            position=0,
            tool="pay",
            spec_hash="s",
            arguments="{}",
            arguments_hash="a",
            holder="h",
            held_until=at,
            started_at=at,
        )
        await store.effects.start(row)
        if status != "started":
            await store.effects.finish(row.id, status=status, content="{}", note=None, now=at)
    await store.hidden.keep(
        [HiddenRow(owner="o", anchor=name, visible="v", digest="d", messages=b"[]", call_ids=(name,), created_at=at)]
    )


async def left(store: Store, age_s: float) -> set[str]:
    name = f"{age_s:.0f}"
    effects = {row.id.split("-")[0] for row in await store.effects.of_turn(name, None)}
    found = {
        "turn": await store.turns.get(name, None),
        "journal": await store.journal.of_turn(name, None),
        "hidden": await store.hidden.find("o", [name], []),
    }
    return effects | {kind for kind, there in found.items() if there}


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made: Store = MemoryStore() if request.param == "memory" else SqlStore(f"sqlite:///{tmp_path}/hermes.db")
    await made.open()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("sections", "age_s", "kept"),
    [
        ({}, 3600, {"turn", "journal", "hidden", "done", "unknown", "started"}),
        ({}, 2 * DAY_S, {"journal", "hidden", "done", "unknown", "started"}),
        ({}, HIDDEN_S + 1, {"journal", "done", "unknown", "started"}),
        ({}, 15 * DAY_S, {"unknown", "started"}),
        # A retry may join for ten minutes, a turn may last for five, whatever a key is kept.
        ({"idempotency": {"ttl_s": 1}}, 599, {"turn", "journal", "hidden", "done", "unknown", "started"}),
        ({"idempotency": {"ttl_s": 1}}, 700, {"journal", "hidden", "done", "unknown", "started"}),
        # Taken up again, a turn needs its steps: without them its effects would be made anew.
        (
            {"idempotency": {"ttl_s": 20 * DAY_S}, "observe": {"traces": {"keep_days": 1}}},
            19 * DAY_S,
            {"turn", "journal", "done", "unknown", "started"},
        ),
        ({"observe": {"traces": {"keep_days": 1}}}, 2 * DAY_S, {"hidden", "unknown", "started"}),
    ],
)
async def test_each_kind_is_kept_for_its_time(store: Store, sections: Any, age_s: float, kept: set[str]) -> None:
    clock = HandClock(NOW)
    await fill(store, age_s)
    await Pruner(store, Settling(store.effects, clock), config(**sections), clock).prune()
    assert await left(store, age_s) == kept
    # What was begun and never ended waits for an operator from now on.
    row = await store.effects.get(f"started-{age_s:.0f}", None)
    assert row is not None
    assert (row.status, row.finished_at) == ("unknown", NOW)


async def test_it_prunes_at_its_start_and_by_the_newest_settings(store: Store) -> None:
    clock = HandClock(NOW)
    await fill(store, 3 * DAY_S)
    pruner = Pruner(store, Settling(store.effects, clock), config(), clock)
    pruner.configure(config(observe={"traces": {"keep_days": 2}}))
    pruner.start()
    async with asyncio.timeout(10):
        while "journal" in await left(store, 3 * DAY_S):
            await asyncio.sleep(0.01)
    await pruner.close()
