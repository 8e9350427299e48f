"""The bench decides all questions at once; what it prints must be what the router would do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.routing import Found, auroc, fixed, hermes, linear, measures
from bench.routing_data import Sample
from gateway.routing.index import Index
from tests.routing.test_scoring import cloud


def sample(routes: int, each: int, seed: int, known: int) -> Sample:
    texts, vectors, owner = cloud(routes, each, seed=seed)
    return Sample(tuple(texts), tuple(f"r{n}" if n < known else None for n in owner), vectors)


@pytest.mark.parametrize(("routes", "each"), [(3, 2), (6, 8)])
def test_the_bench_decides_as_the_index_does(routes: int, each: int) -> None:
    utterances = sample(routes, each, 7, routes)
    questions = sample(routes + 3, 6, 7, routes)
    index = Index(
        [(intent or "", text) for intent, text in zip(utterances.intents, utterances.texts, strict=True)],
        utterances.vectors,
    )
    found = hermes(utterances, questions)
    outcomes = [index.judge(text, vector) for text, vector in zip(questions.texts, questions.vectors, strict=True)]
    assert [best if taken else None for best, taken in zip(found.best, found.taken, strict=True)] == [
        outcome.route for outcome in outcomes
    ]
    assert any(found.taken)
    assert not all(found.taken)


def test_measures_are_shares_of_the_right_questions() -> None:
    questions = Sample(("1", "2", "3", "4"), ("a", "a", "b", None), np.zeros((4, 2), np.float32))
    found = Found(("a", "b", "b", "a"), [True, True, False, False], np.asarray([0.9, 0.8, 0.3, 0.1], np.float32))
    got = {name: value for name, (value, _) in measures(questions, found).items()}
    assert got["top-1"] == pytest.approx(2 / 3)
    assert got["in-scope"] == pytest.approx(1 / 3)
    assert got["all"] == pytest.approx(1 / 2)
    assert got["OOS recall"] == 1
    assert got["OOS F1"] == pytest.approx(2 / 3)
    assert got["AUROC"] == 1


def test_auroc_counts_equals_half() -> None:
    assert auroc(np.asarray([1.0, 2.0], np.float32), np.asarray([1.0, 0.0], np.float32)) == pytest.approx(0.875)


def test_the_linear_reference_picks_the_side_a_question_is_on() -> None:
    utterances, questions = sample(3, 8, 7, 3), sample(3, 6, 7, 3)
    found = linear(utterances, questions)
    assert all(found.taken)
    right = [best == intent for best, intent in zip(found.best, questions.intents, strict=True)]
    assert sum(right) > 0.8 * len(right)


def test_the_fixed_reference_takes_the_nearest_utterance() -> None:
    utterances = Sample(("x", "y"), ("a", "b"), np.eye(2, dtype=np.float32))
    questions = Sample(("1", "2"), ("a", "b"), np.asarray([[0.9, 0.4], [0.6, 0.8]], np.float32))
    found = fixed(utterances, questions)
    assert (found.best, list(found.taken)) == (("a", "b"), [True, False])


def test_the_bench_says_when_the_sets_are_not_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.routing", "--data", str(tmp_path), "--vectors", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.returncode == 2
    assert "nothing to measure" in done.stdout


def test_linear_algebra_stays_on_one_thread() -> None:
    code = "import os; import gateway.routing; print(os.environ['OPENBLAS_NUM_THREADS'])"
    environment = {"PATH": "/usr/bin:/bin"}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert found.stdout.strip() == "1"
