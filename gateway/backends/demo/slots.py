"""What a parameter wants, read from its name, schema and description.

Pure. Knows JSON Schemas of parameters; does not know the question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.backends.demo.words import concepts

SlotKind = Literal[
    "enum", "number", "boolean", "array", "object", "expression", "url", "email", "path", "date", "timezone", "place",
    "id", "currency", "language", "name", "query", "symbol", "clock",
]  # fmt: skip

_SPLIT: Final = re.compile(r"[_\-.\s]+|(?<=[a-z0-9])(?=[A-Z])")
_EXAMPLE: Final = re.compile(
    r"(?:for example|for instance|e\.g\.?|such as|like|example[s]?:?|例如|比如|譬如|如)[\s:：,，\"'`“「(（]*([A-Za-z0-9][\w-]*)",
    re.IGNORECASE,
)
_ID_LIKE: Final = re.compile(
    r"(?<![\w/.-])(?=[\w-]*\d)[A-Za-z]+[A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)+(?![\w/.-])|(?<![\w/.-])[A-Z]{1,4}\d{3,}(?![\w/.-])",
    re.ASCII,
)

# The words of a parameter's name, by what they ask for; the first row that has one of them decides.
_BY_NAME: Final[tuple[tuple[SlotKind, frozenset[str]], ...]] = (
    ("expression", frozenset("expression expr formula equation calculation math 表达式 算式".split())),
    ("url", frozenset("url uri link href website webpage 网址 链接".split())),
    ("email", frozenset("email mail 邮箱".split())),
    ("timezone", frozenset("timezone tz zone 时区".split())),
    ("path", frozenset("path file filename filepath directory folder dir 文件 路径".split())),
    ("date", frozenset("date day when deadline due 日期".split())),
    ("currency", frozenset("currency currencies 货币".split())),
    ("language", frozenset("language lang locale 语言".split())),
    ("clock", frozenset("time hour at 时间".split())),
    ("symbol", frozenset("symbol ticker 代码".split())),
    ("place", frozenset("city location place town country region destination origin address where area venue 城市 地点 位置".split())),
    ("query", frozenset("query q text message content prompt keyword keywords question search input term topic body subject sentence note phrase 内容 关键词 查询".split())),
    ("id", frozenset("id ids no number num code sku key ref reference ticket tracking uuid serial 单号 编号 订单号".split())),
    ("name", frozenset("name title person username user 名称 姓名".split())),
)  # fmt: skip
_BY_FORMAT: Final[dict[str, SlotKind]] = {
    "uri": "url",
    "url": "url",
    "email": "email",
    "date": "date",
    "date-time": "date",
    "uuid": "id",
}


# Unions within unions that are looked into, and alternatives of each. A schema may refer to itself in every one of its
# alternatives: their number to the power of the depth is what it would cost.
_DEEPEST_UNION: Final = 4
_MOST_OPTIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter.

    Attributes:
        name: as the schema has it.
        schema: its schema, references resolved and unions narrowed to one kind.
        kind: what it wants.
        required: whether the call is refused without it.
        words: the words of its name, in lower case.
        example: an id that its description shows, or None.
    """

    name: str
    schema: Mapping[str, Any]
    kind: SlotKind
    required: bool
    words: frozenset[str]
    example: str | None

    @property
    def about(self) -> frozenset[str]:
        """What its name and description speak of."""
        return concepts(self.name) | concepts(str(self.schema.get("description") or ""))


def slots_of(parameters: Mapping[str, Any]) -> tuple[Slot, ...]:
    """The parameters of an object schema, required ones first."""
    properties = parameters.get("properties")
    required = parameters.get("required")
    names = set(required) if isinstance(required, list) else set()
    if not isinstance(properties, dict):
        return ()
    slots = [_slot(str(name), narrow(schema, parameters), name in names) for name, schema in properties.items()]
    return tuple(sorted(slots, key=lambda slot: not slot.required))


def narrow(schema: Any, root: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """A schema without `$ref`, `anyOf`, `oneOf` or lists of types: the first alternative that is not null."""
    if not isinstance(schema, dict):
        return {}
    if isinstance(schema.get("$ref"), str) and depth < 8:
        target: Any = root
        for part in schema["$ref"].removeprefix("#").strip("/").split("/"):
            if part:
                target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**narrow(target, root, depth + 1), **rest}
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list) and depth < _DEEPEST_UNION:
            options = (narrow(option, root, depth + 1) for option in schema[union][:_MOST_OPTIONS])
            option = next((item for item in options if item.get("type") != "null"), {})
            rest = {key: value for key, value in schema.items() if key != union}
            return {**rest, **option, **({"description": rest["description"]} if "description" in rest else {})}
    if isinstance(schema.get("allOf"), list) and depth < _DEEPEST_UNION:
        merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"][:_MOST_OPTIONS]:
            narrowed = narrow(part, root, depth + 1)
            properties = {**(merged.get("properties") or {}), **(narrowed.get("properties") or {})}
            required = [*(merged.get("required") or []), *(narrowed.get("required") or [])]
            merged = {**narrowed, **merged}
            if properties:
                merged |= {"properties": properties, "required": required}
        return merged
    if isinstance(schema.get("type"), list):
        kinds = [kind for kind in schema["type"] if kind != "null"]
        return {**schema, "type": kinds[0] if kinds else "null"}
    return schema


def _slot(name: str, schema: dict[str, Any], required: bool) -> Slot:
    words = frozenset(word.lower() for word in _SPLIT.split(name) if word)
    # "cities" asks for what "city" asks for.
    words = words | {word[:-3] + "y" if word.endswith("ies") else word[:-1] for word in words if word.endswith("s")}
    kind = _kind(words, schema)
    return Slot(name, schema, kind, required, words, _example(schema) if kind == "id" else None)


def _kind(words: frozenset[str], schema: Mapping[str, Any]) -> SlotKind:
    if isinstance(schema.get("enum"), list) or "const" in schema:
        return "enum"
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return "number"
    if kind == "boolean":
        return "boolean"
    if kind == "array":
        return "array"
    if kind == "object" or isinstance(schema.get("properties"), dict):
        return "object"
    if schema.get("format") in _BY_FORMAT:
        return _BY_FORMAT[schema["format"]]
    for slot_kind, names in _BY_NAME:
        if words & names:
            return slot_kind
    return _from_description(str(schema.get("description") or ""), _example(schema))


def _from_description(description: str, example: str | None) -> SlotKind:
    lowered = description.lower()
    for word, kind in (
        ("expression", "expression"), ("url", "url"), ("e-mail", "email"), ("email", "email"), ("iana", "timezone"),
        ("time zone", "timezone"), ("timezone", "timezone"), ("currency", "currency"), ("language", "language"),
        ("city", "place"), ("location", "place"), ("place", "place"), ("城市", "place"), ("地点", "place"), ("date", "date"),
        ("日期", "date"), ("path", "path"), ("file", "path"),
    ):  # fmt: skip
        if re.search(rf"\b{word}\b" if word.isascii() else word, lowered):
            return kind  # type: ignore[return-value]  # the table holds slot kinds only
    if example is not None and any(char.isdigit() for char in example):
        return "id"
    return "query"


def _example(schema: Mapping[str, Any]) -> str | None:
    examples = schema.get("examples")
    if isinstance(examples, list) and examples and isinstance(examples[0], str):
        return examples[0]
    if isinstance(schema.get("example"), str):
        return str(schema["example"])
    description = str(schema.get("description") or "")
    like = _ID_LIKE.search(description)
    if like:
        return like.group()
    match = _EXAMPLE.search(description)
    return match.group(1) if match else None
