"""What masking costs, as the benchmark measures it: loosely here, for machines that have other things to do."""

from __future__ import annotations

from bench.privacy import KINDS, PLAIN, PRIVATE, chunk_us, masking_us, request_of
from gateway.security.masking.detector import Detector


def test_a_request_in_which_nothing_is_found_costs_next_to_nothing() -> None:
    # 10 microseconds where nothing else runs; 50 are asked for.
    assert masking_us(Detector(KINDS, {}), request_of(PLAIN, 2048)) < 500


def test_a_request_with_values_costs_little() -> None:
    assert masking_us(Detector(KINDS, {}), request_of(PRIVATE + PLAIN * 40, 2048), 50) < 5000


def test_a_chunk_costs_next_to_nothing() -> None:
    # A quarter of a microsecond where nothing else runs; 2 are asked for.
    assert chunk_us({"[[phone:bcdfghjklmn]]": "13812345678"}, 20) < 20
