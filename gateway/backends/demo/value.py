"""One typed value found in a text.

Pure. How values are found: `values.py` and `locations.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "url", "email", "path", "quoted", "date", "clock", "id", "expression", "number", "place", "timezone", "currency",
    "language", "name", "symbol",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its `kind`, what a parameter gets, how the text put it, and where (`start`, `end`, in characters)."""

    kind: Kind
    value: str
    source: str
    start: int
    end: int
