"""References within a schema, written out.

Pure. Nothing is fetched: a reference that leads out of the schema, or nowhere, takes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from gateway.chat.schemas.walk import LISTED, MAX_DEPTH, NAMED, SINGLE, Schema, types_of, within

# A schema that contains itself is written out so often; what lies deeper is of its type, whatever it holds.
UNROLLED: Final = 3
# Schemas that are written out, all in all. References to references may grow without end.
MAX_WRITTEN: Final = 2000

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_HOMES: Final = ("$defs", "definitions")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor", "$recursiveAnchor")
# Where more let through inside means less let through in all.
_TURNED: Final = frozenset({"not", "if", "oneOf", "contains"})
# Words about a value, which decide nothing.
_WORDS: Final = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})


def has_references(schema: Any) -> bool:
    """Whether anything in it is said elsewhere."""
    return any(each in inner for inner in within(schema) for each in _REFERENCES)


def followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a schema's `$ref` stands for, with the words beside it; the schema itself where it has none."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if not isinstance(reference, str):
        return schema
    target = _target(reference, root)
    beside = {key: value for key, value in schema.items() if key != "$ref"}
    if _is_old(root):
        # Up to draft 7 nothing that stands beside a reference counts.
        beside = {key: value for key, value in beside.items() if key in _WORDS}
    if not beside or target is False:
        return target
    if target is True:
        return beside
    if not (target.keys() & beside.keys()) - _WORDS:
        return {**target, **beside}
    return {**beside, "allOf": [target, *beside.get("allOf", ())]}


def inlined(schema: Mapping[str, Any]) -> Schema:
    """The same schema without references and without the definitions they led to.

    What contains itself is written out three times; below that, and below two thousand schemas, only types are kept: more is
    let through than the schema means.
    """
    return _Writer(schema).written()


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference within the document names: a schema, or true or false."""
    if reference == "#":
        return root
    if not reference.startswith("#"):
        return True
    if not reference.startswith("#/"):
        anchors = (
            inner for inner in within(root) if reference[1:] in (inner.get("$anchor"), inner.get("$dynamicAnchor"))
        )
        return next(anchors, True)
    found: Any = root
    for part in unquote(reference[2:]).split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(name, True)
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return True
    return found if isinstance(found, (Mapping, bool)) else True


def _is_old(root: Mapping[str, Any]) -> bool:
    said = root.get("$schema")
    return isinstance(said, str) and any(f"draft-0{number}" in said for number in (3, 4, 6, 7))


class _Writer:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MAX_WRITTEN
        self._cuts = 0

    def written(self) -> Schema:
        out: Schema = self._write(self._root, {}, 0)
        return out

    def _write(self, schema: Any, inside: Mapping[str, int], depth: int) -> Any:
        """`inside` counts the references that led here."""
        if not isinstance(schema, Mapping):
            return schema
        self._left -= 1
        reference = schema.get("$ref")
        if isinstance(reference, str):
            times = inside.get(reference, 0)
            target = followed(schema, self._root)
            if times >= UNROLLED or self._left < 0 or depth > MAX_DEPTH:
                return self._cut(target)
            return self._write(target, {**inside, reference: times + 1}, depth + 1)
        if self._left < 0 or depth > MAX_DEPTH:
            return self._cut(schema)
        out: Schema = {}
        for key, value in schema.items():
            if key in _REFERENCES or key in _HOMES or key in _ANCHORS:
                continue
            before = self._cuts
            written = self._inner(key, value, inside, depth + 1)
            if self._cuts == before or key not in _TURNED:
                out[key] = written
            elif key == "oneOf" and "anyOf" not in schema:
                out["anyOf"] = written
        if "if" in schema and "if" not in out:
            out.pop("then", None)
            out.pop("else", None)
        return out

    def _inner(self, key: str, value: Any, inside: Mapping[str, int], depth: int) -> Any:
        if key in NAMED and isinstance(value, Mapping):
            return {name: self._write(inner, inside, depth) for name, inner in value.items()}
        if (key in LISTED or key == "items") and isinstance(value, list):
            return [self._write(inner, inside, depth) for inner in value]
        return self._write(value, inside, depth) if key in SINGLE else value

    def _cut(self, schema: Any) -> Any:
        self._cuts += 1
        if not isinstance(schema, Mapping):
            return schema
        kept: Schema = {"type": schema["type"]} if types_of(schema) else {}
        if isinstance(schema.get("description"), str):
            kept["description"] = schema["description"]
        return kept
