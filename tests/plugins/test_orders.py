from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins import orders
from tests.tools.workshop import Workshop, open_workshop

PLUGINS = Path(orders.__file__).parent


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "somewhere" / "orders.db"
    monkeypatch.setenv("ORDERS_DB", str(path))
    return path


@pytest.fixture
async def shop(database: Path) -> AsyncIterator[Workshop]:
    async with open_workshop(places=[PLUGINS / "orders.py"]) as workshop:
        yield workshop


async def test_the_sample_order_leads_to_its_parcel(shop: Workshop) -> None:
    order = await shop.result("query_order", order_id="SO-2024-0318")
    assert (order["total"], order["currency"], order["status"]) == (758, "CNY", "shipped")
    assert sum(item["quantity"] * item["price"] for item in order["items"]) == order["total"]
    parcel = await shop.result("track_shipment", tracking_no=order["tracking_no"])
    assert parcel["carrier"]
    assert "Hangzhou" in parcel["location"]
    assert parcel["eta"] == "2024-03-21"


async def test_an_order_is_found_in_lower_case_and_an_unknown_one_is_an_error(shop: Workshop) -> None:
    assert (await shop.result("query_order", order_id=" so-2024-0318 "))["order_id"] == "SO-2024-0318"
    assert (await shop.call("query_order", {"order_id": "SO-1"})).error == "there is no order 'SO-1'"
    assert (await shop.call("track_shipment", {"tracking_no": "X"})).error == "there is no shipment 'X'"
    assert (await shop.call("query_order", {"order_id": "' OR 1=1 --"})).error is not None


async def test_rows_of_another_process_are_seen(shop: Workshop, database: Path) -> None:
    await shop.result("query_order", order_id="SO-2024-0318")
    script = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]);"
        "db.execute(\"INSERT INTO orders (order_id, status, items, total, tracking_no) VALUES ('SO-9', 'paid', 'a lamp', 12.75, 'T9')\");"
        "db.execute(\"INSERT INTO shipments VALUES ('T9', 'DHL', 'in transit', 'Oslo', NULL)\"); db.commit()"
    )
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script, str(database)], check=True, timeout=30)
    order = await shop.result("query_order", order_id="SO-9")
    assert (order["total"], order["items"], order["currency"]) == (12.75, "a lamp", "CNY")
    assert (await shop.result("track_shipment", tracking_no="T9"))["location"] == "Oslo"


@given(
    number=st.integers(0, 10**9),
    cents=st.integers(0, 10**9),
    place=st.text(st.characters(codec="utf-8", exclude_characters="\0")),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_inserted_row_comes_back_as_it_is(database: Path, number: int, cents: int, place: str) -> None:
    orders.query_order("SO-2024-0318")
    with sqlite3.connect(database) as rows:
        total = cents / 100
        order, tracking = f"SO-{number}", f"T{number}"
        rows.execute(
            "INSERT OR REPLACE INTO orders (order_id, status, total, tracking_no) VALUES (?, 'paid', ?, ?)",
            (order, total, tracking),
        )
        rows.execute(
            "INSERT OR REPLACE INTO shipments VALUES (?, 'DHL', 'in transit', ?, '2024-01-01')", (tracking, place)
        )
    rows.close()
    assert orders.query_order(order)["total"] == total
    assert orders.track_shipment(tracking)["location"] == place


def test_a_database_somebody_else_has_made_is_left_as_it_is(database: Path) -> None:
    database.parent.mkdir(parents=True)
    with sqlite3.connect(database) as rows:
        rows.executescript(orders.SCHEMA)
        rows.execute("INSERT INTO orders (order_id, status, total) VALUES ('SO-1', 'paid', 5)")
    rows.close()
    assert orders.query_order("SO-1")["total"] == 5
    with pytest.raises(LookupError):
        orders.query_order("SO-2024-0318")


async def test_many_first_uses_at_once_make_one_database(shop: Workshop) -> None:
    outcomes = await shop.calls([("query_order", {"order_id": "SO-2024-0318"})] * 12)
    assert [outcome.error for outcome in outcomes] == [None] * 12
