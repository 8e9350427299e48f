"""A tool that deletes: by its name, so that nothing of it happens before somebody has approved it and typed the code."""

from __future__ import annotations

from typing import Any

from gateway.tools import Tools, tool

# Instead of a database.
_ORDERS = {"SO-2024-0318", "SO-2024-0402", "SO-2024-0427"}


@tool
async def delete_order(order_id: str) -> dict[str, Any]:
    """Delete an order for good.

    order_id: the order's number, for example SO-2024-0402
    """
    if order_id not in _ORDERS:
        raise LookupError(f"there is no order {order_id!r}")
    _ORDERS.remove(order_id)
    return {"deleted": order_id, "orders_left": len(_ORDERS)}


def register(registry: Tools) -> None:
    """Add the tool."""
    registry.add(delete_order)
