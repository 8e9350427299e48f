"""Request fields on their way to a model: what the client set, over what the operator set, in the names a backend knows.

Pure. Nothing is renamed or left out unless the configuration says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

# Two names of one limit: servers refuse a request that says both.
_SAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


def with_defaults(fields: Mapping[str, msgspec.Raw], defaults: Mapping[str, msgspec.Raw]) -> Mapping[str, msgspec.Raw]:
    """The fields, and the defaults the client has not set under either of their names."""
    left = {name: raw for name, raw in defaults.items() if name not in fields and _SAME.get(name) not in fields}
    return {**fields, **left} if left else fields


def renamed(
    fields: Mapping[str, msgspec.Raw], dropped: Collection[str], names: Mapping[str, str]
) -> Mapping[str, msgspec.Raw]:
    """The fields without the dropped ones, under the names the backend knows; a field it knows already is not overwritten."""
    if not (dropped or names):
        return fields
    kept = {name: raw for name, raw in fields.items() if name not in dropped}
    for name, known in names.items():
        if name != known and name in kept:
            raw = kept.pop(name)
            kept.setdefault(known, raw)
    return kept
