"""Sessions and memories in the database: who holds what, and what is left of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.memory_records import MemoryRow
from gateway.store.session_records import Change, SessionRow
from gateway.store.sql import SqlStore


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "sqlite":
        made = SqlStore(f"sqlite:///{tmp_path / 'x.db'}")
    else:
        made = SqlStore(await request.getfixturevalue("postgres_server").migrated())
    await made.open()
    yield made
    await made.close()


async def take(store: SqlStore, holder: str, *, now: float = 100.0, dead: bool = False) -> SessionRow | None:
    return await store.sessions.take("me", "s", holder, until=now + 10, now=now, alive=lambda _: not dead)


def change(upto: int, *messages: bytes, first: int = 0) -> Change:
    return Change(first=first, upto=upto, messages=messages, head=b"[]", size=9, last=upto, last_print="p")


async def test_a_session_is_held_by_one_until_it_lets_go_dies_or_its_time_is_over(store: SqlStore) -> None:
    first = await take(store, "h1")
    assert first is not None
    assert await take(store, "h2") is None
    assert await take(store, "h2", dead=True) is not None, "its holder has died"
    assert not await store.sessions.change(first.number, "h1", change(0, b"x"), now=101, ttl_s=5), "it lost it"
    assert await take(store, "h3", now=109) is None
    third = await take(store, "h3", now=111)
    assert third is not None, "the holder's time was over"
    await store.sessions.release(third.number, "h2")
    assert await take(store, "h4", now=112) is None, "only its holder lets it go"
    await store.sessions.release(third.number, "h3")
    assert await take(store, "h4", now=112) is not None


async def test_what_is_kept_of_it_is_what_the_last_turn_made_of_it(store: SqlStore) -> None:
    row = await take(store, "h")
    assert row is not None
    assert await store.sessions.get("me", "s", now=100) is None, "there is nothing in it yet"
    assert await store.sessions.change(row.number, "h", change(0, b"1", b"2", b"3"), now=100, ttl_s=50)
    assert await take(store, "h") is not None
    assert await store.sessions.change(row.number, "h", change(2, b"4", b"5", first=1), now=100, ttl_s=50)
    assert await store.sessions.messages(row.number) == [b"2", b"4", b"5"]
    found = await store.sessions.get("me", "s", now=120)
    assert found is not None
    assert (found.revision, found.first, found.end, found.expires_at, found.holder) == (2, 1, 4, 150, "")
    assert await store.sessions.get("me", "s", now=151) is None
    assert await store.sessions.prune(before=140) == 0
    assert await store.sessions.prune(before=151) == 1
    assert await store.sessions.messages(row.number) == []


async def test_of_memories_the_oldest_go(store: SqlStore) -> None:
    rows = [
        MemoryRow(id=f"m{at}", owner=owner, kind="fact", text="t", source="s", created_at=at, updated_at=at)
        for owner, at in [("me", 1), ("me", 2), ("you", 3), ("me", 4)]
    ]
    await store.memories.add(rows, most=2)
    assert [row.id for row in await store.memories.of("me")] == ["m4", "m2"]
    assert [row.id for row in await store.memories.of("you")] == ["m3"]
    assert [row.id for row in await store.memories.newest("me", limit=5, after="m4")] == ["m2"]
