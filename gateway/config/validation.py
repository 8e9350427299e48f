"""From a document to its model, or to every mistake in words a newcomer understands.

Knows pydantic's errors and turns them into sentences with a place. Does not know where documents come from.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.document import Document, Path
from gateway.config.unserved import is_unserved
from gateway.errors import Problem

M = TypeVar("M", bound=BaseModel)

# Values that stand under these keys are never shown in a message.
_SECRET: Final = frozenset(
    {"key", "api_key", "api_keys", "admin_key", "headers", "database", "base_url", "redis", "secret", "url"}
)
_NAME: Final = "1 to 64 letters, digits or `. _ / : -`, beginning with a letter or a digit"
# How the patterns of names end, with a wildcard or without.
_NAME_ENDS: Final = "{0,63}$"
_WANTED: Final[Mapping[str, str]] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "`true` or `false`",
    "bool_parsing": "`true` or `false`",
    "dict_type": "a mapping (`key: value` lines)",
    "model_type": "a mapping (`key: value` lines)",
    "model_attributes_type": "a mapping (`key: value` lines)",
    "tuple_type": "a list",
    "list_type": "a list",
    "finite_number": "a finite number",
}


def validate(
    model: type[M],
    document: Document,
    problems: list[Problem],
    unserved: frozenset[tuple[str, ...]] = frozenset(),
) -> M | None:
    """The model, or None with every mistake added to `problems`."""
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        found = error.errors(include_url=False)
    # A plain word such as `08`, `1e3` or `true` where text is wanted is that text.
    if _keep_text(document, found) or _leave_out_unset(document, found):
        return validate(model, document, problems, unserved)
    by_place: dict[Path, list[ErrorDetails]] = {}
    for item in found:
        by_place.setdefault(_place(item, document.value), []).append(item)
    known = {path: _known_keys(model, path) for path in by_place}
    for path, items in by_place.items():
        if _is_other_branch(path, items, by_place):
            continue
        problems.append(document.problem(path, _message(document, path, items, known[path], unserved)))
    return None


def _is_other_branch(path: Path, items: list[ErrorDetails], by_place: dict[Path, list[ErrorDetails]]) -> bool:
    """Whether this only says that a mapping is not the word that might stand in its place; its own mistakes say more."""
    deeper = any(len(other) > len(path) and other[: len(path)] == path for other in by_place)
    return deeper and all(item["type"] in {"literal_error", "string_type"} for item in items)


def _keep_text(document: Document, found: list[ErrorDetails]) -> bool:
    kept = False
    for item in found:
        path = _place(item, document.value)
        if item["type"] == "string_type" and (text := document.texts.pop(path, None)) is not None:
            _put(document.value, path, text)
            kept = True
    return kept


def _leave_out_unset(document: Document, found: list[ErrorDetails]) -> bool:
    """Take out what only looks wrong because its variable has no value here; whether something was taken out."""
    left_out = False
    for item in found:
        path = _place(item, document.value)
        if item["type"] == "missing" or path not in document.unset or not isinstance(path[-1], str):
            continue
        above = document.value
        for part in path[:-1]:
            above = above[part]
        left_out |= above.pop(path[-1], None) is not None
    return left_out


def _put(value: Any, path: Path, text: str) -> None:
    for part in path[:-1]:
        value = value[part]
    value[path[-1]] = text


def _place(item: ErrorDetails, value: Any) -> Path:
    """The part of pydantic's location that is in the document: union branches and validators' names are not."""
    path: list[str | int] = []
    for part in item["loc"]:
        if _holds(value, part):
            value = value[part]
        elif item["type"] != "missing" or part != item["loc"][-1]:
            continue
        path.append(part)
    return tuple(path)


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(value, dict):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def shown(path: Path) -> str:
    """The path as people write it: `models.fast.backends[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _message(
    document: Document,
    path: Path,
    items: list[ErrorDetails],
    known: tuple[str, ...],
    unserved: frozenset[tuple[str, ...]],
) -> str:
    kinds = {item["type"] for item in items}
    name = shown(path)
    if "extra_forbidden" in kinds:
        if is_unserved(path, unserved):
            return f"`{name}` is not supported by this version"
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
        return f"unknown key `{name}`" + (f"; did you mean `{near[0]}`?" if near else "")
    if "missing" in kinds:
        return f"`{name}` is missing"
    first = items[0]
    if "value_error" in kinds:
        words = str(first["msg"]).removeprefix("Value error, ")
        return f"`{name}`: {words}" if path else words
    value = _value(document, path, first)
    if str(first["loc"][-1]) == "[key]":
        return f"{path[-1]!r} is not a name; a name is {_NAME}"
    if "string_pattern_mismatch" in kinds:
        pattern = next(item["ctx"]["pattern"] for item in items if item["type"] == "string_pattern_mismatch")
        # Other things than names have forms of their own: currencies, headers.
        wanted = f"be a name ({_NAME})" if pattern.endswith(_NAME_ENDS) else f"look like `{pattern}`"
        return f"`{name}` must {wanted}{value}"
    if first["input"] is None and "string_too_short" not in kinds:
        return f"`{name}` is empty; give it a value or leave it out"
    if "string_too_short" in kinds:
        return f"`{name}` must not be empty; leave it out, or give it a value"
    if "too_short" in kinds:
        return f"`{name}` must hold at least one entry"
    return f"`{name}` must be {' or '.join(dict.fromkeys(_wanted(item) for item in items))}{value}"


def _wanted(item: ErrorDetails) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "literal_error":
        return {"True": "`true`", "False": "`false`"}.get(
            context["expected"], str(context["expected"]).replace("'", "`")
        )
    bounds = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}
    if kind in bounds:
        words = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
        return f"{words[bounds[kind]]} {context[bounds[kind]]:g}"
    if kind in _WANTED:
        return _WANTED[kind]
    return str(item["msg"]).removeprefix("Input should be ")


def _value(document: Document, path: Path, item: ErrorDetails) -> str:
    value = item["input"]
    hidden = path in document.expanded or path in document.overridden or any(part in _SECRET for part in path)
    if hidden or isinstance(value, (dict, list, tuple)):
        return ""
    written = document.texts.get(path) or repr(value)
    return f", not {written}" if len(written) <= 80 else ""


def _known_keys(model: type[BaseModel], path: Path) -> tuple[str, ...]:
    """The keys that may stand where the last part of `path` stands."""
    here: Any = model
    for part in path[:-1]:
        here = _inside(here, part)
    here = _without_none(here)
    return tuple(here.model_fields) if isinstance(here, type) and issubclass(here, BaseModel) else ()


def _inside(annotation: Any, part: str | int) -> Any:
    """The type of what stands under `part` in a value of this type; None where that is anything."""
    here = _without_none(annotation)
    if isinstance(here, type) and issubclass(here, BaseModel):
        return here.model_fields[str(part)].annotation if part in here.model_fields else None
    arguments = get_args(here)
    if get_origin(here) is dict:
        return arguments[1]
    return arguments[0] if get_origin(here) in {tuple, list} else None


def _without_none(annotation: Any) -> Any:
    """The type itself, without `Annotated` and without the `None` (or other scalars) beside it."""
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        inner = [_without_none(part) for part in get_args(annotation)]
        return next((part for part in inner if isinstance(part, type) and part is not NoneType), inner[0])
    return annotation
