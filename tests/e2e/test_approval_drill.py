"""The short form of the kill drill of approvals, and the proof that its judge sees what it looks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.approval_drill import Client, drill, verdict


@pytest.mark.timeout(400)
async def test_killed_while_calls_wait_are_made_and_undone_nothing_is_doubled_or_forgotten(tmp_path: Path) -> None:
    found = await drill(tmp_path, 40, seconds=5)
    assert found.faults == []
    assert found.kills >= 1
    assert found.signed + found.rejected + found.undone >= 3


APPROVED = ("t0.0", "approved", 1, 2.0, '{"ok":true}')
SIGNED = ("sign", "t0.0")


@pytest.mark.parametrize(
    ("rows", "approvals", "effects", "owed", "faults"),
    [
        ([SIGNED], [APPROVED], [], {}, 0),
        ([SIGNED, SIGNED], [APPROVED], [], {}, 1),
        ([SIGNED], [("t0.0", "rejected", None, None, None)], [], {}, 1),
        ([SIGNED], [], [], {}, 1),
        ([], [APPROVED], [], {}, 1),
        ([], [("t0.0", "approved", 0, 2.0, "it is not known")], [], {}, 0),
        ([], [("t0.0", "approved", None, None, None)], [], {}, 1),
        ([], [("t0.0", "pending", None, None, None)], [], {}, 1),
        ([], [], [("e1", "reserve", "t0.0", "done")], {}, 1),
        ([], [], [("e1", "reserve", "t0.0", "done")], {"e1": ("pending", None)}, 1),
        ([], [], [("e1", "reserve", "t0.0", "done")], {"e1": ("done", "e2")}, 1),
        ([("cancel", "t0.0")], [], [("e1", "reserve", "t0.0", "done")], {"e1": ("done", "e2")}, 0),
        ([("cancel", "t0.0")] * 2, [], [("e1", "reserve", "t0.0", "done")], {"e1": ("done", "e2")}, 1),
        ([("cancel", "t0.0")], [], [("e1", "reserve", "t0.0", "done")], {"e1": ("failed", "e2")}, 1),
        ([], [], [("e1", "reserve", "t0.0", "done")], {"e1": ("unknown", "e2")}, 0),
    ],
)
def test_the_judge_sees_each_fault(rows: Any, approvals: Any, effects: Any, owed: Any, faults: int) -> None:
    client = Client("t0", "sign", text="That is all.")
    assert len(verdict([client], rows, approvals, effects, owed)) == faults
