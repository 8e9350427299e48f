"""What makes a tool hard to use for a model, although nothing of it is wrong.

Pure. Knows how models read descriptions and schemas. What a tool does is its own business; whether it works is its self-check's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.chat.schemas.references import followed
from gateway.chat.schemas.walk import types_of
from gateway.errors import Problem
from gateway.tools.spec import ToolSpec, split_origin

MAX_SENTENCE_CHARS: Final = 100
MAX_TIMEOUT_S: Final = 30.0
# Objects in each other: an order, and its lines.
MAX_NESTED: Final = 2
# Lists and objects within each other that are looked through.
_DEEPEST: Final = 24

_FULL_STOP: Final = re.compile(r"\.(?=\s|$)|[。！？!?]|\n\s*\n")
# Words that say when, or what for. Other scripts than these are not judged.
_WHEN: Final = re.compile(
    r"\b(?:when|whenever|if|once|before|after|while|to|for)\b|[当时若]|如果|需要|用于|用来|以便", re.IGNORECASE
)
_JUDGED: Final = re.compile(r"[A-Za-z]{3}|[\u4e00-\u9fff]")
_QUOTED: Final = r"[`'\"“][\w-]+[`'\"”]"
_CLOSED_SET: Final = re.compile(
    rf"\b(?:one of|either|allowed values?|possible values?|must be)\b[^.\n]*?(?:{_QUOTED}|\w+)\s*(?:,|\||/|\bor\b)"
    rf"|{_QUOTED}\s*(?:,\s*{_QUOTED}\s*)*(?:\||/|,?\s*or\b)\s*{_QUOTED}"
    r"|可选值|取值[为是:：]",
    re.IGNORECASE,
)
# The tools whose authors sit here. A server's words, and an OpenAPI file's, are somebody else's to mend.
_OURS: Final = "python"


def lint(spec: ToolSpec) -> tuple[Problem, ...]:
    """What could be said better of a tool; errors where its author is at hand, warnings for servers' tools."""
    file, line = split_origin(spec.origin)
    severity = "error" if spec.provider == _OURS else "warning"
    found = [Problem(file, line, f"tool `{spec.name}`: {text}", severity) for text in _found(spec)]
    if spec.writes and not spec.checked and spec.provider == _OURS:
        text = "it writes and has no `check`: nothing finds out whether it works before it is needed"
        found.append(Problem(file, line, f"tool `{spec.name}`: {text}", "warning"))
    return tuple(found)


def _found(spec: ToolSpec) -> Iterator[str]:
    sentence = _FULL_STOP.split(spec.description.strip(), maxsplit=1)[0]
    if len(sentence) > MAX_SENTENCE_CHARS:
        yield (
            f"the first sentence of its description has {len(sentence)} characters, {MAX_SENTENCE_CHARS} at most before the "
            "first full stop"
        )
    if _JUDGED.search(sentence) and not _WHEN.search(sentence):
        yield "the first sentence of its description has to say when to use it: `... when the user asks for ...`"
    yield from _parameters(spec.parameters)
    if spec.timeout_s > MAX_TIMEOUT_S:
        yield f"`timeout_s` is {spec.timeout_s:g}, {MAX_TIMEOUT_S:g} at most: what takes longer is to be made a run"
    if (
        spec.output is not None
        and not spec.result_fields
        and (depth := _nested(spec.output, spec.output, 0)) > MAX_NESTED
    ):
        yield (
            f"its result has objects in objects, {depth} deep: make it flat, or name what the model needs in `result_fields`"
        )


def _parameters(schema: Mapping[str, Any]) -> Iterator[str]:
    properties = schema.get("properties")
    named = properties if isinstance(properties, Mapping) else {}
    for name in schema.get("required", ()):
        if name not in named:
            yield f"`required` names `{name}`, which is no parameter"
    for name, inner in named.items():
        said = _description(inner, schema)
        if not said.strip():
            yield f"parameter `{name}` has no description"
        about = followed(inner, schema)
        open_text = (
            isinstance(about, Mapping)
            and "string" in types_of(about)
            and not {"enum", "pattern", "format"} & about.keys()
        )
        if open_text and _CLOSED_SET.search(said):
            yield f"parameter `{name}` takes one of a few values: give them as an enum (`Literal[...]`)"


def _description(schema: Any, root: Mapping[str, Any]) -> str:
    for each in (schema, followed(schema, root)):
        said = each.get("description") if isinstance(each, Mapping) else None
        if isinstance(said, str):
            return said
    return ""


def _nested(schema: Any, root: Mapping[str, Any], depth: int) -> int:
    """How many objects with named fields lie within each other."""
    schema = followed(schema, root)
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return 0
    inner = [
        *_values(schema.get("properties")),
        *_branches(schema),
        schema.get("items"),
        schema.get("additionalProperties"),
    ]
    return bool(schema.get("properties")) + max((_nested(each, root, depth + 1) for each in inner), default=0)


def _values(named: Any) -> list[Any]:
    return list(named.values()) if isinstance(named, Mapping) else []


def _branches(schema: Mapping[str, Any]) -> list[Any]:
    return [branch for key in ("anyOf", "oneOf", "allOf", "prefixItems") for branch in schema.get(key, ())]
