"""Decides which offered tools a question asks for, and with which arguments.

Pure. A question is cut into parts; each part goes to the tool that its words and values speak for most. Knows nothing of
results: what follows from them is `chaining.py`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.backends.demo.arguments import Filling, Scope, fill
from gateway.backends.demo.days import DAY_WORDS
from gateway.backends.demo.lexicon import ACTIONS, GENERIC, IMPLIED, TOPICS
from gateway.backends.demo.request import OfferedTool
from gateway.backends.demo.slots import Slot
from gateway.backends.demo.value import Value
from gateway.backends.demo.values import find_values
from gateway.backends.demo.words import concepts, normalise

_SEPARATOR: Final = re.compile(
    r"[?!;\n]+|\.\s|[,:]\s|\s、\s|\b(?:and|then|also|as well as|plus)\b|以及|还有|并且|然后|另外|顺便|和|与|再(?=[查算看搜])",
    re.IGNORECASE,
)
# More parts than this in one question are not parts of a question.
_MOST_PARTS: Final = 24
_ATOMS: Final = frozenset({"expression", "url", "path", "email", "quoted", "date"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call to make."""

    tool: str
    arguments: dict[str, Any]

    @property
    def key(self) -> str:
        """The same for calls that ask for the same."""
        return call_key(self.tool, self.arguments)


def call_key(tool: str, arguments: Any) -> str:
    """A call's identity: tool and arguments, whatever their order."""
    return tool + " " + json.dumps(arguments, sort_keys=True, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class Understanding:
    """What a question asks for.

    Attributes:
        calls: what to call, in the question's order, without repetitions.
        missing: when nothing can be called: the tool that was meant and what it lacks.
        left: parts of the question that ask for something no tool does.
    """

    calls: tuple[Wanted, ...]
    missing: tuple[OfferedTool, tuple[Slot, ...]] | None = None
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Match:
    tool: OfferedTool
    score: float
    by_name: float
    filling: Filling


def understand(question: str, tools: Sequence[OfferedTool], earlier: str = "") -> Understanding:
    """What to call for `question`. `earlier` is the question before it, which "and in Rome?" goes on from."""
    text = normalise(question)
    values = find_values(text)
    found = _by_parts(text, values, tools)
    if found.calls or found.missing or not earlier or not values:
        return found
    scope = Scope(text, values)
    matches = _matches(scope, tools, concepts(text) | concepts(normalise(earlier)))
    best = next((match for match in matches if match.filling.calls and match.filling.strength > 0), None)
    return Understanding(_calls([best])) if best else found


def best_guess(question: str, tools: Sequence[OfferedTool]) -> tuple[OfferedTool, Filling]:
    """The tool to call when one has to be called: the likeliest, with what was found for it."""
    text = normalise(question)
    scope = Scope(text, find_values(text))
    about = concepts(text)
    ranked = [(_score(tool, about, fill(tool, scope, tools)), -index) for index, tool in enumerate(tools)]
    (_, _), place = max(ranked)
    return tools[-place], fill(tools[-place], scope, tools)


def _by_parts(text: str, values: tuple[Value, ...], tools: Sequence[OfferedTool]) -> Understanding:
    groups: list[tuple[int, int, OfferedTool | None]] = []
    lacking: list[_Match] = []
    left: list[str] = []
    for start, end in itertools.islice(_parts(text, values), _MOST_PARTS):
        inside = _within(values, start, end)
        part = text[start:end]
        scope = Scope(part, inside, tuple(v for v in values if v not in inside))
        matches = _matches(scope, tools, concepts(part))
        best = next((match for match in matches if match.filling.calls), None)
        if best is None:
            lacking += matches
            if not matches and _asks_for_more(part, inside, tools):
                left.append(part.strip())
        tool = best.tool if best else None
        if groups and (tool is None or groups[-1][2] is None):
            begin, _, before = groups.pop()
            groups.append((begin, end, tool or before))
        else:
            groups.append((start, end, tool))
    calls: list[Wanted] = []
    for start, end, tool in groups:
        if tool is not None:
            inside = _within(values, start, end)
            filling = fill(tool, Scope(text[start:end], inside, tuple(v for v in values if v not in inside)), tools)
            calls += (Wanted(tool.name, arguments) for arguments in filling.calls)
    unique = tuple({call.key: call for call in calls}.values())
    if unique or not lacking:
        return Understanding(unique, left=tuple(left))
    meant = max(lacking, key=lambda match: (match.by_name, match.score))
    producer = _producer(meant, Scope(text, values), tools)
    if producer:
        return Understanding(producer)
    return Understanding((), (meant.tool, meant.filling.missing) if meant.by_name >= 3 else None)


def _asks_for_more(part: str, values: tuple[Value, ...], tools: Sequence[OfferedTool]) -> bool:
    """Whether a part that no tool took asks for something: a value, or a topic, that only another tool could use."""
    if any(value.kind in ("expression", "url", "email") for value in values):
        return True
    topics = concepts(part) & TOPICS
    return bool(topics) and not any(topics & (tool.title | tool.purpose) for tool in tools)


def _producer(meant: _Match, scope: Scope, tools: Sequence[OfferedTool]) -> tuple[Wanted, ...]:
    """Calls that may bring what the tool that was meant lacks: "orders of a@b.c" needs the user first."""
    needed = frozenset().union(*(concepts(slot.name) for slot in meant.filling.missing)) - {"id", "no"}
    for tool in tools:
        filling = fill(tool, scope, tools)
        brings = filling.calls and filling.strength >= 2 and needed & tool.title
        unasked = (tool.title & ACTIONS) - concepts(scope.text)
        if tool != meant.tool and brings and not unasked:
            return tuple(Wanted(tool.name, arguments) for arguments in filling.calls)
    return ()


def _calls(matches: Sequence[_Match]) -> tuple[Wanted, ...]:
    return tuple(Wanted(match.tool.name, arguments) for match in matches for arguments in match.filling.calls)


def _within(values: tuple[Value, ...], start: int, end: int) -> tuple[Value, ...]:
    return tuple(value for value in values if start <= value.start and value.end <= end)


def _parts(text: str, values: tuple[Value, ...]) -> Iterator[tuple[int, int]]:
    """Stretches of the text that may ask for different things; a value is never cut."""
    atoms = [(value.start, value.end) for value in values if value.kind in _ATOMS]
    start = 0
    for match in _SEPARATOR.finditer(text):
        if any(left < match.end() and match.start() < right for left, right in atoms):
            continue
        if text[start : match.start()].strip():
            yield start, match.start()
        start = match.end()
    if text[start:].strip():
        yield start, len(text)


def _matches(scope: Scope, tools: Sequence[OfferedTool], about: frozenset[str]) -> list[_Match]:
    """The tools that a part speaks for, best first; at a tie the one offered first."""
    found = []
    for tool in tools:
        if (tool.title & ACTIONS) - about:
            continue
        filling = fill(tool, scope, tools)
        own = fill(tool, Scope(scope.text, scope.values), tools) if scope.fallback else filling
        by_name, by_text = _words_for(tool, about)
        speaks = (
            by_name >= 3
            or own.strength >= 4
            or by_text >= 2
            or (own.strength >= 2 and by_name + by_text >= 1)
            or _covers(tool, about)
        )
        if speaks:
            found.append(_Match(tool, by_name + by_text + own.strength, by_name, filling))
    return sorted(found, key=lambda match: -match.score)


def _score(tool: OfferedTool, about: frozenset[str], filling: Filling) -> tuple[float, int]:
    by_name, by_text = _words_for(tool, about)
    return by_name + by_text + filling.strength, int(bool(filling.calls))


def _words_for(tool: OfferedTool, about: frozenset[str]) -> tuple[float, float]:
    """How much words speak for a tool: those of its name, and those of its description and parameters."""
    name = tool.title
    implied = frozenset().union(*(IMPLIED.get(concept, frozenset()) for concept in about)) - about
    telling = name - GENERIC
    by_name = sum(3.0 if concept in telling or not telling else 1.0 for concept in name & about)
    # Who asks for an action by its name means that tool and not the one that only looks.
    by_name += len(telling & implied) + 4.0 * len(name & about & ACTIONS)
    description = tool.purpose - name
    parameters = frozenset().union(*(concepts(slot.name) for slot in tool.slots)) - name - description
    by_text = sum(0.5 if concept in GENERIC or _is_bigram(concept) else 1.0 for concept in description & about)
    return by_name, by_text + 0.5 * len(parameters & about - GENERIC)


def _covers(tool: OfferedTool, about: frozenset[str]) -> bool:
    """Whether everything a part speaks of is what the tool is for: "what's the date?" needs no more than that word."""
    telling = {concept for concept in about if not _is_bigram(concept)} - DAY_WORDS
    return bool(telling - GENERIC) and telling <= tool.title | tool.purpose


def _is_bigram(concept: str) -> bool:
    return len(concept) == 2 and not concept.isascii()
