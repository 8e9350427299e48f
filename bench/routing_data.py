"""Public intent sets, which utterances a draw takes of them, and their vectors, kept between runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.routing.encoder import Encoder
from gateway.routing.normalise import normalise

Vectors = NDArray[np.float32]

# In these sets other names than `oos` stand for "no route".
_NOWHERE = {"smp_ecdt_zh": "chat"}
_BATCH = 200


@dataclass(frozen=True)
class Row:
    """One labelled text; `intent` is None where no route should match."""

    text: str
    intent: str | None
    split: str


@dataclass(frozen=True)
class Sample:
    """Rows with their normalised texts and vectors, in the same order."""

    texts: tuple[str, ...]
    intents: tuple[str | None, ...]
    vectors: Vectors

    def __len__(self) -> int:
        return len(self.texts)


class IntentSet:
    """One file of rows in one encoder's space."""

    def __init__(self, name: str, rows: Sequence[Row], vectors: Vectors) -> None:
        self.name = name
        self._rows = rows
        self._texts = [normalise(row.text) for row in rows]
        self._vectors = vectors

    @property
    def intents(self) -> list[str]:
        return sorted({row.intent for row in self._rows if row.intent is not None})

    def part(self, *splits: str) -> Sample:
        return self._sample([place for place, row in enumerate(self._rows) if row.split in splits])

    def draw(
        self, count: int | None, seed: int, *, split: str = "train", without: frozenset[str] = frozenset()
    ) -> Sample:
        """`count` utterances of each intent, or all of them."""
        random = np.random.default_rng(seed)
        by_intent: dict[str, list[int]] = {}
        for place, row in enumerate(self._rows):
            if row.split == split and row.intent is not None and row.intent not in without:
                by_intent.setdefault(row.intent, []).append(place)
        taken: list[int] = []
        for intent in sorted(by_intent):
            places = by_intent[intent]
            if count is not None and count < len(places):
                places = sorted(random.choice(places, count, replace=False).tolist())
            taken += places
        return self._sample(taken)

    def _sample(self, places: Sequence[int]) -> Sample:
        return Sample(
            tuple(self._texts[place] for place in places),
            tuple(self._rows[place].intent for place in places),
            self._vectors[list(places)],
        )


def read(folder: Path, name: str) -> list[Row]:
    nowhere = {"oos", _NOWHERE.get(name, "oos")}
    rows = []
    with (folder / f"{name}.jsonl").open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            rows.append(Row(row["text"], None if row["intent"] in nowhere else row["intent"], row["split"]))
    return rows


def unencoded(folder: Path, name: str) -> IntentSet:
    """A set whose vectors are empty."""
    rows = read(folder, name)
    return IntentSet(name, rows, np.empty((len(rows), 0), np.float32))


async def load(folder: Path, name: str, encoder: Encoder, kept: Path) -> IntentSet:
    """Read a set and encode it, one text at a time as a gateway does, or take the vectors from an earlier run."""
    rows = read(folder, name)
    texts = [normalise(row.text) for row in rows]
    digest = hashlib.blake2b("\n".join([encoder.name, *texts]).encode(), digest_size=8).hexdigest()
    path = kept / f"{name}.{encoder.name}.{digest}.npy"
    if path.exists():
        return IntentSet(name, rows, np.load(path))
    await encoder.load()
    parts = []
    for begin in range(0, len(texts), _BATCH):
        parts.append(await encoder.encode(texts[begin : begin + _BATCH]))
        print(f"\r  encoding {name} with {encoder.name}: {begin + len(parts[-1])} of {len(texts)}", end="", flush=True)
    print("\r" + " " * 79 + "\r", end="")
    vectors = np.concatenate(parts)
    kept.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nobody else waits
    np.save(path, vectors)
    return IntentSet(name, rows, vectors)
