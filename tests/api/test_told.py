"""The headers that say who answered."""

from types import SimpleNamespace
from typing import cast

import pytest

from gateway.api import told
from gateway.api.told import answer_lines
from gateway.routing.decision import Decision
from gateway.turn.context import Turn


def _answered(backend: str, *, version: str, wanted: str = "", score: float | None = None) -> Turn:
    decision = Decision("sums", "any", "rule", version, score)
    said = SimpleNamespace(decision=decision, backend=backend, answering="any/one", wanted=wanted)
    return cast(
        Turn, SimpleNamespace(**vars(said), replayed=None, recalled=False, approvals=None, standing=None, waits_for=())
    )


def test_lines_are_made_once_for_answers_alike() -> None:
    first = answer_lines(_answered("here", version="told-1"))
    assert first == (
        b"x-gateway-version: told-1\r\nx-gateway-route: sums\r\nx-gateway-strategy: rule\r\n"
        b"x-gateway-model: any/one\r\nx-gateway-backend: here\r\n"
    )
    assert answer_lines(_answered("here", version="told-1")) is first
    assert b"-backend: there\r\n" in answer_lines(_answered("there", version="told-1"))


def test_a_score_stands_behind_them() -> None:
    plain = answer_lines(_answered("here", version="told-4"))
    for score, told_as in ((0.5, b"0.5000"), (-0.00004, b"-0.0000"), (0.99996, b"1.0000")):
        turn = _answered("here", version="told-4", score=score)
        assert answer_lines(turn) == plain + b"x-gateway-score: " + told_as + b"\r\n"
        turn.recalled = True
        assert answer_lines(turn).endswith(b"x-gateway-replayed: true\r\nx-gateway-score: " + told_as + b"\r\n")


def test_what_a_client_wrote_is_not_kept() -> None:
    kept = told._known.cache_info().currsize
    lines = answer_lines(_answered("here", version="told-2", wanted="one"))
    assert told._known.cache_info().currsize == kept
    assert lines == answer_lines(_answered("here", version="told-2"))


def test_a_name_with_a_line_break_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="line break"):
            answer_lines(_answered("a\r\nb: c", version="told-3"))
