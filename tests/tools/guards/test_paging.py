from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tools.guards.kept import KEEP_S, KeptResults
from gateway.tools.guards.paging import page
from gateway.tools.guards.remembered import handles_in
from gateway.tools.result import success
from gateway.tools.spec import InvalidArguments
from tests.clocks import HandClock

HANDLE = "res_" + "0" * 20
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=400),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=12), inner, max_size=8),
    max_leaves=40,
)


def read_all(text: str, path: str, max_bytes: int) -> Any:
    """A place, page by page; each page is within the limit, and each brings something."""
    parts: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        made = page(text, {"path": path, "offset": offset}, max_bytes)
        assert len(success(made, max_bytes).content.encode()) <= max_bytes
        assert made["next_offset"] is None or made["next_offset"] > offset
        if "left_out" not in made:
            parts.append(made["part"])
        else:
            # A single item that is larger than a page: its own place says all of it.
            (inner,) = made["part"].values() if isinstance(made["part"], dict) else made["part"]
            assert inner is not None or made["left_out"]
            return None
        offset = made["next_offset"]
    if isinstance(parts[0], str):
        return "".join(parts)
    if isinstance(parts[0], dict):
        return {key: item for part in parts for key, item in part.items()}
    return [item for part in parts for item in part] if isinstance(parts[0], list) else parts[0]


@given(VALUES, st.sampled_from([512, 1024, 8192]))
@settings(max_examples=150, deadline=None)
def test_pages_joined_are_the_whole(value: Any, max_bytes: int) -> None:
    text = json.dumps({"ok": True, "result": value})
    read = read_all(text, "", max_bytes)
    assert read is None or read == value


def test_what_a_shortened_result_names_can_be_read_on_at_once() -> None:
    value = {"total": 300, "items": [{"id": n, "note": "x" * 60} for n in range(300)]}
    shown = success(value, 2048, lambda _: HANDLE)
    told = json.loads(shown.content)
    assert told["read_on"] == {"handle": HANDLE, "path": "items", "offset": len(told["result"]["items"])}
    assert len(shown.content.encode()) <= 2048
    assert shown.whole is not None
    made = page(shown.whole, told["read_on"], 2048)
    assert made["part"][0]["id"] == told["read_on"]["offset"]
    assert handles_in([shown.content]) == {HANDLE}


def test_places_are_found_whatever_their_keys_look_like() -> None:
    text = json.dumps({"ok": True, "result": {"a.b": {"c[0]": ["x", {"result": "y"}]}, "result": 1}})
    assert page(text, {"path": "a.b.c[0][1].result"}, 1024)["part"] == "y"
    assert page(text, {"path": "result"}, 1024)["part"] == 1
    assert page(text, {}, 1024)["of"] == 2
    assert page(json.dumps({"ok": True, "result": [1, 2]}), {"path": "result", "offset": 1}, 1024)["part"] == [2]
    with pytest.raises(InvalidArguments, match="no place `nowhere`"):
        page(text, {"path": "nowhere"}, 1024)


def test_whole_results_are_their_owner_s_for_a_while_and_within_a_size() -> None:
    clock = HandClock()
    kept = KeptResults(clock, max_chars=80)
    handle = kept.handle_of("a", "text")
    assert handle == kept.handle_of("a", "text") != kept.handle_of("b", "text")
    assert handle != KeptResults(clock).handle_of("a", "text"), "nobody can work it out"
    assert handles_in([f'"handle":"{handle}"', "res_"]) == {handle}
    kept.keep(handle, "a", "text")
    assert (kept.get(handle, "a"), kept.get(handle, "b")) == ("text", None)
    assert (kept.may_keep("x" * 10), kept.may_keep("x" * 11)) == (True, False)
    for number in range(9):
        kept.keep(f"res_{number}", "a", "x" * 10)
    assert kept.get(handle, "a") is None
    assert kept.get("res_8", "a") is not None
    clock.at += KEEP_S
    assert kept.get("res_8", "a") is None


def test_pages_of_an_object_hold_its_keys_too() -> None:
    value = {f"a long name of a member, number {number}": number for number in range(900)}
    text = json.dumps({"ok": True, "result": value})
    assert read_all(text, "", 2048) == value
    # A page that is too long would be shortened again, and never told.
    assert success(page(text, {}, 2048), 2048).whole is None
