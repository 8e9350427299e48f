"""What rules and remembered decisions cost in time, on one thread.

CPU time rather than wall time, in batches too short to be interrupted often, and the median of them: other work on the
machine shows less. Keywords are made up, the same in every run; Latin text is the project's own documentation, Chinese text
is made up too.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.clock import SystemClock
from gateway.config.models import RouteConfig, RouterConfig
from gateway.routing.composite import CompositeRouter
from gateway.routing.facts import Facts

_COUNTS = (10, 1_000, 100_000)
_LENGTHS = (200, 20_000)
# Routes that share the keywords.
_ROUTES = 100
_SAMPLES = 41
_BATCH_CHARS = 60_000
_SYLLABLES = tuple(
    f"{consonant}{vowel}" for consonant in "bcdfghklmnprstvw" for vowel in ("a", "e", "i", "o", "ou", "er")
)
_HAN = tuple(chr(code) for code in range(0x4E00, 0x4E00 + 2_500))
# 1,000 keywords, microseconds; 100,000 may take three times that.
_REACH = {200: 10.0, 20_000: 150.0}
_MOST_GROWTH = 3.0


@dataclass(frozen=True)
class Script:
    """How words and texts of a script are made up."""

    name: str
    word: Callable[[random.Random], str]
    text: Callable[[random.Random], str]

    def words(self, chance: random.Random, count: int) -> list[str]:
        """At least so many different ones, if the script has them."""
        return list(dict.fromkeys(self.word(chance) for _ in range(3 * count)))


def _prose(_: random.Random) -> str:
    pages = sorted((Path(__file__).resolve().parents[1] / "docs").glob("*.md"))
    return "".join(char for page in pages for char in page.read_text(encoding="utf-8") if char.isascii())


LATIN = Script("ASCII", lambda chance: "".join(chance.choices(_SYLLABLES, k=chance.randint(2, 5))), _prose)
_SCRIPTS = (
    LATIN,
    Script(
        "Chinese",
        lambda chance: "".join(chance.choices(_HAN, k=chance.randint(2, 4))),
        lambda chance: "".join(chance.choices(_HAN, k=max(_LENGTHS))),
    ),
)


def rules() -> list[str]:
    """A decision by rule for each number of keywords, length and script."""
    lines = []
    for script in _SCRIPTS:
        chance = random.Random(7)
        words = script.words(chance, max(_COUNTS))
        text = script.text(chance)
        texts = {length: text[:length] for length in _LENGTHS}
        spent = {
            (count, length): found
            for count in _COUNTS
            for length, found in zip(_LENGTHS, decided_in(words[:count], [*texts.values()]), strict=True)
        }
        lines += [_line(script, length, spent) for length in _LENGTHS]
    return lines


def _line(script: Script, length: int, spent: dict[tuple[int, int], float]) -> str:
    usual = spent[1_000, length]
    growth = spent[100_000, length] / usual
    figures = ", ".join(f"{count:,}: {spent[count, length]:.1f} µs" for count in _COUNTS)
    goal = f" (reach {_REACH[length]:g} µs with 1,000, {_MOST_GROWTH:g} times that)" if script.name == "ASCII" else ""
    return (
        f"decision by rule, {script.name}, {length:,} characters, by keywords: {figures}; "
        f"100,000 take {growth:.1f} times as long as 1,000{goal}; {1e6 / usual:,.0f} a second and core with 1,000"
    )


def decided_in(words: Sequence[str], texts: Sequence[str]) -> list[float]:
    """Microseconds that a decision takes, by text. The last keyword stands at the text's end, so that a rule decides."""
    routes = [
        RouteConfig(route=f"r{number}", model="m", keywords=tuple(words[number::_ROUTES]))
        for number in range(min(_ROUTES, len(words)))
    ]
    config = RouterConfig.model_validate({"default": "m"})
    router = CompositeRouter(routes, config, "1-bench", None, SystemClock(), ["m"])
    asked = [Facts(text[: -len(words[-1]) - 1] + " " + words[-1]) for text in texts]
    return asyncio.run(_decided(router, asked))


async def _decided(router: CompositeRouter, asked: Sequence[Facts]) -> list[float]:
    for facts in asked:
        assert (await router.decide(facts)).strategy == "rule"
    return [await microseconds(router, facts, max(1, _BATCH_CHARS // len(facts.text) // 3)) for facts in asked]


async def microseconds(router: CompositeRouter, facts: Facts, batch: int) -> float:
    """The median of the CPU time of one decision, taken in batches. Nothing in it may wait for another thread."""
    spent = []
    for _ in range(_SAMPLES):
        begun = time.thread_time_ns()
        for _ in range(batch):
            await router.decide(facts)
        spent.append((time.thread_time_ns() - begun) / batch / 1000)
    return statistics.median(spent)
