"""The short form of the kill drill, and the proof that its judge sees what it looks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kill_drill import Client, drill, verdict

PAID = {"ok": True, "result": {"slot": "t0.0.0", "amount": 1}}
UNKNOWN = {"ok": False, "error": "Whether this took effect is not known: it died."}
FAILED = {"ok": False, "error": "refused"}


@pytest.mark.timeout(240)
async def test_killed_at_random_points_every_effect_is_made_once_or_told_as_unknown(tmp_path: Path) -> None:
    found = await drill(tmp_path, 300, seconds=20)
    assert found.faults == []
    assert found.kills >= 1
    assert found.turns >= 10
    assert found.rows >= 5


@pytest.mark.parametrize(
    ("told", "rows", "status", "faults"),
    [
        (PAID, [("pay", "t0.0.0", 1)], "done", 0),
        (UNKNOWN, [], "unknown", 0),
        (UNKNOWN, [("pay", "t0.0.0", 1)], "unknown", 0),
        (PAID, [("pay", "t0.0.0", 1)] * 2, "done", 2),
        (PAID, [("pay", "t0.0.0", 2)], "done", 1),
        (PAID, [], "done", 1),
        (PAID, [("pay", "t0.0.0", 1)], "unknown", 1),
        (FAILED, [("pay", "t0.0.0", 1)], "failed", 1),
        (UNKNOWN, [], "done", 1),
        (PAID, [("pay", "t0.0.0", 1), ("pay", "t9.0.0", 1)], "done", 1),
        (None, [], "missing", 1),
    ],
)
def test_the_judge_of_the_drill_sees_each_fault(
    told: Any, rows: list[tuple[str, str, int]], status: str, faults: int
) -> None:
    client = Client("t0", (("pay",),), keyed=True, streamed=False, impatient=False)
    client.results = {"t0.0.0": told} if told is not None else {}
    assert len(verdict([client], rows, {"t0.0.0": ("pay", status)})) == faults
