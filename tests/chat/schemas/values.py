"""Values to hold two schemas against: some that a schema takes, some that it nearly takes, some of any kind."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gateway.chat.schemas.references import followed

_KEYS = st.sampled_from(["a", "b", "c", "x", "kids", "mode"])
_LEAVES = st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from([0.5, 2.0, "", "a", "fast", "5", "ab" * 40])
ANY = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=6
)


def near(schema: Any, root: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that a schema mostly takes; one in some is off."""
    schema = followed(schema, root)
    if not isinstance(schema, dict) or depth > 6:
        return _LEAVES
    branches: list[st.SearchStrategy[Any]] = [
        near(branch, root, depth + 1) for key in ("anyOf", "oneOf", "allOf") for branch in schema.get(key, ())
    ]
    if "enum" in schema:
        branches.append(st.sampled_from(schema["enum"]))
    if "const" in schema:
        branches.append(st.just(schema["const"]))
    kinds = schema.get("type", [])
    named = [kinds] if isinstance(kinds, str) else kinds
    branches += [_of(kind, schema, root, depth) for kind in named]
    if not kinds and "properties" in schema:
        branches.append(_of("object", schema, root, depth))
    good = st.one_of(branches) if branches else ANY
    # Rarely off, as a value has many places.
    return st.integers(0, 14).flatmap(lambda number: good if number else ANY) if depth else good


def _of(kind: str, schema: dict[str, Any], root: Any, depth: int) -> st.SearchStrategy[Any]:
    match kind:
        case "object":
            named = {name: near(inner, root, depth + 1) for name, inner in schema.get("properties", {}).items()}
            needed = {name: named.get(name, ANY) for name in schema.get("required", ())}
            sure = st.fixed_dictionaries(needed, optional={name: named[name] for name in named if name not in needed})
            odd = st.tuples(sure, _KEYS, ANY).map(lambda each: {**each[0], each[1]: each[2]})
            return st.integers(0, 9).flatmap(lambda number: sure if number else odd)
        case "array":
            items = schema.get("items", {})
            listed = schema.get("prefixItems", items if isinstance(items, list) else [])
            each = ANY if isinstance(items, list) else near(items, root, depth + 1)
            least = schema.get("minItems", 0)
            lists = st.lists(each, min_size=least, max_size=min(least + 2, schema.get("maxItems", least + 2)))
            if not listed:
                return lists
            return st.tuples(*[near(inner, root, depth + 1) for inner in listed]).map(list) | lists
        case "string":
            least, most = schema.get("minLength", 0), min(schema.get("maxLength", 45), 300)
            good = (
                st.from_regex(schema["pattern"])
                if "pattern" in schema
                else st.sampled_from([least, most]).map("a".__mul__)
            )
            off = st.sampled_from([max(0, least - 1), most + 1, 3]).map("b".__mul__)
            return st.integers(0, 5).flatmap(lambda number: good if number else off)
        case "integer" | "number":
            low, high = schema.get("minimum", -2), schema.get("maximum", schema.get("minimum", 0) + 9)
            good = st.integers(int(low), max(int(low), int(high)))
            off = st.sampled_from([int(low) - 1, int(high) + 1, 0.5])
            return st.integers(0, 5).flatmap(lambda number: good if number else off)
        case "boolean":
            return st.booleans()
        case _:
            return st.none()
