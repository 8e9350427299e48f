"""What is wrong with what `@tool(...)` was given, as its author is told.

Pure. Knows the kinds of the arguments and which of them exclude each other. Type hints are `schema.py`'s.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway.tools.decorator import Declaration

_MOST_RETRIES: Final = 10


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) for name in value)


_KINDS: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("description", lambda value: value is None or isinstance(value, str), "text"),
    ("parameters", lambda value: value is None or isinstance(value, Mapping), "a JSON Schema, as a dict"),
    ("timeout_s", _is_number, "a number"),
    (
        "retries",
        lambda value: value is None or (isinstance(value, int) and not isinstance(value, bool)),
        "a whole number",
    ),
    ("writes", _is_flag, "True or False"),
    ("deletes", _is_flag, "True or False"),
    ("allowed_roles", _are_names, "a list of roles"),
    ("requires", _are_names, "a list of tools' names"),
    ("result_fields", _are_names, "a list of paths"),
    ("sensitive", _are_names, "a list of parameters' names and of paths in the result"),
    ("cache_ttl_s", _is_number, "a number"),
    ("shared_cache", _is_flag, "True or False"),
    ("price", _is_number, "a number"),
    (
        "idempotency_key",
        lambda value: value is None or callable(value) or _are_names(value),
        "a list of parameters' names, or a function",
    ),
    ("probe", lambda value: value is None or callable(value), "a function"),
    ("needs_confirmation", _is_flag, "True or False"),
    ("confidence_gate", _is_flag, "True or False"),
    (
        "compensate",
        lambda value: value is None or isinstance(value, str) or callable(value),
        "a tool, or a tool's name",
    ),
)


def faults(declaration: Declaration) -> tuple[list[str], bool]:
    """Every mistake in words, and whether the declaration is fit to be read further."""
    label = f"tool `{declaration.name}`"
    of_wrong_kind = [
        f"{label}: `{argument}` must be {wanted}, got {_shown(getattr(declaration, argument))}"
        for argument, fits, wanted in _KINDS
        if not fits(getattr(declaration, argument))
    ]
    if of_wrong_kind:
        return of_wrong_kind, False
    return [f"{label}: {text}" for text in _wrong(declaration)], True


def _shown(value: Any) -> str:
    return repr(value[0] if isinstance(value, tuple) and len(value) == 1 else value)


def _wrong(declaration: Declaration) -> list[str]:
    found = []
    if not declaration.timeout_s > 0:
        found.append(f"`timeout_s` must be greater than 0, got {declaration.timeout_s!r}")
    if declaration.retries is not None and not 0 <= declaration.retries <= _MOST_RETRIES:
        found.append(f"`retries` must be from 0 to {_MOST_RETRIES}, got {declaration.retries!r}")
    for argument, amount in (("cache_ttl_s", declaration.cache_ttl_s), ("price", declaration.price)):
        if amount < 0:
            found.append(f"`{argument}` must be 0 or more, got {amount!r}")
    only_writing = (
        ("idempotency_key", declaration.idempotency_key),
        ("probe", declaration.probe),
        ("compensate", declaration.compensate),
    )
    for argument, value in only_writing:
        if value is not None and not declaration.writes:
            found.append(f"`{argument}` is for tools with `writes=True`")
    if declaration.writes and declaration.cache_ttl_s:
        found.append(f"results of a writing tool are never kept: `cache_ttl_s` must be 0{_by_name(declaration)}")
    if declaration.shared_cache and not declaration.cache_ttl_s:
        found.append("`shared_cache` needs a `cache_ttl_s`")
    check: Any = declaration.check
    if declaration.writes and isinstance(check, Mapping):
        found.append("the `check` of a writing tool must be a function: a check writes nothing")
    if not (check is None or callable(check) or isinstance(check, Mapping)):
        found.append(f"`check` must be a function or a call's arguments, got {check!r}")
    return found + _probe_faults(declaration)


def _probe_faults(declaration: Declaration) -> list[str]:
    """What a probe asks for and would never get: it would raise, and every outcome stay unknown."""
    if declaration.probe is None:
        return []
    known = inspect.signature(declaration.function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return []
    try:
        wanted = inspect.signature(declaration.probe).parameters.values()
    except ValueError:  # a builtin that does not say
        return []
    return [
        f"`probe` takes `{parameter.name}`, which is no parameter of the tool"
        for parameter in wanted
        if parameter.name not in known
        and parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    ]


def _by_name(declaration: Declaration) -> str:
    """What to say to whoever does not know that a name alone can make a tool a deleting one."""
    return "; its name says that it deletes: say `deletes=False` if it does not" if declaration.deletes else ""
