from __future__ import annotations

from dataclasses import replace

from gateway.tools.guards.cache import ResultCache
from gateway.tools.spec import ToolContext
from tests.clocks import HandClock
from tests.tools.recording_provider import spec

READ = replace(spec("read"), cache_ttl_s=60)
CALLER = ToolContext("u", "k", None, None, "0" * 32, "i")


def test_what_is_kept_is_found_by_the_same_call_until_its_time_is_over() -> None:
    clock = HandClock()
    cache = ResultCache(clock)
    key = cache.key(READ, {"a": 1, "b": [2]}, CALLER, "k/u")
    assert key is not None
    assert key == cache.key(READ, {"b": [2], "a": 1}, replace(CALLER, trace_id="1" * 32, idempotency_key="j"), "k/u")
    cache.keep(key, "1", 60)
    assert cache.get(key) == "1"
    clock.at += 60
    assert cache.get(key) is None


def test_every_part_of_the_caller_counts_unless_the_tool_says_that_none_does() -> None:
    """B038."""
    cache = ResultCache(HandClock())
    others = [
        (replace(CALLER, user="v"), "k/v"),
        (replace(CALLER, key="l"), "l/u"),
        (replace(CALLER, team="t"), "k/u"),
        (replace(CALLER, session="s"), "k/u"),
        (replace(CALLER, headers={"x-tenant": "t"}), "k/u"),
    ]
    keys = {cache.key(READ, {}, context, owner) for context, owner in [(CALLER, "k/u"), *others]}
    assert len(keys) == 6
    shared = replace(READ, shared_cache=True)
    assert len({cache.key(shared, {}, context, owner) for context, owner in [(CALLER, "k/u"), *others]}) == 1


def test_another_version_of_the_tool_and_other_arguments_are_other_calls() -> None:
    """B036, B038."""
    cache = ResultCache(HandClock())
    specs = [READ, replace(READ, spec_hash="other"), replace(READ, name="other")]
    keys = {cache.key(each, {"n": n}, CALLER, "k") for each in specs for n in (1, "1", None)}
    assert len(keys) == 9


def test_writing_tools_and_those_that_do_not_ask_for_it_have_no_key() -> None:
    cache = ResultCache(HandClock())
    assert cache.key(replace(READ, writes=True), {}, CALLER, "k") is None
    assert cache.key(spec("plain"), {}, CALLER, "k") is None


def test_what_was_used_longest_ago_goes_first_and_the_largest_are_not_kept() -> None:
    cache = ResultCache(HandClock(), max_chars=160)
    for number in range(16):
        cache.keep(b"%d" % number, "x" * 10, 60)
    assert cache.get(b"0") is not None
    cache.keep(b"new", "x" * 10, 60)
    assert (cache.get(b"0") is None, cache.get(b"1") is None) == (False, True)
    cache.keep(b"large", "x" * 11, 60)
    assert cache.get(b"large") is None
