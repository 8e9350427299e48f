"""The weekly-report drill: thirty turns with large tool results, in which what was said in the first turn is needed in the last.

Knows scripts and a checker that answers right only where every fact that a turn needs is in what it was sent, the value that
holds after the ones it replaced. Does not know the gateway.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TURNS = 30

# What is said, its value, and what it replaces. `{}` is the value. A third matches none of the gateway's own patterns.
PATTERNED = [
    [("Please prepare the sales report for {}.", ["last week", "last month", "Q2 2025"])],
    [("It is about {} only.", ["East China", "South China", "North China", "华东", "华南"])],
    [("Our customer number is {}.", ["4711", "C-90210", "88-1203"])],
    [("The order in question is {}.", ["SO-2024-0318", "ORD-778812", "PO-555-1200"])],
    [("My name is {}.", ["Anna Schmidt", "Li Wei", "Tom Baker"])],
    [("Anything above {} has to be marked.", ["USD 12,500", "EUR 9,900", "CNY 80000"])],
]
FREE = [
    ("Leave out {}, they distort it.", ["the returns", "the staff purchases", "the sample shipments"]),
    ("Group it by {}.", ["store manager", "product line", "cost centre"]),
    ("Round to {}.", ["full hundreds", "two decimals", "whole boxes"]),
]
ASIDES = [
    "thanks",
    "Which shop was strongest?",
    "And the week before?",
    "Compare that with the plan.",
    "Why did it fall on Tuesday?",
    "好的，继续",
    "Show me the ten largest items.",
    "ok, and the margin?",
    "Could you check the stock as well?",
    "Is that normal for the season?",
    "How does that compare with last year?",
    "Was North America better?",
    "和去年相比呢？",
]


@dataclass
class Script:
    """What a user says in each turn, and which values hold then: by slot, the newest last."""

    said: list[str] = field(default_factory=list)
    holds: list[Mapping[str, list[str]]] = field(default_factory=list)


def script(seed: int) -> Script:
    """Thirty turns: facts in the first and some later ones, a third of them changed on the way."""
    dice = random.Random(seed)
    facts = [(f"p{at}", *dice.choice(group)) for at, group in enumerate(PATTERNED)]
    facts += [(f"f{at}", text, values) for at, (text, values) in enumerate(FREE)]
    first = {name for name, _, _ in dice.sample(facts, 4)}
    told_at = {name: 0 if name in first else dice.randrange(1, 12) for name, _, _ in facts}
    changed_at = {name: dice.randrange(13, 26) for name, _, _ in dice.sample(facts, 3)}
    out, now = Script(), dict[str, list[str]]()
    for turn in range(TURNS):
        words: list[str] = []
        for name, text, values in facts:
            if told_at[name] == turn:
                now[name] = [dice.choice(values)]
                words.append(text.format(now[name][0]))
            elif changed_at.get(name) == turn:
                other = dice.choice([value for value in values if value != now[name][-1]])
                now[name] = [*now[name], other]
                words.append("Correction: " + text.format(other))
        out.said.append(" ".join([*words, dice.choice(ASIDES)]))
        out.holds.append({name: list(values) for name, values in now.items()})
    return out


def result(seed: int, turn: int) -> str:
    """A large tool result: rows of figures in which none of the facts stand."""
    dice = random.Random(seed * 1000 + turn)
    rows = [
        {
            "shop": f"S{dice.randrange(1000, 9999)}",
            "sold": dice.randrange(9999),
            "plan": dice.randrange(9999),
            "day": day,
        }
        for day in range(110)
    ]
    return json.dumps({"rows": rows, "of": turn})


def has_all(sent: Sequence[Mapping[str, Any]], holds: Mapping[str, Sequence[str]]) -> bool:
    """Whether every fact is there, and the value that holds stands behind those it replaced."""
    text = "\n".join(str(message.get("content") or "") for message in sent if message["role"] == "user")
    for values in holds.values():
        here = text.rfind(values[-1])
        if here < 0 or any(text.rfind(old) > here for old in values[:-1]):
            return False
    return True
