"""Usage as people read it: what may be asked for, rows with money in whole units, CSV.

Pure. An unknown price is shown as unknown: `null`, an empty field, or beside a sum the number of turns that it leaves out.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final, cast

import msgspec

from gateway.errors import InvalidRequest
from gateway.store.usage_records import DIMENSIONS, NANO, Dimension, UsageRow

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_COUNTS: Final = (
    "turns",
    "failed",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "unpriced",
    "cost",
    "currency",
)
_KNOWN: Final = ("by", "from", "to", "format")


class Asked(msgspec.Struct, frozen=True):
    """Which sums: by which dimensions, from which day to which, and whether as CSV."""

    by: tuple[Dimension, ...]
    since: str | None
    until: str | None
    csv: bool


def _is_day(text: str) -> bool:
    try:
        return _DAY.fullmatch(text) is not None and date.fromisoformat(text) is not None
    except ValueError:
        return False


def asked_for(said: Mapping[str, str]) -> Asked:
    """What `by`, `from`, `to` and `format` ask for.

    Raises:
        InvalidRequest: one of them is wrong, or there is another.
    """
    unknown = sorted(set(said) - set(_KNOWN))
    if unknown:
        raise InvalidRequest(f"There is no parameter `{unknown[0]}`; there are {', '.join(_KNOWN)}.", param=unknown[0])
    by = [part.strip() for part in said.get("by", "day").split(",") if part.strip()]
    wrong = [part for part in by if part not in DIMENSIONS]
    if wrong:
        raise InvalidRequest(f"`by` holds {wrong[0]!r}; expected some of {', '.join(DIMENSIONS)}.", param="by")
    for name in ("from", "to"):
        if name in said and not _is_day(said[name]):
            raise InvalidRequest(f"`{name}` is {said[name]!r}; expected a day such as 2025-01-31.", param=name)
    if said.get("format", "json") not in ("json", "csv"):
        raise InvalidRequest(f"`format` is {said['format']!r}; expected `json` or `csv`.", param="format")
    dimensions = cast(tuple[Dimension, ...], tuple(dict.fromkeys(by)))
    return Asked(dimensions, said.get("from"), said.get("to"), said.get("format") == "csv")


def reported(row: UsageRow, by: Sequence[Dimension], currency: str) -> dict[str, Any]:
    """A row as it is shown; `cost` is None where nothing of it has a known price."""
    shown: dict[str, Any] = {name: getattr(row, name) or None for name in by}
    counts = ("turns", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "unpriced")
    shown |= {name: getattr(row, name) for name in counts}
    shown["cost"] = None if row.unpriced and not row.cost else row.cost / NANO
    shown["currency"] = currency
    return shown


def as_csv(rows: Sequence[Mapping[str, Any]], by: Sequence[Dimension]) -> str:
    """The rows as CSV with a head."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*by, *_COUNTS], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _safe(value: Any) -> Any:
    # A spreadsheet would run a name that begins like a formula.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
