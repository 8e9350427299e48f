"""Counters and histograms of one thread."""

from __future__ import annotations

import random
from bisect import bisect_left

from prometheus_client.registry import CollectorRegistry

from gateway.observe.tally import _MOST_NEW, Distribution, Histogram

BOUNDS = (0.5, 1.0, 2.5)


def test_a_bucket_holds_values_up_to_and_with_its_bound() -> None:
    seen = Distribution(BOUNDS)
    for value in (2.5, 0.5, 0.0, 0.50001, 3.0, 1.0):
        seen.observe(value)
    assert list(seen.counts) == [2, 2, 1, 1]
    assert seen.sum == 7.50001


def test_values_folded_now_and_then_are_counted_as_if_one_by_one() -> None:
    dice = random.Random(7)
    seen, expected, total = Distribution(BOUNDS), [0] * 4, 0
    for number in range(3000):
        value = dice.choice([0, 0.5, 1, 2, 2.5, 9]) * dice.choice([1, 1, dice.random()])
        seen.add([value])
        if number % 7 == 0:
            assert sum(seen.counts) == number + 1
        expected[bisect_left(BOUNDS, value)] += 1
        total += 1
    assert list(seen.counts) == expected
    assert sum(seen.counts) == total


def test_values_that_nobody_reads_do_not_pile_up() -> None:
    seen = Distribution(BOUNDS)
    for _ in range(_MOST_NEW * 3 + 5):
        seen.observe(1.0)
    assert len(seen._new) == 5


def test_buckets_add_up_in_what_a_scrape_shows() -> None:
    shown = Histogram("seconds", "Seconds.", buckets=BOUNDS, registry=CollectorRegistry())
    for value in (0.1, 0.7, 9.0):
        shown.observe(value)
    (family,) = shown.collect()
    assert [(sample.labels.get("le"), sample.value) for sample in family.samples if "le" in sample.labels] == [
        ("0.5", 1),
        ("1.0", 2),
        ("2.5", 2),
        ("+Inf", 3),
    ]
