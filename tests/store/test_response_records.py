"""What every store promises of responses and conversations, proved for the database and for its twin in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import StoreUnavailable
from gateway.store.memory import MemoryStore
from gateway.store.response_records import ConversationItem, ConversationRow, EventBatch, ResponseRow
from gateway.store.sql import SqlStore
from gateway.store.store import Store


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SqlStore(f"sqlite:///{tmp_path}/hermes.db")
    await made.open()
    yield made
    await made.close()


def row(number: int, **more: Any) -> ResponseRow:
    values: dict[str, Any] = {
        "id": f"resp_{number}",
        "owner": "app",
        "status": "in_progress",
        "holder": "me",
        "held_until": 10.0,
        "created_at": 1.0,
        "updated_at": 1.0,
    }
    return ResponseRow(**{**values, **more})


def item(name: str) -> ConversationItem:
    return ConversationItem(name, b'{"n":"%s"}' % name.encode())


ONE, TWO = EventBatch(0, 3, b"one"), EventBatch(4, 5, b"two")


async def test_response_is_found_by_its_owner(store: Store) -> None:
    await store.responses.add(row(1, input=b"[1]", body=b"{}", streamed=True, previous_id="resp_0"), [ONE])
    assert await store.responses.get("resp_1", "app") == row(
        1, input=b"[1]", body=b"{}", streamed=True, previous_id="resp_0"
    )
    assert await store.responses.get("resp_1", "other") is None
    assert await store.responses.get("resp_1", None) is not None
    with pytest.raises(StoreUnavailable):
        await store.responses.add(row(1))


async def test_only_who_holds_a_response_writes_it(store: Store) -> None:
    await store.responses.add(row(1), [ONE])
    assert not await store.responses.append("resp_1", "other", [TWO], until=20.0)
    assert await store.responses.append("resp_1", "me", [TWO], until=20.0)
    assert not await store.responses.end("resp_1", "other", status="completed", body=b"{}", now=5.0)
    assert await store.responses.take("resp_1", "other", until=30.0, now=6.0)
    assert not await store.responses.append("resp_1", "me", [], until=40.0)
    assert await store.responses.end("resp_1", "other", status="completed", body=b'{"a":1}', now=7.0)
    assert not await store.responses.end("resp_1", "other", status="failed", body=b"{}", now=8.0)
    assert not await store.responses.take("resp_1", "me", until=50.0, now=9.0)
    found = await store.responses.get("resp_1", "app")
    assert found is not None
    assert (found.status, found.body, found.held_until, found.over) == ("completed", b'{"a":1}', 30.0, True)


async def test_events_are_read_behind_a_number(store: Store) -> None:
    await store.responses.add(row(1), [ONE, TWO])
    assert list(await store.responses.events("resp_1", after=-1, limit=10)) == [ONE, TWO]
    assert list(await store.responses.events("resp_1", after=2, limit=1)) == [ONE]
    assert list(await store.responses.events("resp_1", after=3, limit=10)) == [TWO]
    assert list(await store.responses.events("resp_1", after=5, limit=10)) == []
    assert await store.responses.delete("resp_1", "app")
    assert list(await store.responses.events("resp_1", after=-1, limit=10)) == []
    assert not await store.responses.delete("resp_1", "app")


async def test_chain_is_an_owners_own_and_oldest_first(store: Store) -> None:
    for number in range(5):
        previous = f"resp_{number - 1}" if number else None
        await store.responses.add(row(number, previous_id=previous, owner="other" if number == 1 else "app"))
    found = await store.responses.chain("resp_4", "app", limit=10)
    assert [each.id for each in found] == ["resp_2", "resp_3", "resp_4"]
    assert [each.id for each in await store.responses.chain("resp_4", "app", limit=2)] == ["resp_3", "resp_4"]
    assert await store.responses.chain("resp_4", "other", limit=10) == []
    assert await store.responses.chain("resp_9", "app", limit=10) == []


async def test_old_responses_go_and_events_before_them(store: Store) -> None:
    await store.responses.add(row(1, status="completed", updated_at=10.0), [ONE])
    await store.responses.add(row(2, status="completed", updated_at=50.0), [ONE])
    await store.responses.add(row(3, status="queued", background=True, updated_at=10.0), [ONE])
    assert await store.responses.prune(before=20.0, events_before=60.0) == 1
    assert await store.responses.get("resp_1", None) is None
    assert await store.responses.get("resp_2", None) is not None
    assert list(await store.responses.events("resp_2", after=-1, limit=10)) == []
    assert list(await store.responses.events("resp_3", after=-1, limit=10)) == [ONE]


async def test_conversation_keeps_its_items_in_order(store: Store) -> None:
    known = ConversationRow(id="conv_1", owner="app", metadata={"a": "订单"}, created_at=1.0)
    await store.conversations.add(known, [item("a"), item("b")])
    assert await store.conversations.append("conv_1", [item("c")])
    assert not await store.conversations.append("conv_2", [item("c")])
    assert await store.conversations.get("conv_1", "app") == known
    assert await store.conversations.get("conv_1", "other") is None
    assert list(await store.conversations.items("conv_1")) == [item("a"), item("b"), item("c")]
    newest = await store.conversations.items("conv_1", newest_first=True, limit=2)
    assert list(newest) == [item("c"), item("b")]
    assert list(await store.conversations.items("conv_1", after="a", limit=1)) == [item("b")]
    assert list(await store.conversations.items("conv_1", newest_first=True, after="b")) == [item("a")]
    assert await store.conversations.rename("conv_1", "app", {"b": "c"})
    assert not await store.conversations.rename("conv_1", "other", {"b": "c"})
    assert await store.conversations.remove("conv_1", "b")
    assert not await store.conversations.remove("conv_1", "b")
    assert not await store.conversations.delete("conv_1", "other")
    assert await store.conversations.delete("conv_1", "app")
    assert await store.conversations.items("conv_1") == []


@pytest.mark.parametrize("how", ["add", "end"])
async def test_what_was_said_is_kept_with_the_response_that_says_it(store: Store, how: str) -> None:
    await store.conversations.add(ConversationRow(id="conv_1", owner="app", created_at=1.0), [item("a")])
    if how == "add":
        await store.responses.add(row(1, status="completed", conversation_id="conv_1"), (), [item("b")])
        await store.responses.add(row(2, status="completed", conversation_id="conv_gone"), (), [item("b")])
    else:
        await store.responses.add(row(1, conversation_id="conv_1"))
        await store.responses.end("resp_1", "me", status="completed", body=b"{}", said=[item("b")], now=2.0)
    assert list(await store.conversations.items("conv_1")) == [item("a"), item("b")]
