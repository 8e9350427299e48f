"""What a tool is: the spec the registry keeps, what a tool may know of its caller, and how it asks for more.

Pure. Knows names, schemas and flags; does not know how a tool is written (`decorator.py`) or run (`courier.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from gateway.chat.schemas.dialect import DIALECTS, SchemaDialect, Shaped, in_dialect

# What OpenAI takes as a function's name; every other provider takes at least this.
TOOL_NAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,64}")


# The argument in which a model says how sure it is of a call, where tools ask for that.
CONFIDENCE: Final = "confidence"
_CONFIDENCE_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "number",
    "minimum": 0,
    "maximum": 1,
    "description": "How sure you are that exactly this call is what the user wants, from 0 to 1.",
}


class ToolRetry(Exception):
    """Raised by a tool: the model should try again, and the message says how."""


class ToolFatal(Exception):
    """Raised by a tool: the turn has to end."""


class InvalidArguments(Exception):
    """The arguments of a call are not what the tool takes; the message tells the model field by field."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know of the turn that calls it. Not part of its schema.

    Attributes:
        user: the end user, or None.
        key: the id of the caller's key.
        team: the caller's team, or None.
        session: the session id the client gave, or None.
        trace_id: 32 hex digits.
        idempotency_key: the same for every attempt at the same call.
        resources: what the plugins' `lifespan()` yielded, by name; its provider fills it in.
        headers: the client's headers that the tool's `forward_headers` names, lower case; nobody gets any other.
    """

    user: str | None
    key: str
    team: str | None
    session: str | None
    trace_id: str
    idempotency_key: str
    resources: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool as the registry keeps it.

    Attributes:
        name: what models call it; matches OpenAI's name pattern `^[a-zA-Z0-9_-]{1,64}$`.
        description: the whole description that models read.
        parameters: JSON Schema of the arguments, an object schema, self-contained.
        wire: the tool as it stands in a Chat Completions request, encoded once, in all of JSON Schema.
        wires: the same in those dialects of schemas in which it is another.
        spec_hash: hex SHA-256 over everything that decides how it behaves.
        provider: the name of the provider that runs it.
        origin: `file:line` or server where it was declared.
        timeout_s: seconds one call may take, its retries included.
        writes: whether it changes something outside.
        deletes: whether what it changes is gone then; what deletes also writes.
        allowed_roles: roles that may be offered it; empty for everybody.
        retries: how often it is asked again after a connection failed; a writing tool only where it surely was not reached.
        effect_key: what makes two calls one effect, from the arguments, as a JSON value; None for each call its own.
        probed: whether its provider can find out if an effect happened.
        forward_headers: names, in lower case, of the client's headers that its provider is handed.
        remote_name: what its server calls it, where it is a server's tool; empty for others.
        requires: tools, by name, that must have succeeded in the thread before it is offered.
        result_fields: what of a result the model sees, as paths of keys with dots between; empty for all of it.
        sensitive: parameters, and fields of a result as paths, whose values no model, trace or log gets to see.
        cache_ttl_s: seconds a result may be used again for the same arguments; 0 for never. Never where it writes.
        shared_cache: whether a kept result may be another owner's.
        checked: whether its author wrote a self-check.
        output: JSON Schema of what it returns, where that is known.
        price: what one call costs, in the currency of the budgets.
        needs_confirmation: whether a human has to approve each call.
        confidence_gate: whether a human has to approve a call that the model is not sure of.
        compensate: the tool, by name, that undoes what it did; empty where nothing does.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    wire: bytes
    spec_hash: str
    provider: str
    origin: str
    timeout_s: float
    writes: bool = False
    allowed_roles: frozenset[str] = frozenset()
    retries: int = 0
    effect_key: Callable[[Mapping[str, Any]], Any] | None = None
    probed: bool = False
    forward_headers: tuple[str, ...] = ()
    remote_name: str = ""
    deletes: bool = False
    requires: tuple[str, ...] = ()
    result_fields: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    cache_ttl_s: float = 0
    shared_cache: bool = False
    checked: bool = False
    price: float = 0
    wires: Mapping[SchemaDialect, bytes] = field(default_factory=dict)
    output: Mapping[str, Any] | None = None
    needs_confirmation: bool = False
    confidence_gate: bool = False
    compensate: str = ""

    @property
    def gated(self) -> bool:
        """Whether some call of it may have to wait for a human."""
        return self.deletes or self.needs_confirmation or self.confidence_gate


def split_origin(origin: str) -> tuple[str, int]:
    """`file:line` as two values; the line is 0 where there is none."""
    file, _, line = origin.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (origin, 0)


def renamed_wire(wire: bytes, name: str) -> bytes:
    """An encoded tool under another name."""
    tool = msgspec.json.decode(wire)
    tool["function"]["name"] = name
    return msgspec.json.encode(tool)


def make_spec(
    *,
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    provider: str,
    origin: str,
    timeout_s: float,
    writes: bool = False,
    allowed_roles: frozenset[str] = frozenset(),
    retries: int = 0,
    effect_key: Callable[[Mapping[str, Any]], Any] | None = None,
    probed: bool = False,
    forward_headers: tuple[str, ...] = (),
    remote_name: str = "",
    deletes: bool = False,
    requires: tuple[str, ...] = (),
    result_fields: tuple[str, ...] = (),
    sensitive: tuple[str, ...] = (),
    cache_ttl_s: float = 0,
    shared_cache: bool = False,
    checked: bool = False,
    price: float = 0,
    output: Mapping[str, Any] | None = None,
    implementation: str = "",
    needs_confirmation: bool = False,
    confidence_gate: bool = False,
    compensate: str = "",
) -> ToolSpec:
    """A spec with its wire form and hash.

    `implementation` stands for the code behind it (a hash of the plugin's file, a server's version), so that a change
    there changes the hash. `origin` is left out of the hash: the same tool in another folder is the same tool.
    """
    said = {dialect: in_dialect(parameters, dialect) for dialect in DIALECTS}
    encoded = {dialect: _encoded(name, description, shaped) for dialect, shaped in said.items()}
    wire = encoded["whole"]
    decides = [
        wire.decode(),
        msgspec.json.encode(parameters).decode(),
        provider,
        timeout_s,
        writes,
        sorted(allowed_roles),
        retries,
        probed,
        deletes,
        requires,
        result_fields,
        sensitive,
        cache_ttl_s,
        shared_cache,
        price,
        implementation,
    ]
    if needs_confirmation or confidence_gate or compensate:
        decides += [needs_confirmation, confidence_gate, compensate]
    return ToolSpec(
        name=name,
        description=description,
        parameters=parameters,
        wire=wire,
        wires={dialect: other for dialect, other in encoded.items() if other != wire},
        spec_hash=hashlib.sha256(msgspec.json.encode(decides)).hexdigest(),
        provider=provider,
        origin=origin,
        timeout_s=timeout_s,
        writes=writes,
        allowed_roles=allowed_roles,
        retries=retries,
        effect_key=effect_key,
        probed=probed,
        forward_headers=forward_headers,
        remote_name=remote_name,
        deletes=deletes,
        requires=requires,
        result_fields=result_fields,
        sensitive=sensitive,
        cache_ttl_s=cache_ttl_s,
        shared_cache=shared_cache,
        checked=checked,
        price=price,
        output=output,
        needs_confirmation=needs_confirmation,
        confidence_gate=confidence_gate,
        compensate=compensate,
    )


def asking_confidence(spec: ToolSpec) -> ToolSpec:
    """The tool as a model is told of it that has to say how sure it is of a call. What it takes stays as it is."""
    properties = spec.parameters.get("properties") or {}
    if CONFIDENCE in properties:
        return spec
    parameters = {
        **spec.parameters,
        "properties": {**properties, CONFIDENCE: _CONFIDENCE_SCHEMA},
        "required": [*(spec.parameters.get("required") or ()), CONFIDENCE],
    }
    said = {dialect: in_dialect(parameters, dialect) for dialect in DIALECTS}
    encoded = {dialect: _encoded(spec.name, spec.description, shaped) for dialect, shaped in said.items()}
    wire = encoded["whole"]
    wires = {dialect: other for dialect, other in encoded.items() if other != wire}
    return replace(spec, wire=wire, wires=wires)


def _encoded(name: str, description: str, shaped: Shaped) -> bytes:
    function: dict[str, Any] = {"name": name, "description": description, "parameters": shaped.parameters}
    if shaped.strict:
        function["strict"] = True
    return msgspec.json.encode({"type": "function", "function": function})
