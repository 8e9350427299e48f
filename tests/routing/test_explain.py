from __future__ import annotations

import json
import re
from pathlib import Path

from gateway.routing.explain import REASONS, explanation, explanation_text
from gateway.routing.facts import Facts
from tests.routing.hashing_encoder import HashingEncoder
from tests.routing.tables import route, router

ROUTES = [
    route("orders", "order", utterances=["where is my parcel", "parcel please"]),
    route("late", "order", priority=-1),
]


async def test_an_explanation_reads_well_and_is_json() -> None:
    made = router(ROUTES, HashingEncoder())
    await made.prepare()
    decision = await made.decide(Facts("an order"), explain=True)
    text = explanation_text(decision)
    assert "route     orders" in text
    assert "because   keyword 'order'" in text
    assert re.search(r"^late +lower_priority +keyword 'order' at 3-8$", text, re.MULTILINE)
    as_json = json.loads(json.dumps(explanation(decision)))
    assert as_json["route"] == "orders"
    assert as_json["candidates"][0]["matched"] == [{"kind": "keyword", "value": "order", "start": 3, "end": 8}]
    semantic = explanation_text(await made.decide(Facts("where is my parcel"), explain=True))
    assert "strategy  semantic" in semantic
    assert "nearest 'where is my parcel'" in semantic


async def test_a_default_says_why_nothing_matched() -> None:
    decision = await router(ROUTES).decide(Facts("philosophy"))
    text = explanation_text(decision)
    assert "route     -" in text
    assert REASONS["semantic_disabled"] in text


def test_every_reason_that_the_code_gives_is_explained() -> None:
    folder = Path(__file__).resolve().parents[2] / "gateway" / "routing"
    source = "".join((folder / name).read_text() for name in ("composite.py", "semantic.py", "index.py", "likeness.py"))
    given = set(re.findall(r'(?:reason(?:: str)? ?= ?|_fallback\(|verdict = )"(\w+)"', source)) - {"chosen"}
    assert len(given) >= 8
    assert given <= set(REASONS)
