"""Nothing stored is readable by another owner: every kind of record, tried by those who are not its owner.

Every table with an owner has an entry here; one that is missing fails a test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.security.principal import Principal
from gateway.store.approval_records import ApprovalRow
from gateway.store.audit_records import AuditEntry
from gateway.store.compensation_records import CompensationRow
from gateway.store.memory_records import MemoryRow
from gateway.store.response_records import ConversationRow, ResponseRow
from gateway.store.run_records import RunRow
from gateway.store.session_records import Change
from gateway.store.sql import SqlStore
from gateway.store.store import JournalEntry
from gateway.store.tables import metadata
from gateway.store.turn_records import EffectRow, HiddenRow, TurnRow
from gateway.store.usage_records import UsageRow
from gateway.store.value_records import ValueRow
from tests.traces import batched, traced

# Callers that must not be taken for each other: keys and end users, names within names, patterns of databases.
OWNERS = [
    Principal("app").owner,
    Principal("app", user="eve").owner,
    Principal("app", user="eve/mallory").owner,
    Principal("app", user="Eve").owner,
    Principal("app", user="%").owner,
    Principal("app-eve").owner,
    Principal("appeve").owner,
    Principal("_pp").owner,
]


@dataclass(frozen=True)
class Kind:
    """How a record of an owner is kept, and what an owner finds of it."""

    keep: Callable[[SqlStore, str, str], Awaitable[object]]
    find: Callable[[SqlStore, str, str], Awaitable[Any]]


async def _keep_trace(store: SqlStore, owner: str, name: str) -> None:
    await store.traces.add(batched(traced(name, owner)))


async def _find_trace(store: SqlStore, owner: str, name: str) -> Any:
    listed = [row.trace_id for row in await store.traces.newest(owner, limit=100)]
    assert (name in listed) == (await store.traces.get(name, owner) is not None)
    return await store.traces.get(name, owner)


async def _keep_journal(store: SqlStore, owner: str, name: str) -> None:
    entry = JournalEntry(turn_id=name, trace_id=name, owner=owner, round=1, kind="answer", content={}, created_at=1)
    await store.journal.append([entry])


async def _keep_turn(store: SqlStore, owner: str, name: str) -> None:
    row = TurnRow(
        turn_id=name, owner=owner, key="same", body_hash="same", holder="h", held_until=1, created_at=1, updated_at=1
    )
    assert await store.turns.begin(row) is None, "the same key of another owner is in the way"


async def _find_turn(store: SqlStore, owner: str, name: str) -> Any:
    by_key = await store.turns.by_key(owner, "same")
    by_body = await store.turns.by_body(owner, "same", since=0)
    assert {row.owner for row in by_body} <= {owner}
    assert by_key is None or by_key.owner == owner
    return await store.turns.get(name, owner)


async def _keep_effect(store: SqlStore, owner: str, name: str) -> None:
    row = EffectRow(
        id=name,
        effect_key="same",
        owner=owner,
        turn_id=name,
        trace_id=name,
        round=1,
        position=0,
        tool="t",
        spec_hash="s",
        arguments="{}",
        arguments_hash="a",
        holder="h",
        held_until=1,
        started_at=1,
    )
    assert await store.effects.start(row) is None, "the same effect of another owner is in the way"


async def _find_effect(store: SqlStore, owner: str, name: str) -> Any:
    listed = [row.id for row in await store.effects.newest(owner, limit=100)]
    of_turn = [row.id for row in await store.effects.of_turn(name, owner)]
    found = await store.effects.get(name, owner)
    assert (name in listed) == (name in of_turn) == (found is not None)
    return found


async def _keep_hidden(store: SqlStore, owner: str, name: str) -> None:
    row = HiddenRow(
        owner=owner, anchor="same", visible="v", digest=name, messages=b"[]", call_ids=("same",), created_at=1
    )
    await store.hidden.keep([row])


async def _find_hidden(store: SqlStore, owner: str, name: str) -> Any:
    found = await store.hidden.find(owner, ["same"], ["same"])
    return [row for row in found if row.digest == name]


async def _keep_approval(store: SqlStore, owner: str, name: str) -> None:
    row = ApprovalRow(
        id=name,
        owner=owner,
        key="k",
        session="same",
        turn_id="same",
        trace_id="same",
        round=1,
        position=0,
        call_id="c",
        tool="t",
        name="t",
        spec_hash="s",
        arguments="{}",
        arguments_hash="same",
        why=("deletes",),
        version="1",
        created_at=1,
        expires_at=9e9,
    )
    kept = await store.approvals.ask(row, [], _entry(owner, name))
    assert kept.id == name, "the same call of another owner is in the way"


async def _find_approval(store: SqlStore, owner: str, name: str) -> Any:
    listed = [row.id for row in await store.approvals.newest(owner, status=None, limit=100, after=None, now=2)]
    of_thread = [row.id for row in await store.approvals.of_thread(owner, [name], "same")]
    of_call = [row.id for row in await store.approvals.of_call(owner, "t", "same")]
    found = await store.approvals.get(name, owner)
    assert (name in listed) == (name in of_thread) == (name in of_call) == (found is not None)
    return found


async def _keep_compensation(store: SqlStore, owner: str, name: str) -> None:
    row = CompensationRow(
        effect_id=name,
        owner=owner,
        turn_id="same",
        run_id="same",
        position=0,
        tool="undo",
        undoes="do",
        arguments="{}",
        created_at=1,
    )
    await store.compensations.owe([row])


async def _find_compensation(store: SqlStore, owner: str, name: str) -> Any:
    return [row for row in await store.compensations.of_turn("same", owner) if row.effect_id == name]


def _entry(owner: str, name: str) -> AuditEntry:
    return AuditEntry(at=1, actor=owner, owner=owner, action="approval.requested", subject=name)


async def _keep_audit(store: SqlStore, owner: str, name: str) -> None:
    await store.audit.append(_entry(owner, name))


async def _find_audit(store: SqlStore, owner: str, name: str) -> Any:
    return [row for row in await store.audit.newest(owner, limit=100, after=None) if row.entry.subject == name]


async def _keep_usage(store: SqlStore, owner: str, name: str) -> None:
    await store.usage.add([UsageRow(day="2025-01-31", owner=owner, model=name, cost=1, turns=1)])


async def _find_usage(store: SqlStore, owner: str, name: str) -> Any:
    assert await store.usage.spent("owner", owner) == 1
    return [row for row in await store.usage.sums(["model"], owner=owner) if row.model == name]


async def _keep_run(store: SqlStore, owner: str, name: str) -> None:
    row = RunRow(id=name, kind="k", trace_id=name, owner=owner, idempotency_key="same", created_at=1, due_at=1)
    [kept] = await store.runs.add([row])
    assert kept.id == name, "the same key of another owner is in the way"


async def _find_run(store: SqlStore, owner: str, name: str) -> Any:
    listed = [row.id for row in await store.runs.newest(owner, status=None, dead=None, limit=100, after=None)]
    found = await store.runs.get(name, owner)
    assert (name in listed) == (found is not None)
    if found is None:
        assert await store.runs.cancel(name, owner, now=2) is None
        assert not await store.runs.retry(name, owner, now=2)
    return found


async def _keep_response(store: SqlStore, owner: str, name: str) -> None:
    await store.responses.add(ResponseRow(id=name, owner=owner, status="completed", created_at=1, updated_at=1))


async def _find_response(store: SqlStore, owner: str, name: str) -> Any:
    found = await store.responses.get(name, owner)
    assert [row.id for row in await store.responses.chain(name, owner, limit=5)] == ([name] if found else [])
    if found is None:
        assert not await store.responses.delete(name, owner)
    return found


async def _keep_conversation(store: SqlStore, owner: str, name: str) -> None:
    await store.conversations.add(ConversationRow(id=name, owner=owner, created_at=1), [])


async def _find_conversation(store: SqlStore, owner: str, name: str) -> Any:
    found = await store.conversations.get(name, owner)
    if found is None:
        assert not await store.conversations.rename(name, owner, {"a": "b"})
        assert not await store.conversations.delete(name, owner)
    return found


async def _keep_memory(store: SqlStore, owner: str, name: str) -> None:
    row = MemoryRow(id=name, owner=owner, kind="fact", text="t", source="s", created_at=1, updated_at=1)
    await store.memories.add([row], most=9)


async def _find_memory(store: SqlStore, owner: str, name: str) -> Any:
    found = await store.memories.get(name, owner)
    listed = [row.id for row in await store.memories.newest(owner, limit=9)]
    assert (name in listed) == (name in [row.id for row in await store.memories.of(owner)]) == (found is not None)
    if found is None:
        row = MemoryRow(id=name, owner=owner, kind="fact", text="x", source="s", created_at=1, updated_at=1)
        assert not await store.memories.change(row)
        assert not await store.memories.delete(name, owner)
    return found


async def _keep_session(store: SqlStore, owner: str, name: str) -> None:
    row = await store.sessions.take(owner, "same", "h", until=9, now=1, alive=lambda _: True)
    assert row is not None, "the same name of another owner is in the way"
    change = Change(first=0, upto=0, messages=[name.encode()], head=b"[]", size=1, last=0, last_print="")
    assert await store.sessions.change(row.number, "h", change, now=1, ttl_s=9)


async def _find_session(store: SqlStore, owner: str, name: str) -> Any:
    found = await store.sessions.get(owner, "same", now=2)
    if found is None:
        assert not await store.sessions.delete(owner, "same")
        return None
    return name.encode() in await store.sessions.messages(found.number)


async def _find_value(store: SqlStore, owner: str, name: str) -> Any:
    found = await store.private_values.get("same", owner)
    return found is not None and found.sealed == name.encode()


MATRIX: dict[str, Kind] = {
    "trace_owners": Kind(_keep_trace, _find_trace),
    "journal": Kind(_keep_journal, lambda store, owner, name: store.journal.of_turn(name, owner)),
    "turns": Kind(_keep_turn, _find_turn),
    "effects": Kind(_keep_effect, _find_effect),
    "hidden_rounds": Kind(_keep_hidden, _find_hidden),
    "hidden_calls": Kind(_keep_hidden, _find_hidden),
    "approvals": Kind(_keep_approval, _find_approval),
    "audit": Kind(_keep_audit, _find_audit),
    "compensations": Kind(_keep_compensation, _find_compensation),
    "usage": Kind(_keep_usage, _find_usage),
    "runs": Kind(_keep_run, _find_run),
    "responses": Kind(_keep_response, _find_response),
    "private_values": Kind(
        lambda store, owner, name: store.private_values.keep(
            [ValueRow(owner=owner, placeholder="same", sealed=name.encode(), expires_at=1)]
        ),
        _find_value,
    ),
    "conversations": Kind(_keep_conversation, _find_conversation),
    "sessions": Kind(_keep_session, _find_session),
    "memories": Kind(_keep_memory, _find_memory),
}
# Their owner is who made them; only administrators come near them (`api/test_keys.py`), to everybody's.
OF_ADMINISTRATORS = {"keys", "key_secrets"}
# Parts of records that have an owner: nobody comes to them but through those.
UNOWNED = {"audit_head", "response_events", "conversation_items", "session_messages", "trace_batches", "trace_names"}


def test_every_table_is_in_the_matrix_or_belongs_to_nobody() -> None:
    assert set(metadata.tables) == {*MATRIX, *OF_ADMINISTRATORS, *UNOWNED}
    owned = {name for name, table in metadata.tables.items() if "owner" in table.columns}
    assert owned == {*MATRIX, *OF_ADMINISTRATORS}
    assert not any(metadata.tables[name].columns["owner"].nullable for name in owned)


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "sqlite":
        made = SqlStore(f"sqlite:///{tmp_path / 'x.db'}")
    else:
        made = SqlStore(await request.getfixturevalue("postgres_server").migrated())
    await made.open()
    yield made
    await made.close()


@pytest.mark.parametrize("kind", MATRIX)
async def test_nobody_finds_what_another_owner_has(store: SqlStore, kind: str) -> None:
    """R-isolation: every id of one owner, tried from every other."""
    assert len(set(OWNERS)) == len(OWNERS)
    names = {owner: f"{number:032x}" for number, owner in enumerate(OWNERS, 1)}
    for owner, name in names.items():
        await MATRIX[kind].keep(store, owner, name)
    for owner in OWNERS:
        for whose, name in names.items():
            found = await MATRIX[kind].find(store, owner, name)
            assert bool(found) == (owner == whose), f"{owner!r} and the {kind} of {whose!r}"
