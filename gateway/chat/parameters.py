"""Request fields on their way to a model: what the client set, over what the operator set, in the names a backend knows.

Pure. Nothing is renamed or left out unless the configuration says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

# Raw JSON, or what it says.
_Value = TypeVar("_Value")

# Two names of one limit: servers refuse a request that says both.
_SAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


def with_defaults(fields: Mapping[str, _Value], defaults: Mapping[str, _Value]) -> Mapping[str, _Value]:
    """The fields, and the defaults the client has not set under either of their names."""
    left = {name: value for name, value in defaults.items() if name not in fields and _SAME.get(name) not in fields}
    return {**fields, **left} if left else fields


def renamed(fields: Mapping[str, _Value], dropped: Collection[str], names: Mapping[str, str]) -> Mapping[str, _Value]:
    """The fields without the dropped ones, under the names the backend knows; a field it knows already is not overwritten."""
    if not (dropped or names):
        return fields
    kept = {name: value for name, value in fields.items() if name not in dropped}
    for name, known in names.items():
        if name != known and name in kept:
            value = kept.pop(name)
            kept.setdefault(known, value)
    return kept
