"""The short form of the chaos drill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.chaos_drill import drill


@pytest.mark.timeout(420)
async def test_killed_and_forgotten_every_run_ends_and_no_effect_is_doubled(tmp_path: Path) -> None:
    found = await drill(tmp_path, 150, seconds=20, every_s=(0.5, 2.0))
    assert found.faults == []
    assert found.kills >= 2
    assert found.statuses == {"completed": found.runs}
    assert found.runs >= 20
    assert found.effects >= 10
