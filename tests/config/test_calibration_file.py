"""`routes/calibration.json` as a file: there and back, and what a broken one is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.calibration import CalibrationFile, EncoderCalibration, read_calibration, written
from gateway.config.loader import load
from gateway.errors import ConfigError, Problem
from gateway.settings import Settings

numbers = st.floats(-1, 1).map(lambda number: round(number, 4))
names = st.from_regex(r"[a-z][a-z0-9._/:-]{0,8}", fullmatch=True)
calibrations = st.builds(
    CalibrationFile,
    scoring=st.integers(1, 9),
    labelled=st.none() | st.just("ab12"),
    encoders=st.dictionaries(
        names | st.just("./models/多语 1"),
        st.builds(
            EncoderCalibration,
            utterances=st.just("00ff"),
            lines=st.integers(0, 99),
            kept=st.none() | st.floats(0, 1).map(lambda number: round(number, 4)),
            threshold=numbers,
            margin=numbers.map(abs),
            thresholds=st.dictionaries(names, numbers, max_size=3),
        ),
        max_size=2,
    ),
)


@given(calibrations)
def test_a_calibration_comes_back_as_it_was_written(calibration: CalibrationFile) -> None:
    problems: list[Problem] = []
    assert read_calibration("c.json", written(calibration).encode(), problems) == calibration
    assert problems == []


def test_the_text_does_not_depend_on_the_order_of_routes() -> None:
    def made(*routes: str) -> str:
        one = EncoderCalibration(utterances="x", threshold=0.5, margin=0.01, thresholds=dict.fromkeys(routes, 1 / 3))
        return written(CalibrationFile(scoring=1, encoders={"e": one}))

    assert made("a", "b") == made("b", "a")
    assert '        "a": 0.3333,\n' in made("a", "b")


BROKEN = {
    "not json at all: [": (1, "not valid JSON"),
    '{"scoring": 1,\n "encoders": {},\n}': (3, "not valid JSON"),
    "\ud800": (0, "not valid JSON"),
    "[" * 100_000: (0, "not valid JSON"),
    '{"scoring": 1,\n "encoders": {},\n "scoring": 2}': (3, "scoring"),
    '{"scoring": 1,\n "encoders": {\n  "minilm": {"utterances": "x",\n   "threshold": "high", "margin": 0.1}}}': (
        4,
        "must be a number",
    ),
    '{"scoring": 1,\n "encoders": {"m": {"utterances": "x", "threshold": 0.1, "margin": 0.1,\n "treshold": 1}}}': (
        3,
        "did you mean `threshold`?",
    ),
    '{"scoring": 1}': (1, "encoders"),
    "": (1, "not valid JSON"),
    "[]": (1, "mapping"),
    '{"scoring": 1, "encoders": {"m": {"utterances": "x", "threshold": NaN, "margin": 0.1}}}': (1, "threshold"),
    '{"scoring": 1, "encoders": {"m": {"utterances": "x", "threshold": true, "margin": 0.1}}}': (1, "must be a number"),
    '{"scoring": 1, "encoders": {"m": {"utterances": "x", "threshold": 150, "margin": 0.1}}}': (1, "at most 1"),
    '{"scoring": 1, "encoders": {"m": {"utterances": "x", "threshold": 0, "margin": -5}}}': (1, "at least 0"),
    '{"scoring": 1, "encoders": {"m": {"utterances": "x", "threshold": 0, "margin": 0,\n "thresholds": {"a": true}}}}': (
        2,
        "must be a number",
    ),
}


@pytest.mark.parametrize("text", BROKEN, ids=[f"{number}" for number in range(len(BROKEN))])
def test_a_broken_calibration_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "routes").mkdir()
    (tmp_path / "routes" / "calibration.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    (tmp_path / "gateway.yaml").write_text(
        "backends: {b: {provider: demo}}\nmodels: {m: {backends: [b]}}\nrouter: {default: m}\ntools: {plugins: []}\n"
    )
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "gateway.yaml", tmp_path / "routes", Settings())
    (problem,) = refused.value.problems
    line, words = BROKEN[text]
    assert problem.file.endswith("routes/calibration.json")
    assert problem.line == line
    assert words in problem.message
