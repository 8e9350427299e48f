"""`hermes-gateway calibrate`: what it writes, when it says that it is stale, and that others say so too."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gateway.cli import main
from tests.serving import write_route

Run = Callable[..., tuple[int, str]]

PARCELS = ["where is my parcel", "track my package", "has my order been shipped", "when will it be delivered"]
SONGS = ["play some jazz", "put on a song", "start my playlist", "turn the music up"]
FILE = Path("routes/calibration.json")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on two routes; its exit code and everything it said."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GATEWAY_")]:
        monkeypatch.delenv(name)
    config = {
        "backends": {"b": {"provider": "demo"}},
        "models": {"m": {"backends": ["b"]}},
        "router": {"default": "m", "semantic": {"encoder": "minilm"}},
        "tools": {"plugins": []},
    }
    Path("gateway.yaml").write_text(yaml.safe_dump(config))
    Path("routes").mkdir()
    write_route(tmp_path, "orders", {"model": "m", "keywords": ["order status"], "utterances": PARCELS})
    write_route(tmp_path, "music", {"model": "m", "utterances": SONGS})

    def command(*words: str) -> tuple[int, str]:
        code = main([words[0], "--config", "gateway.yaml", "--routes", "routes", *words[1:]])
        said = capsys.readouterr()
        return code, said.out + said.err

    return command


def write_lines(name: str, *lines: tuple[str, str | None]) -> str:
    Path(name).write_text("".join(json.dumps({"text": text, "route": route}) + "\n" for text, route in lines))
    return name


def test_it_is_missing_then_fresh_then_stale(run: Run, tmp_path: Path) -> None:
    assert run("calibrate", "--check") == (1, "routes/calibration.json: there is no such file\n")
    assert not FILE.exists()
    code, said = run("calibrate")
    assert code == 0
    assert said.startswith("Wrote routes/calibration.json.\nminilm: threshold ")
    first = FILE.read_bytes()
    written = json.loads(first)["encoders"]["minilm"]
    assert set(written["thresholds"]) == {"music", "orders"}
    assert run("calibrate", "--check") == (0, "routes/calibration.json: fresh\n")
    assert run("check", "--strict")[0] == 0
    assert run("calibrate")[0] == 0
    assert FILE.read_bytes() == first
    assert [path.name for path in sorted(Path("routes").iterdir())] == ["calibration.json", "music.yaml", "orders.yaml"]
    write_route(tmp_path, "music", {"model": "m", "utterances": [*SONGS, "skip this track"]})
    code, said = run("calibrate", "--check")
    assert (code, said) == (1, "routes/calibration.json: stale: the utterances that 'minilm' reads have changed\n")
    code, said = run("check", "--format", "json")
    assert code == 0
    (warning,) = [problem for problem in json.loads(said) if problem["file"] == "routes/calibration.json"]
    assert warning["severity"] == "warning"
    assert "the calibration is stale and not used" in warning["message"]
    assert run("check", "--strict")[0] == 1
    assert "from the utterances: the calibration is stale" in run("explain", "play a song")[1]


def test_labelled_lines_count_and_are_remembered(run: Run) -> None:
    assert run("calibrate")[0] == 0
    alone = json.loads(FILE.read_text())
    strangers = [(f"where is my {word} of mind", None) for word in ("peace", "presence", "piece", "state", "frame")]
    friends = [(f"where has my {word} gone", "orders") for word in ("parcel", "package", "order")]
    lines = write_lines("lines.jsonl", *strangers, *friends, ("order status", "music"))
    code, said = run("calibrate", "--file", lines)
    assert code == 0
    assert "8 labelled lines" in said, "the ninth is a rule's"
    told = json.loads(FILE.read_text())
    assert (alone["labelled"], told["encoders"]["minilm"]["lines"]) == (None, 8)
    assert told["encoders"]["minilm"]["threshold"] != alone["encoders"]["minilm"]["threshold"]
    assert told["encoders"]["minilm"]["utterances"] == alone["encoders"]["minilm"]["utterances"]
    shuffled = write_lines("shuffled.jsonl", *reversed([*strangers, *friends, ("order status", "music")]))
    for file in (lines, shuffled):
        assert run("calibrate", "--check", "--file", file)[0] == 0
    other = write_lines("other.jsonl", *friends)
    code, said = run("calibrate", "--check", "--file", other)
    assert (code, said) == (1, "routes/calibration.json: stale: it was fitted on other labelled lines\n")


def test_lines_and_files_that_cannot_be_used_are_named(run: Run) -> None:
    lines = write_lines("lines.jsonl", ("a", None), ("b", "nowhere"))
    assert run("calibrate", "--file", lines) == (1, "lines.jsonl:2: there is no route `nowhere`\n")
    assert run("calibrate", "--file", "missing.jsonl")[0] == 1
    FILE.write_text('{"scoring": 1,\n "encoders": {"minilm": {}}}')
    for command in ("calibrate", "check"):
        code, said = run(command)
        assert code == 1
        assert "routes/calibration.json:2: `encoders.minilm.threshold` is missing\n" in said


def test_a_gate_that_does_not_hold_hinders_nobody_who_mends_it(run: Run) -> None:
    write_lines("routes/eval.jsonl", ("play some jazz", "orders"))
    assert run("check")[0] == 1
    for words in (("calibrate",), ("explain", "play some jazz"), ("eval", "routes/eval.jsonl")):
        assert run(*words)[0] == 0, words


def test_nothing_to_calibrate_is_said(run: Run, tmp_path: Path) -> None:
    Path("routes/music.yaml").unlink()
    write_route(tmp_path, "orders", {"model": "m", "keywords": ["order status"]})
    code, said = run("calibrate")
    assert code == 1
    assert said.startswith("There is nothing to calibrate")
    assert not FILE.exists()
    assert run("calibrate", "--check")[0] == 0
