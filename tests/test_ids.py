"""The ids that the gateway issues."""

from __future__ import annotations

import re

import pytest

from gateway import ids
from gateway.ids import new_trace_id


def test_a_trace_id_is_32_hex_digits_and_no_two_are_alike() -> None:
    made = {new_trace_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in made)


def test_ids_made_later_are_kept_behind_those_made_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [1_700_000_000.9, 1_700_000_001.0, 2_000_000_000.5, 2**32 - 1]
    made = []
    for now in seconds:
        monkeypatch.setattr(ids, "time", lambda now=now: now)
        made.append(new_trace_id())
    assert made == sorted(made)
    assert len({len(each) for each in made}) == 1
