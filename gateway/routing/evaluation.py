"""How well a router does on labelled lines: figures, confusions, and the utterances behind mistakes.

Pure: pairs of what was expected and what was decided in, figures out. Does not decide, and does not read files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from gateway.routing.decision import Candidate, Decision
from gateway.routing.likeness import NO_ROUTE


class Line(msgspec.Struct, frozen=True):
    """One labelled line. `route` is None where a text should fall to the default."""

    text: str
    route: str | None


class RouteFigures(msgspec.Struct, frozen=True):
    """One route: how many lines should go to it, and how well that works. None where there is nothing to divide by."""

    n: int
    precision: float | None
    recall: float | None


class Figures(msgspec.Struct, frozen=True):
    """The whole evaluation; shares in 0..1, None where a file has no lines of that kind.

    Attributes:
        n: lines.
        all: right over everything.
        in_scope: in-scope lines sent right, the threshold on.
        top1: the same with the threshold off: rules, else the most alike route.
        oos_recall: lines without a route that fell to the default.
        oos_f1: F1 of falling to the default.
        auroc: chance that an in-scope line's best score is above an out-of-scope line's.
        routes: by name.
        confusions: (expected, got, how often), most frequent first; None is the default.
        version: what decided.
    """

    n: int
    all: float
    in_scope: float | None
    top1: float | None
    oos_recall: float | None
    oos_f1: float | None
    auroc: float | None
    routes: dict[str, RouteFigures]
    confusions: list[tuple[str | None, str | None, int]]
    version: str


# A rule is surer than any likeness, which is at most 1.
_RULE_SCORE = 2.0


def evaluate(lines: Sequence[Line], decisions: Sequence[Decision]) -> Figures:
    """The figures of decisions made with `explain=True`, one per line.

    Raises:
        ValueError: there are no lines.
    """
    if not lines:
        raise ValueError("there is nothing to evaluate")
    pairs = list(zip(lines, decisions, strict=True))
    inside = [(line, decision) for line, decision in pairs if line.route is not None]
    outside = [(line, decision) for line, decision in pairs if line.route is None]
    fell = sum(decision.route is None for _, decision in pairs)
    rejected = sum(decision.route is None for _, decision in outside)
    precision, recall = _share(rejected, fell), _share(rejected, len(outside))
    wrong = Counter((line.route, decision.route) for line, decision in pairs if line.route != decision.route)
    return Figures(
        n=len(pairs),
        all=sum(line.route == decision.route for line, decision in pairs) / len(pairs),
        in_scope=_share(sum(line.route == decision.route for line, decision in inside), len(inside)),
        top1=_share(sum(line.route == _first(decision) for line, decision in inside), len(inside)),
        oos_recall=recall,
        oos_f1=None if recall is None else _f1(precision or 0.0, recall),
        auroc=_auroc([_score(d) for _, d in inside], [_score(d) for _, d in outside]),
        routes={name: _of_route(name, pairs) for name in sorted({line.route for line, _ in inside if line.route})},
        confusions=sorted(
            ((expected, got, count) for (expected, got), count in wrong.items()),
            key=lambda each: (-each[2], each[0] or "", each[1] or ""),
        ),
        version=decisions[0].version,
    )


def report(figures: Figures, lines: Sequence[Line], decisions: Sequence[Decision]) -> str:
    """The evaluation as Markdown, with the nearest utterances behind each mistake."""
    return "\n".join(_report(figures, lines, decisions)) + "\n"


def _report(figures: Figures, lines: Sequence[Line], decisions: Sequence[Decision]) -> Iterator[str]:
    yield f"# Routing evaluation, version {figures.version}\n"
    yield "| figure | value |\n| --- | ---: |"
    for name in ("n", "all", "in_scope", "top1", "oos_recall", "oos_f1", "auroc"):
        yield f"| {name} | {_shown(getattr(figures, name))} |"
    yield "\n## Routes\n\n| route | lines | precision | recall |\n| --- | ---: | ---: | ---: |"
    for route, each in figures.routes.items():
        yield f"| {route} | {each.n} | {_shown(each.precision)} | {_shown(each.recall)} |"
    yield "\n## Confusions\n\n| expected | got | lines |\n| --- | --- | ---: |"
    for expected, got, count in figures.confusions:
        yield f"| {expected or '(default)'} | {got or '(default)'} | {count} |"
    yield "\n## Mistakes\n"
    for line, decision in zip(lines, decisions, strict=True):
        if line.route == decision.route:
            continue
        yield f"- {_cell(line.text)}: expected {line.route or '(default)'}, got {decision.route or '(default)'}"
        yield f"  by {decision.strategy} ({decision.reason})"
        for candidate in _alike(decision)[:3]:
            nearest = f", nearest “{_cell(candidate.nearest)}”" if candidate.nearest else ""
            yield f"  - {candidate.route}: {_shown(candidate.score)}{nearest}"


def _of_route(name: str, pairs: Sequence[tuple[Line, Decision]]) -> RouteFigures:
    expected = sum(line.route == name for line, _ in pairs)
    got = sum(decision.route == name for _, decision in pairs)
    right = sum(line.route == decision.route == name for line, decision in pairs)
    return RouteFigures(expected, _share(right, got), _share(right, expected))


def _alike(decision: Decision) -> list[Candidate]:
    scored = [c for c in decision.candidates if c.score is not None and c.verdict != "barred" and c.route != NO_ROUTE]
    return sorted(scored, key=lambda candidate: (-(candidate.score or 0.0), candidate.route))


def _first(decision: Decision) -> str | None:
    if decision.strategy == "rule" or decision.route is not None:
        return decision.route
    alike = _alike(decision)
    return alike[0].route if alike else None


def _score(decision: Decision) -> float:
    if decision.strategy == "rule":
        return _RULE_SCORE
    alike = _alike(decision)
    return alike[0].score or 0.0 if alike else -1.0


def _auroc(inside: Sequence[float], outside: Sequence[float]) -> float | None:
    """The Mann-Whitney statistic; ties count half."""
    if not inside or not outside:
        return None
    ranked = sorted([(score, True) for score in inside] + [(score, False) for score in outside])
    total = 0.0
    position = 0
    while position < len(ranked):
        end = position
        while end < len(ranked) and ranked[end][0] == ranked[position][0]:
            end += 1
        middle = (position + 1 + end) / 2
        total += middle * sum(is_inside for _, is_inside in ranked[position:end])
        position = end
    n, m = len(inside), len(outside)
    return (total - n * (n + 1) / 2) / (n * m)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _shown(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"


def _cell(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= 160 else flat[:159] + "…"
