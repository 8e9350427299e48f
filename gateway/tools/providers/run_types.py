"""Types of runs as plugins declare them, read into types that can be run.

Knows what may be wrong with a declaration. Does not run anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from gateway.config.limits import ROLES
from gateway.tools.decorator import RunDeclaration
from gateway.tools.providers.contained import contained
from gateway.tools.run_types import NAME_PATTERN, OWN_TYPES, RunType
from gateway.tools.schema import Unreadable, read_signature
from gateway.tools.validate import ArgumentValidator, SchemaInvalid


def made_run_type(declared: RunDeclaration, file: str, resources: Mapping[str, Any]) -> RunType:
    """The type that a plugin declares in this file; `resources` may still be filled.

    Raises:
        Unreadable: it cannot be one; the message says why.
    """
    if not isinstance(declared.name, str) or not NAME_PATTERN.fullmatch(declared.name):
        raise Unreadable("its name must be 1 to 64 letters, digits and `._/:-`, and begin with a letter or digit")
    if declared.name in OWN_TYPES:
        raise Unreadable("that is a type of the gateway's own; give it another name")
    if not inspect.iscoroutinefunction(declared.function):
        raise Unreadable("its handler must be an `async def`")
    nobodys = sorted(set(declared.allowed_roles) - ROLES)
    if nobodys:
        raise Unreadable(f"`allowed_roles`: there is no role `{nobodys[0]}`; there are {', '.join(sorted(ROLES))}")
    timeout_s = declared.timeout_s
    if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s > 0):
        raise Unreadable(f"`timeout_s` is {timeout_s!r}; expected seconds above 0")
    signature = read_signature(declared.function, declared.parameters)
    try:
        validator = ArgumentValidator(signature.parameters)
    except SchemaInvalid as error:
        raise Unreadable(f"its parameters are no usable JSON Schema: {error}") from error
    return RunType(
        declared.name,
        contained(declared.function),
        signature,
        validator,
        frozenset(declared.allowed_roles),
        timeout_s,
        f"{file}:{declared.line}",
        resources,
    )
