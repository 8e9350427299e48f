"""`hermes-gateway eval FILE.jsonl`: how well the router does on labelled lines, by the same code as the live path."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from gateway.building import Builder
from gateway.chat.codecs.chat_completions import decode_request
from gateway.chat.request import ChatRequest
from gateway.clock import SystemClock
from gateway.commands.files import paths_of, settings_of, tell
from gateway.errors import ConfigError, InvalidRequest, Problem
from gateway.routing.decision import Decision
from gateway.routing.evaluation import Line, evaluate, report
from gateway.routing.text import routing_text
from gateway.security.principal import Principal
from gateway.settings import Settings
from gateway.turn.prepare import Wishes, decide
from gateway.turn.snapshot import Snapshot


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    route: str | None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    tags: list[str] = []
    key: str | None = None


class _Labelled(msgspec.Struct, frozen=True):
    """A line that was read: what to ask, for whom, and what should come of it."""

    request: ChatRequest
    line: Line
    principal: Principal
    wishes: Wishes


def run(arguments: argparse.Namespace) -> int:
    """Evaluate; 1 where `all` is below `--min-accuracy`, or the file has mistakes."""
    try:
        settings = settings_of()
        lines, decisions = asyncio.run(_decide_all(arguments, settings))
    except ConfigError as error:
        return tell(error)
    figures = evaluate(lines, decisions)
    if arguments.report is not None:
        arguments.report.write_text(report(figures, lines, decisions), encoding="utf-8")
    if arguments.json:
        print(msgspec.json.encode(figures).decode())
    elif arguments.report is None:
        print(report(figures, lines, decisions), end="")
    if arguments.min_accuracy is not None and figures.all < arguments.min_accuracy:
        print(f"all is {figures.all:.4f}, below --min-accuracy {arguments.min_accuracy}", file=sys.stderr)
        return 1
    return 0


async def _decide_all(arguments: argparse.Namespace, settings: Settings) -> tuple[list[Line], list[Decision]]:
    builder = Builder(*paths_of(arguments, settings), settings, SystemClock())
    try:
        snapshot = await builder.first()
        try:
            labelled = _read(arguments.file, snapshot)
            await snapshot.router.prepare()
            decisions = [
                await decide(each.request, each.principal, each.wishes, snapshot, explain=True) for each in labelled
            ]
            return [each.line for each in labelled], decisions
        finally:
            await builder.dismiss(snapshot)
    finally:
        await builder.close()


def _read(file: Path, snapshot: Snapshot) -> list[_Labelled]:
    """Every line of the file. Raises `ConfigError` with every mistake."""
    problems: list[Problem] = []
    labelled: list[_Labelled] = []
    try:
        texts = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError((Problem(str(file), 0, f"cannot be read: {error}"),)) from error
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            labelled.append(_labelled(msgspec.json.decode(text, type=_Asked), snapshot))
        except (msgspec.DecodeError, InvalidRequest, ValueError) as error:
            problems.append(Problem(str(file), number, str(error)))
    if not labelled and not problems:
        problems.append(Problem(str(file), 0, "there are no lines to evaluate"))
    if problems:
        raise ConfigError(tuple(problems))
    return labelled


def _labelled(asked: _Asked, snapshot: Snapshot) -> _Labelled:
    if (asked.text is None) == (asked.messages is None):
        raise ValueError("a line needs either `text` or `messages`")
    if asked.route is not None and asked.route not in snapshot.routes:
        raise ValueError(f"there is no route `{asked.route}`")
    messages = asked.messages or [{"role": "user", "content": asked.text}]
    request = decode_request(msgspec.json.encode({"model": snapshot.config.router.model, "messages": messages}))
    principal: Principal | None = Principal("local")
    if asked.key is not None:
        principal = snapshot.keys.named(asked.key)
    if principal is None:
        raise ValueError(f"there is no key `{asked.key}` under keys.static")
    line = Line(routing_text(request.messages), asked.route)
    return _Labelled(request, line, principal, Wishes(tags=frozenset(asked.tags)))
