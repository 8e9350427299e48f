"""Providers' own request types, read strictly: a field their SDK does not have is a fault."""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict, get_type_hints, is_typeddict

_JSON = (str, int, float, bool, type(None))


def reader(kind: Any) -> Callable[[bytes], Any]:
    """Reads JSON as this type, a `TypedDict` of an SDK; raises on whatever the type does not allow."""
    adapter: TypeAdapter[Any] = TypeAdapter(_strict(kind, ()))

    def read(raw: bytes) -> Any:
        return adapter.validate_json(raw, strict=True)

    return read


def _strict(kind: Any, above: tuple[Any, ...]) -> Any:
    """The same type with lists for iterables and without room for unknown keys; None for what JSON cannot hold."""
    origin = get_origin(kind)
    if kind is None or kind in _JSON or origin is Literal:
        return kind
    if origin in (Annotated, Required, NotRequired):
        return _strict(get_args(kind)[0], above)
    if origin in (Union, types.UnionType):
        members = [member for each in get_args(kind) if (member := _strict(each, above)) is not None]
        return Union[tuple(members)]  # noqa: UP007 - the members are only known here
    if is_typeddict(kind):
        return Any if kind in above else _dictionary(kind, (*above, kind))
    if origin in (dict, collections.abc.Mapping):
        return dict[str, Any]
    if origin is not None:
        return list[_strict(get_args(kind)[0], above)]  # type: ignore[misc]
    return Any if kind in (object, Any) else None


def _dictionary(kind: Any, above: tuple[Any, ...]) -> Any:
    hints = get_type_hints(kind)
    fields = {
        name: (Required if name in kind.__required_keys__ else NotRequired)[_strict(hint, above)]
        for name, hint in hints.items()
    }
    make: Any = TypedDict
    made = make(kind.__name__, fields)
    made.__pydantic_config__ = ConfigDict(extra="forbid")
    return made
