"""What of a result a model is shown, by `result_fields`: paths of keys, lists looked through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_Tree = dict[str, Any]


def only_fields(value: Any, paths: Iterable[str]) -> Any:
    """A JSON value with nothing but what the paths name: `status`, `items.name`.

    Objects and lists keep their shape, a path that leads nowhere is left out. A value that has no fields stays as it is.
    """
    if not isinstance(value, dict | list):
        return value
    tree: _Tree = {}
    named = set(paths)
    for path in named:
        if any(path.startswith(f"{other}.") for other in named):
            continue  # all of what it lies in is shown
        here = tree
        for key in path.split("."):
            here = here.setdefault(key, {})
    return _only(value, tree)


def _only(value: Any, tree: _Tree) -> Any:
    if isinstance(value, list):
        return [_only(item, tree) for item in value if isinstance(item, dict | list)]
    return {
        key: value[key] if not below else _only(value[key], below)
        for key, below in tree.items()
        if key in value and (not below or isinstance(value[key], dict | list))
    }
