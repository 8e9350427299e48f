"""Fake tools for the demo backend's tests: described like real ones, backed by dictionaries."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from tests.backends.demo_loop import Tool

TEXT = {"type": "string"}


def described(text: str, **schema: Any) -> dict[str, Any]:
    return {"type": "string", "description": text, **schema}


def evaluate(expression: str) -> Fraction:
    """What an expression is worth, exactly: signs, brackets and powers only, so that words in it fail."""
    assert re.fullmatch(r"[\d.+\-*/() ]+", expression), expression
    exact = re.sub(r"\d+(?:\.\d+)?", lambda number: f"F('{number.group()}')", expression)
    return Fraction(eval(exact, {"F": Fraction, "__builtins__": {}}))


def as_number(value: Fraction) -> Any:
    return int(value) if value.denominator == 1 else float(value)


CALCULATOR = Tool(
    "calculator",
    "Calculate exactly when the user asks for arithmetic, a sum, a percentage (计算, 算, 百分之, 多少).",
    {"expression": described("the arithmetic to do, for example 12.5% of 18640 or (3 + 4) * 2.5")},
    lambda expression: {"expression": expression, "result": str(as_number(evaluate(expression)))},
)
CLOCK = Tool(
    "clock",
    "Tell the current date and time when the user asks what time, day or date it is (现在几点, 时间, 日期).",
    {"timezone": described("a city or an IANA zone, for example Asia/Shanghai, Tokyo, 北京 or UTC", default="UTC")},
    lambda timezone="UTC": {"timezone": timezone, "time": "10:11:12"},
    required=(),
)
WEATHER = Tool("get_weather", "Weather of a city", {"city": TEXT}, lambda city: f"{city} has {len(city)} degrees")
WEB = Tool(
    "web_fetch",
    "Fetch a web page and read its title and main text when the user gives a URL (打开网页, 网址, 链接).",
    {"url": described("the page's address, for example https://example.com/page")},
    lambda url: {"url": url, "title": "A page", "text": f"words of {url}"},
)
READ = Tool(
    "read_file",
    "Read a text file from the shared folder when the user names a file (读取文件, 打开文件, 文件内容).",
    {"path": described("the file's path within the folder, for example welcome.txt")},
    lambda path: {"path": path, "text": "inside"},
)
LIST = Tool(
    "list_files",
    "List the files in the shared folder when the user asks which files there are (列出文件, 有哪些文件).",
    {"folder": described("a folder within it, for example reports; empty for the top")},
    lambda folder="": {"files": [{"name": "a.txt", "bytes": 3}]},
    required=(),
)
SEARCH = Tool(
    "search_notes",
    "Search the notes when the user asks about policies, guides or how-tos (搜索, 知识库, 文档, 退货, 政策).",
    {"query": described("what to look for, a few words"), "limit": {"type": "integer", "default": 3}},
    lambda query, limit=3: {"results": [{"title": query, "text": f"about {query}"}]},
    required=("query",),
)


def _found(table: Mapping[str, Any], kind: str, key: str) -> Any:
    if key not in table:
        raise LookupError(f"there is no {kind} {key!r}")
    return table[key]


def order_tools(orders: Mapping[str, Any], shipments: Mapping[str, Any]) -> tuple[Tool, Tool]:
    """Two tools whose second needs what the first finds."""
    query: Callable[..., Any] = lambda order_id: _found(orders, "order", order_id)  # noqa: E731
    track: Callable[..., Any] = lambda tracking_no: _found(shipments, "shipment", tracking_no)  # noqa: E731
    return (
        Tool(
            "query_order",
            "Look up an order for its status, items, total price and tracking number (查订单, 订单状态, 多少钱, 金额).\n\n"
            "Where its parcel is, `track_shipment` knows by the tracking number found here.",
            {"order_id": described("the order's number, for example SO-2024-0318")},
            query,
        ),
        Tool(
            "track_shipment",
            "Track a shipment to see where a parcel is and when it arrives (物流, 快递, 包裹, 到哪了).",
            {"tracking_no": described("the tracking number, as `query_order` gives it, for example SF1390472586")},
            track,
        ),
    )


def shop(order_id: str = "SO-2024-0318", total: float = 129.5, tracking_no: str = "SF1390472586") -> tuple[Tool, Tool]:
    """The order tools with one order in them."""
    order = {
        "order_id": order_id,
        "status": "shipped",
        "items": [{"name": "Tea", "quantity": 2}],
        "total": total,
        "currency": "CNY",
        "tracking_no": tracking_no,
    }
    parcel = {
        "tracking_no": tracking_no,
        "carrier": "SF",
        "status": "in_transit",
        "location": "杭州",
        "eta": "2026-12-02",
    }
    return order_tools({order_id: order}, {tracking_no: parcel})


EVERYTHING = (CALCULATOR, CLOCK, *shop(), WEB, LIST, READ, SEARCH, WEATHER)
