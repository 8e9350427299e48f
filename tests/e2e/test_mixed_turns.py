"""Turns that call the client's tools and the gateway's: nothing is lost, nothing foreign is shown."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.mixed_drill import drill


async def test_a_strict_upstream_sees_one_growing_history_whatever_the_client_was_shown(tmp_path: Path) -> None:
    report = await drill(tmp_path, 60)
    assert (report.refused[:2], report.failures[:2], report.foreign[:2]) == ([], [], [])
    assert report.mixed > 30
    assert min(report.branches, report.regenerated) > 5
