"""Patterns that wait until they are needed."""

from __future__ import annotations

import re

import pytest

from gateway.late import late


def test_a_late_pattern_does_what_the_pattern_does() -> None:
    pattern = late(r"(a+)b", re.IGNORECASE)
    found = pattern.search("xAAB")
    assert found is not None
    assert found[1] == "AA"
    assert (pattern.pattern, pattern.groups, pattern.sub("-", "ab Ab")) == (r"(a+)b", 1, "- -")


def test_it_is_compiled_when_it_is_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_now = re.compile

    def counting(text: str, flags: int = 0) -> re.Pattern[str]:
        compiled.append(text)
        return compile_now(text, flags)

    monkeypatch.setattr(re, "compile", counting)
    pattern = late("once")
    assert compiled == []
    assert pattern.match("once")
    assert pattern.match("once")
    assert compiled == ["once"]


def test_a_mistake_is_told_at_the_first_use() -> None:
    pattern = late("(")
    with pytest.raises(re.error):
        pattern.match("x")
