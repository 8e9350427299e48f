"""A version's warnings, with their places in the files.

Knows which looks there are (`lint.py`, `strays.py`) and where a finding stands. Does not know who prints them.
"""

from __future__ import annotations

import asyncio

from gateway.config.bundle import Bundle
from gateway.errors import Problem
from gateway.routing.composite import CompositeRouter
from gateway.routing.likeness import NO_ROUTE
from gateway.routing.lint import Finding, lint

_SHOWN_CHARS = 80


async def warnings_of(bundle: Bundle, router: CompositeRouter, *, offline: bool = False) -> tuple[Problem, ...]:
    """What is probably not meant in routes without mistakes.

    Args:
        bundle: the files.
        router: of the same files.
        offline: whether an encoder that cannot be asked is a warning alone.
    """
    await router.prepare()
    findings = await asyncio.to_thread(_findings, bundle)
    problems = [_problem(bundle, finding) for finding in findings]
    if router.failure is not None:
        message = f"utterances cannot be compared: {router.failure}"
        problems.append(bundle.problem(("router", "semantic"), message, "warning" if offline else "error"))
    return tuple(problems + await _by_meaning(bundle, router))


def _findings(bundle: Bundle) -> list[Finding]:
    config = bundle.config
    keys = [frozenset(key.routes) for key in config.keys.static.values() if key.routes is not None]
    return lint(bundle.routes, config.router.semantic.none, router_model=config.router.model, keys=keys)


def _problem(bundle: Bundle, finding: Finding) -> Problem:
    message = finding.message
    if finding.see is not None:
        # Only for its file and line.
        other = bundle.route_problem(*finding.see, "")
        message = f"{message} ({other.file}:{other.line})"
    if finding.route is None:
        return bundle.problem(finding.path, message, "warning")
    return bundle.route_problem(finding.route, finding.path, message, "warning")


async def _by_meaning(bundle: Bundle, router: CompositeRouter) -> list[Problem]:
    places = {
        (route.route, text): index
        for route in bundle.routes
        for index, text in reversed(list(enumerate(route.utterances)))
    }
    problems = []
    for name, text in router.unread():
        message = f"no encoder reads the utterance {_shown(text)}: it counts for nothing"
        problems.append(bundle.route_problem(name, ("utterances", places[name, text]), message, "warning"))
    for stray in await router.strays():
        path = ("utterances", places[stray.route, stray.utterance])
        where = "`router.semantic.none`" if stray.other == NO_ROUTE else f"route `{stray.other}`"
        message = (
            f"utterance {_shown(stray.utterance)} is more like {where} ({stray.other_score:.2f}) than the rest of its own "
            f"({stray.own_score:.2f}); nearest there: {_shown(stray.nearest)}"
        )
        problems.append(bundle.route_problem(stray.route, path, message, "warning"))
    return problems


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= _SHOWN_CHARS else f"{flat[: _SHOWN_CHARS - 1]}…")
