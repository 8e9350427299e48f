"""What placeholders stand for: over every store, and sealed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.clock import SystemClock
from gateway.security.masking.placeholders import Mint
from gateway.security.masking.secret import Secret, fresh_secret
from gateway.security.masking.vault import Vault
from gateway.store.memory import MemoryStore
from gateway.store.sql import SqlStore
from gateway.store.value_records import PrivateValues, ValueRow
from tests.clocks import HandClock


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def values(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PrivateValues]:
    if request.param == "memory":
        yield MemoryStore().private_values
        return
    url = f"sqlite:///{tmp_path / 'x.db'}"
    if request.param == "postgresql":
        url = await request.getfixturevalue("postgres_server").migrated()
    store = SqlStore(url)
    await store.open()
    yield store.private_values
    await store.close()


def row(owner: str, expires_at: float = 10.0, sealed: bytes = b"x") -> ValueRow:
    return ValueRow(owner=owner, placeholder="[[phone:bcdfghjklmn]]", sealed=sealed, expires_at=expires_at)


async def test_a_value_is_its_owners_and_has_its_time(values: PrivateValues) -> None:
    await values.keep([row("a"), row("a", 20.0, b"y"), row("b")])
    found = await values.get("[[phone:bcdfghjklmn]]", "a")
    assert found is not None
    assert (found.sealed, found.expires_at) == (b"y", 20.0)
    assert await values.get("[[phone:bcdfghjklmn]]", "c") is None
    assert await values.prune(before=15.0) == 1
    assert await values.get("[[phone:bcdfghjklmn]]", "b") is None
    assert await values.get("[[phone:bcdfghjklmn]]", "a") is not None


async def test_the_newest_of_some_kinds(values: PrivateValues) -> None:
    rows = [
        ValueRow(owner=owner, placeholder=f"[[{name}:bcdfghjklm{letter}]]", sealed=b"x", expires_at=at)
        for owner, name, letter, at in (
            ("a", "phone", "b", 9.0),
            ("a", "private", "b", 1.0),
            ("a", "private", "c", 3.0),
            ("a", "address", "b", 2.0),
            ("b", "private", "d", 4.0),
        )
    ]
    await values.keep(rows)
    found = await values.newest("a", ["[[private:", "[[address:"], 2)
    assert [row.expires_at for row in found] == [3.0, 2.0]


def vault(store: PrivateValues, secret: Secret) -> Vault:
    return Vault(store, lambda: secret, lambda: 1, HandClock())


async def test_what_is_kept_is_sealed_and_opens_for_its_owner_alone(values: PrivateValues) -> None:
    secret = fresh_secret()
    placeholder = Mint(secret.minting("a")).placeholder("13812345678", "phone")
    await vault(values, secret).keep([("a", {placeholder: "13812345678", "[[text:bcdfghjklmn]]": "x"})])
    kept = await values.get(placeholder, "a")
    assert kept is not None
    assert b"13812345678" not in kept.sealed
    assert await vault(values, secret).reveal(placeholder, "a") == "13812345678"
    assert await vault(values, secret).reveal(placeholder, "b") is None
    assert await values.get("[[text:bcdfghjklmn]]", "a") is None
    # With another secret, or moved to another owner, it does not open.
    assert await vault(values, fresh_secret()).reveal(placeholder, "a") is None
    await values.keep([ValueRow(owner="b", placeholder=placeholder, sealed=kept.sealed, expires_at=kept.expires_at)])
    assert await vault(values, secret).reveal(placeholder, "b") is None


async def test_a_value_whose_time_is_over_is_not_told() -> None:
    store, secret, clock = MemoryStore().private_values, fresh_secret(), SystemClock()
    kept = Vault(store, lambda: secret, lambda: -1, clock)
    await kept.keep([("a", {"[[phone:bcdfghjklmn]]": "1"})])
    assert await kept.reveal("[[phone:bcdfghjklmn]]", "a") is None
