"""`hermes-gateway runs` as it is typed; what it does with runs is tried by real processes."""

from __future__ import annotations

import pytest

from gateway.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show"], "take one"),
        (["retry"], "take one"),
        (["submit"], "a type of runs"),
        (["list", "run_1"], "takes no ID"),
        (["--limit", "0"], "expected 1 to 100"),
        (["submit", "reports", "--input", "{month: 3}"], "--input is no JSON"),
    ],
)
def test_what_is_missing_or_too_much_is_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", *words]) == 2
    assert said in capsys.readouterr().err
