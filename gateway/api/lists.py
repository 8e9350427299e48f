"""Lists in OpenAI's form: how many are asked for, and the envelope they come in.

Knows the form. Does not know what is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from gateway.errors import InvalidRequest

T = TypeVar("T")

_MOST = 100
_USUAL = 20


def only(asked: Iterable[str], *known: str) -> None:
    """Nothing is filtered by what is not known: it would look as if it had been.

    Raises:
        InvalidRequest: there is no such filter.
    """
    unknown = sorted(set(asked) - set(known))
    if unknown:
        names = ", ".join(f"`{name}`" for name in known[:-1])
        raise InvalidRequest(
            f"There is no filter `{unknown[0]}`; there are {names} and `{known[-1]}`.", param=unknown[0]
        )


def limit_of(value: str | None) -> int:
    """How many rows `limit` asks for, 1 to 100; 20 where it does not say.

    Raises:
        InvalidRequest: it is no such number.
    """
    if value is None:
        return _USUAL
    if not (value.isascii() and value.isdigit() and len(value) <= 3 and 1 <= int(value) <= _MOST):
        raise InvalidRequest(f"`limit` is {value!r}; expected 1 to {_MOST}.", param="limit")
    return int(value)


def listed(rows: Sequence[T], limit: int, id_of: Callable[[T], str], shown: Callable[[T], Any]) -> dict[str, Any]:
    """The list of the first `limit` rows; one row more says that there are more."""
    kept = rows[:limit]
    return {
        "object": "list",
        "data": [shown(row) for row in kept],
        "first_id": id_of(kept[0]) if kept else None,
        "last_id": id_of(kept[-1]) if kept else None,
        "has_more": len(rows) > limit,
    }
