"""The gate: labelled lines that a version has to send right before it may decide for anybody.

Knows what a refused version is told. Does not know when it is asked (`building.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from gateway.errors import ConfigError, Problem
from gateway.routing.decision import Candidate, Decision
from gateway.turn.labelled import Labelled, decide_all, read_labelled
from gateway.turn.snapshot import Snapshot

# More mistakes than anybody reads; a reload's answer stays small.
_SHOWN: Final = 100
_SHOWN_CHARS: Final = 80


async def pass_gate(file: str, content: bytes, snapshot: Snapshot) -> None:
    """Let a version pass that sends every line where it belongs.

    Args:
        file: the name to show of the lines' file.
        content: the file.
        snapshot: the version, its router prepared.

    Raises:
        ConfigError: a problem for each line that is wrong or goes elsewhere.
        GatewayError: a line cannot be decided, for example because a hook fails.
    """
    # In a thread: thousands of lines take a tenth of a second.
    labelled = await asyncio.to_thread(read_labelled, file, content, snapshot)
    decisions = await decide_all(labelled, snapshot)
    wrong = [each for each, decision in zip(labelled, decisions, strict=True) if decision.route != each.line.route]
    shown = wrong[:_SHOWN]
    explained = await decide_all(shown, snapshot, explain=True)
    problems = _problems(file, shown, explained)
    if len(wrong) > len(shown):
        problems.append(Problem(file, wrong[_SHOWN].number, f"and {len(wrong) - len(shown)} more lines go elsewhere"))
    if problems:
        raise ConfigError(tuple(problems))


def _problems(file: str, labelled: Sequence[Labelled], decisions: Sequence[Decision]) -> list[Problem]:
    return [
        Problem(file, each.number, _told(each, decision)) for each, decision in zip(labelled, decisions, strict=True)
    ]


def _told(each: Labelled, decision: Decision) -> str:
    text = " ".join(each.line.text.split())
    if len(text) > _SHOWN_CHARS:
        text = f"{text[: _SHOWN_CHARS - 1]}…"
    parts = [
        f"{text!r} has to go to {_route(each.line.route)}, and goes to {_route(decision.route)} ({decision.reason})"
    ]
    wanted = next((candidate for candidate in decision.candidates if candidate.route == each.line.route), None)
    best = next((candidate for candidate in decision.candidates if candidate.score is not None), None)
    parts += [_alike(candidate) for candidate in dict.fromkeys((best, wanted)) if candidate is not None]
    return "; ".join(part for part in parts if part)


def _alike(candidate: Candidate) -> str:
    if candidate.score is None:
        return f"`{candidate.route}`: {candidate.verdict}"
    needed = "" if candidate.threshold is None else f" of {candidate.threshold:.3f}"
    return (
        f"`{candidate.route}`: {candidate.verdict}, score {candidate.score:.3f}{needed}, nearest {candidate.nearest!r}"
    )


def _route(name: str | None) -> str:
    return f"`{name}`" if name else "the default"
