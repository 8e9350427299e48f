"""Two linked tools over an SQLite example database: an order, and the parcel it became.

The database is created with sample rows on first use, at `ORDERS_DB` or data/orders.db. Its schema stands below for
everybody who wants to insert rows of their own; the tools open it anew for each call, so rows of other processes are seen.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway.tools import Tools, tool

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    order_id    TEXT PRIMARY KEY COLLATE NOCASE,  -- SO-2024-0318
    customer    TEXT,                             -- the customer's number
    status      TEXT NOT NULL,                    -- processing, paid, shipped, delivered, cancelled
    items       TEXT NOT NULL DEFAULT '[]',       -- JSON, a list of {"name", "quantity", "price"}, or plain text
    total       NUMERIC NOT NULL,                 -- in units of the currency
    currency    TEXT NOT NULL DEFAULT 'CNY',
    tracking_no TEXT,                             -- shipments.tracking_no, NULL while nothing was sent
    ordered_at  TEXT                              -- ISO 8601
);
CREATE TABLE IF NOT EXISTS shipments (
    tracking_no TEXT PRIMARY KEY COLLATE NOCASE,  -- SF1390472586
    carrier     TEXT NOT NULL,
    status      TEXT NOT NULL,                    -- picked up, in transit, out for delivery, delivered
    location    TEXT NOT NULL,                    -- where it was seen last
    eta         TEXT                              -- ISO 8601 date
);
"""

_ORDERS: list[tuple[Any, ...]] = [
    ("SO-2024-0318", "C-1001", "shipped", [("机械键盘 Mechanical keyboard", 1, 499), ("无线鼠标 Wireless mouse", 2, 129.5)],
     758, "CNY", "SF1390472586", "2024-03-18T09:24:00+08:00"),
    ("SO-2024-0402", "C-1002", "processing", [("显示器支架 Monitor arm", 1, 268)], 268, "CNY", None,
     "2024-04-02T16:05:00+08:00"),
    ("SO-2024-0427", "C-1001", "delivered", [("USB-C hub", 3, 24.9)], 74.7, "EUR", "DHL5520176391",
     "2024-04-27T11:40:00+02:00"),
]  # fmt: skip
_SHIPMENTS = [
    ("SF1390472586", "SF Express 顺丰", "in transit", "杭州转运中心 Hangzhou transit centre", "2024-03-21"),
    ("DHL5520176391", "DHL", "delivered", "Berlin", "2024-04-30"),
]


@tool
def query_order(order_id: str) -> dict[str, Any]:
    """Look up an order for its status, items, total price and tracking number (查订单, 订单状态, 多少钱, 金额).

    Where its parcel is, `track_shipment` knows by the tracking number found here.

    order_id: the order's number, for example SO-2024-0318
    """
    row = _row("SELECT * FROM orders WHERE order_id = ?", order_id)
    if row is None:
        raise LookupError(f"there is no order {order_id.strip()!r}")
    row["items"] = _items(row["items"])
    return {key: value for key, value in row.items() if key != "customer"}


@tool
def track_shipment(tracking_no: str) -> dict[str, Any]:
    """Track a shipment to see where a parcel is and when it arrives (物流, 快递, 包裹, 到哪了).

    tracking_no: the tracking number, as `query_order` gives it, for example SF1390472586
    """
    row = _row("SELECT * FROM shipments WHERE tracking_no = ?", tracking_no)
    if row is None:
        raise LookupError(f"there is no shipment {tracking_no.strip()!r}")
    return row


def register(registry: Tools) -> None:
    """Add both tools."""
    registry.add(query_order, track_shipment)


def _row(query: str, key: str) -> dict[str, Any] | None:
    path = Path(os.environ.get("ORDERS_DB") or "data/orders.db")
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as database:
        _create(database)
        database.row_factory = sqlite3.Row
        row = database.execute(query, (key.strip(),)).fetchone()
    return None if row is None else dict(row)


def _create(database: sqlite3.Connection) -> None:
    tables = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('orders', 'shipments')"
    if database.execute(tables).fetchone()[0] == 2:
        return
    # Whoever comes second waits here, and then finds the tables.
    database.execute("BEGIN IMMEDIATE")
    empty = database.execute(tables).fetchone()[0] == 0
    for statement in SCHEMA.split(";"):
        database.execute(statement)
    if empty:
        orders = [(*row[:3], _encoded(row[3]), *row[4:]) for row in _ORDERS]
        database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?)", orders)
        database.executemany("INSERT INTO shipments VALUES (?, ?, ?, ?, ?)", _SHIPMENTS)
    database.execute("COMMIT")


def _encoded(items: list[tuple[str, int, float]]) -> str:
    listed = [{"name": name, "quantity": quantity, "price": price} for name, quantity, price in items]
    return json.dumps(listed, ensure_ascii=False)


def _items(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
