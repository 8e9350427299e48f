from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gateway.routing.calibration import NOWHERE, Calibration, Lines, calibrate, fit, kept
from gateway.routing.scoring import Judged, Scorer
from tests.routing.test_scoring import cloud


def judged(heights: list[float], routes: int = 4, strange: float = -1.0) -> Judged:
    """Utterances of all routes in turn that score as told on their own route and 0 elsewhere."""
    owner = np.arange(len(heights)) % routes
    scores = np.zeros((len(heights), routes), np.float32)
    scores[np.arange(len(heights)), owner] = heights
    return Judged(owner, scores, np.full(len(heights), strange, np.float32))


def test_thresholds_keep_ninety_five_of_a_hundred_utterances() -> None:
    random = np.random.default_rng(1)
    seen = judged(list(0.6 + 0.1 * random.normal(size=4000)), strange=0.4)
    thresholds, threshold, margin = calibrate(seen, -1)
    assert kept(seen, thresholds, margin) == pytest.approx(0.95, abs=0.01)
    assert thresholds == pytest.approx(np.full(4, threshold), abs=0.02)


def test_a_route_that_scores_lower_gets_a_lower_threshold() -> None:
    heights = [0.6, 0.6, 0.6, 0.4] * 50
    thresholds, _, _ = calibrate(judged([height + 0.001 * n for n, height in enumerate(heights)]), -1)
    assert thresholds[3] < thresholds[:3].min() - 0.1
    few, _, _ = calibrate(judged([height + 0.001 * n for n, height in enumerate(heights[:8])]), -1)
    # Two utterances say less about a route than fifty.
    assert few[:3].min() - few[3] < (thresholds[:3].min() - thresholds[3]) / 2


def test_a_threshold_is_not_above_half_way_to_what_does_not_belong() -> None:
    _, threshold, _ = calibrate(judged([0.9] * 40, strange=0.1), -1)
    assert threshold == pytest.approx(0.5, abs=1e-3)


def test_nothing_judged_means_a_guess() -> None:
    nothing = Judged(np.empty(0, np.intp), np.empty((0, 3), np.float32), np.empty(0, np.float32))
    thresholds, threshold, margin = calibrate(nothing, 0.25)
    assert (list(thresholds), threshold) == ([0.4] * 3, 0.4)
    assert 0 < margin < 0.05
    assert kept(nothing, thresholds, margin) is None


def test_labelled_lines_move_the_threshold_between_friends_and_strangers() -> None:
    seen = judged([0.2 + 0.005 * n for n in range(100)])
    _, alone, _ = calibrate(seen, -1)
    owner = np.array([0] * 40 + [NOWHERE] * 10)
    scores = np.zeros((50, 4), np.float32)
    scores[:, 0] = [0.7] * 40 + [0.5] * 10
    _, told, _ = calibrate(seen, -1, (owner, scores))
    assert alone < 0.3
    assert 0.5 < told <= 0.7
    # Without strangers, lines can only say that the threshold is too high.
    _, kinder, _ = calibrate(seen, -1, (owner[:40], np.full((40, 4), [0.1, 0, 0, 0], np.float32)))
    assert kinder <= 0.1
    _, same, _ = calibrate(seen, -1, (owner[:40], scores[:40]))
    assert same == alone


def test_a_few_labelled_lines_do_not_outweigh_the_utterances() -> None:
    seen = judged([0.2 + 0.005 * n for n in range(100)])
    _, alone, margin = calibrate(seen, -1)
    scores = np.zeros((3, 4), np.float32)
    scores[:, 0] = [0.8, 0.9, 0.6]
    thresholds, told, _ = calibrate(seen, -1, (np.array([0, 0, NOWHERE]), scores))
    assert told == alone
    held = kept(seen, thresholds, margin)
    assert held is not None
    assert held > 0.8
    # A friend and a stranger, both far below, speak neither for nor against it.
    scores[:, 0] = [-0.6, -0.5, -0.5]
    scores[:, 1:] = -0.9
    _, same, _ = calibrate(seen, -1, (np.array([0, NOWHERE]), scores[:2]))
    assert same == alone
    scores[:, 0] = [0.8, 0.9, 0.6]
    # Many of the same weigh more than the utterances.
    _, surer, _ = calibrate(seen, -1, (np.array([0, 0, NOWHERE] * 50), np.tile(scores, (50, 1))))
    assert 0.6 <= surer <= 0.8


def test_a_calibration_survives_json() -> None:
    texts, vectors, owner = cloud(4, 8)
    names = ["a", "b", "c", "d"]
    made = fit(names, Scorer(texts, vectors, np.asarray(owner), 4), key="abc")
    assert set(made.thresholds) == set(names)
    assert made.kept is not None
    assert made.kept > 0.8
    assert msgspec.json.decode(msgspec.json.encode(made), type=Calibration) == made


def test_lines_are_scored_like_questions() -> None:
    texts, vectors, owner = cloud(4, 8)
    strangers = cloud(6, 5, seed=11)
    lines = Lines(
        [*texts, *strangers[0]], np.concatenate([vectors, strangers[1]]), [*(f"r{n}" for n in owner), *[None] * 30]
    )
    names = [f"r{n}" for n in range(4)]
    made = fit(names, Scorer(texts, vectors, np.asarray(owner), 4), lines)
    scores = Scorer(texts, vectors, np.asarray(owner), 4).scores(lines.texts, lines.vectors)
    reached = scores.max(axis=1) >= np.asarray([made.thresholds[names[best]] for best in scores.argmax(axis=1)])
    assert reached[:32].mean() > 0.95
    assert reached[32:].mean() < 0.05
