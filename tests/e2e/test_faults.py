"""The fault drill for half a minute, and that it would see what it looks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.fault_drill import _error_fault, _streamed, drill


@pytest.mark.timeout(240)
def test_every_request_ends_right_whatever_the_upstreams_do_and_nothing_is_left(tmp_path: Path) -> None:
    found = drill(tmp_path, requests=3000, seconds=20, clients=24)
    assert found.wrong == []
    assert found.leaked == {}
    assert found.recovered
    # Most are answered, and there was enough to fail at.
    assert found.ends["answered"] > found.ends.total() / 2 > 25
    assert found.faults.total() - found.faults["well"] > 10


WELL = b'data: {"choices":[{"delta":{"role":"assistant","content":"a b"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
FAILED = b'data: {"error":{"message":"cut","type":"t","param":null,"code":"upstream_error"}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("raw", "right"),
    [
        (WELL + END + DONE, True),
        (WELL + FAILED + DONE, True),
        (FAILED + DONE, True),
        (WELL + WELL + END + DONE, False),  # a text twice
        (WELL + END, False),  # no end mark
        (WELL + DONE, False),  # no finish reason
        (WELL + END + FAILED + DONE, False),  # an end before the error
        (WELL.replace(b"a b", b"a") + END + DONE, False),  # a word short
        (WELL.replace(b"a b", b"b") + FAILED + DONE, False),  # not the beginning
    ],
)
def test_drill_tells_right_streams_from_wrong_ones(raw: bytes, right: bool) -> None:
    assert (_streamed(raw, "a b")[1] is None) is right


@pytest.mark.parametrize(
    ("status", "message", "code", "right"),
    [
        (503, "busy", "upstream_unavailable", True),
        (503, "busy", None, False),
        (500, "a defect", "internal_error", False),
        (502, "http://127.0.0.1:1 is away", "upstream_error", False),
        (502, "bad key b1-key-1", "upstream_error", False),
    ],
)
def test_drill_tells_right_errors_from_wrong_ones(status: int, message: str, code: str | None, right: bool) -> None:
    told = {"message": message, "type": "t", "param": None, "code": code}
    assert (_error_fault(status, told) is None) is right
