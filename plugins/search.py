"""Searching a small local index of notes: BM25 over words, and over pairs of characters for Chinese, Japanese and Korean.

The notes are the Markdown files of `NOTES_ROOT`, or of notes/ beside this file. The index is built once, in `lifespan()`.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from gateway.tools import ToolContext, Tools, tool

# The usual constants: how fast repetition stops to matter, and how much long notes are held back.
K1, B = 1.5, 0.75
MAX_SNIPPET = 600

_WORD = re.compile(r"[^\W_]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_COMMON = frozenset(
    "a an and are as at be by do for from how i in is it my of on or our the to we what when where with you".split()
)


@dataclass(frozen=True)
class Note:
    """A piece of a file under one heading."""

    file: str
    title: str
    text: str
    terms: Counter[str]


class Index:
    """Notes, and how much each term says."""

    def __init__(self, notes: list[Note]) -> None:
        self._notes = notes
        self._mean = sum(note.terms.total() for note in notes) / max(len(notes), 1) or 1.0
        counts = Counter(term for note in notes for term in note.terms)
        self._weight = {term: math.log(1 + (len(notes) - n + 0.5) / (n + 0.5)) for term, n in counts.items()}

    def search(self, query: str, limit: int) -> list[tuple[float, Note]]:
        """The best notes and their scores, best first; none that shares nothing with the query."""
        wanted = terms(query)
        scored = ((self._score(note, wanted), number, note) for number, note in enumerate(self._notes))
        best = sorted((each for each in scored if each[0] > 0), key=lambda each: (-each[0], each[1]))
        return [(score, note) for score, _, note in best[:limit]]

    def _score(self, note: Note, wanted: Counter[str]) -> float:
        room = K1 * (1 - B + B * note.terms.total() / self._mean)
        found = ((self._weight[term], note.terms[term]) for term in wanted if term in note.terms)
        return sum(weight * count * (K1 + 1) / (count + room) for weight, count in found)


def terms(text: str) -> Counter[str]:
    """Words in lower case without a plural s; runs of Chinese, Japanese or Korean as pairs of characters."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    found: Counter[str] = Counter()
    for run in _CJK.findall(folded):
        found.update([run] if len(run) == 1 else (run[at : at + 2] for at in range(len(run) - 1)))
    for word in _WORD.findall(_CJK.sub(" ", folded)):
        if word not in _COMMON:
            found[word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word] += 1
    return found


def read_notes(root: Path) -> Index:
    """Index every Markdown file of a folder, one note a heading."""
    notes = []
    for file in sorted(root.glob("*.md")):
        for part in re.split(r"^(?=#)", file.read_text("utf-8"), flags=re.MULTILINE):
            heading, _, text = part.strip().partition("\n")
            if text.strip():
                title = heading.lstrip("# ")
                notes.append(Note(file.name, title, text.strip(), terms(f"{title} {title} {text}")))
    return Index(notes)


async def lifespan() -> AsyncIterator[dict[str, Any]]:
    """Build the index once, beside the event loop."""
    root = Path(os.environ.get("NOTES_ROOT") or Path(__file__).parent / "notes")
    yield {"notes": await asyncio.to_thread(read_notes, root)}


@tool
async def search_notes(query: str, ctx: ToolContext, limit: Annotated[int, Field(ge=1, le=10)] = 3) -> dict[str, Any]:
    """Search the notes when the user asks about policies, guides or how-tos (搜索, 知识库, 文档, 退货, 政策).

    query: what to look for, a few words
    limit: most results to return
    """
    hits = ctx.resources["notes"].search(query, limit)
    return {
        "results": [
            {"title": note.title, "file": note.file, "text": note.text[:MAX_SNIPPET], "score": round(score, 2)}
            for score, note in hits
        ]
    }


def register(registry: Tools) -> None:
    """Add the search."""
    registry.add(search_notes)
