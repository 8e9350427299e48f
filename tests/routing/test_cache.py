from __future__ import annotations

from gateway.routing.cache import DecisionCache, cache_key
from gateway.routing.decision import Decision
from tests.routing.tables import HandClock

DECISION = Decision(None, "m", "default", "1")


def test_entries_die_of_age_and_of_number_and_are_counted() -> None:
    clock = HandClock()
    cache = DecisionCache(2, 10, clock.monotonic)
    assert cache.get(("a",)) is None
    for key in "abc":
        cache.put((key,), DECISION)
    assert len(cache) == 2
    assert cache.get(("a",)) is None
    assert cache.get(("c",)) is DECISION
    clock.time += 11
    assert cache.get(("c",)) is None
    assert (cache.hits, cache.misses) == (1, 3)


def test_a_key_tells_versions_texts_and_facts_apart() -> None:
    keys = {
        cache_key(version, text, facts)
        for version in "12"
        for text in ("a", "b", "x" * 9999, "x" * 9998)
        for facts in ((), (1,))
    }
    assert len(keys) == 16


def test_a_long_text_is_not_kept_in_the_key() -> None:
    assert all(len(str(part)) < 200 for part in cache_key("1", "词" * 60_000, ()))
