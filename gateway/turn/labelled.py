"""Labelled lines: what somebody would ask, and the route it belongs to, decided as requests are.

Knows the form of a line and how to decide many of them. Does not know what is made of the decisions: a figure
(`routing/evaluation.py`), a threshold (`routing/calibration.py`) or a refusal (`gate.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.chat.codecs.chat_completions import decode_request
from gateway.chat.request import ChatRequest
from gateway.errors import ConfigError, InvalidRequest, Problem
from gateway.routing.conditions import UsedFacts
from gateway.routing.decision import Decision
from gateway.routing.evaluation import Line
from gateway.routing.facts import Facts
from gateway.routing.text import routing_text
from gateway.security.principal import Principal
from gateway.turn.prepare import Wishes, decide, facts_of
from gateway.turn.snapshot import Snapshot

# Lines whose texts are encoded together: at two texts a line, half of what a router keeps.
_TOGETHER: Final = 128


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    route: str | None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    tags: list[str] = []
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Labelled:
    """A line that was read.

    Attributes:
        number: counted from 1.
        line: the text that is routed on, and where it belongs.
        request, principal, wishes: what is asked, and by whom.
        used: the facts that routes ask for.
    """

    number: int
    line: Line
    request: ChatRequest
    principal: Principal
    wishes: Wishes
    used: UsedFacts

    @property
    def facts(self) -> Facts:
        """What the router may look at."""
        return facts_of(self.request, self.principal, self.wishes, self.used)


def read_labelled(file: str, content: bytes, snapshot: Snapshot) -> list[Labelled]:
    """Every line of a file.

    Args:
        file: its name to show.
        content: UTF-8, one JSON object a line; empty lines are passed over.
        snapshot: whose routes and keys the lines name.

    Raises:
        ConfigError: with every mistake; a file without lines is one.
    """
    problems: list[Problem] = []
    labelled: list[Labelled] = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not line.strip():
            continue
        try:
            labelled.append(_labelled(number, msgspec.json.decode(line, type=_Asked), snapshot))
        except (msgspec.DecodeError, InvalidRequest, UnicodeError, ValueError) as error:
            problems.append(Problem(file, number, str(error)))
    if not labelled and not problems:
        problems.append(Problem(file, 0, "there are no labelled lines"))
    if problems:
        raise ConfigError(tuple(problems))
    return labelled


async def decide_all(labelled: Sequence[Labelled], snapshot: Snapshot, *, explain: bool = False) -> list[Decision]:
    """The decision for each line, as for a request that comes alone, but encoded many at a time and without haste.

    `snapshot.router` is prepared. Gives the event loop back between lines.

    Raises:
        GatewayError: what a request like the line would be refused with.
    """
    decisions = []
    for start in range(0, len(labelled), _TOGETHER):
        some = labelled[start : start + _TOGETHER]
        await snapshot.router.read_ahead([each.facts for each in some])
        for each in some:
            decisions.append(await decide(each.request, each.principal, each.wishes, snapshot, explain=explain))
            await asyncio.sleep(0)
    return decisions


def _labelled(number: int, asked: _Asked, snapshot: Snapshot) -> Labelled:
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
    return Labelled(number, line, request, principal, Wishes(tags=frozenset(asked.tags)), snapshot.used)
