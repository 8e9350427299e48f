"""One schema of arguments in the words of each kind of server.

Pure. Knows which keywords which servers lack; does not know which backend is which (`backends/tool_schemas.py`). A server that
lacks a keyword is told less, never something else: what it lets through is held against the whole schema when a call comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from gateway.chat.schemas.grammar import for_grammar
from gateway.chat.schemas.plain import plain
from gateway.chat.schemas.references import has_references, inlined
from gateway.chat.schemas.strict import strict
from gateway.chat.schemas.typed import typed
from gateway.chat.schemas.walk import Schema

SchemaDialect = Literal["whole", "inlined", "typed", "grammar", "strict"]
DIALECTS: Final[tuple[SchemaDialect, ...]] = get_args(SchemaDialect)


@dataclass(frozen=True, slots=True)
class Shaped:
    """A schema as a server takes it, and whether it may be told that answers have to keep to it."""

    parameters: Schema
    strict: bool = False


def in_dialect(parameters: Mapping[str, Any], dialect: SchemaDialect) -> Shaped:
    """A tool's parameters as servers of a kind take them.

    Args:
        parameters: any JSON Schema of an object.
        dialect: `whole` leaves what JSON Schema can say. `inlined` has no references. `typed`, Google's, has a type
            everywhere and no references. `grammar`, llama.cpp's, says what can be made a grammar. `strict`, OpenAI's
            strict mode, is `whole` for schemas that it cannot say.
    """
    said = plain(parameters)
    if dialect == "strict":
        closed = strict(said)
        return Shaped(said) if closed is None else Shaped(closed, strict=True)
    if dialect == "grammar":
        return Shaped(for_grammar(said))
    if dialect == "whole" or (dialect == "inlined" and not has_references(said)):
        return Shaped(said)
    without = inlined(said)
    return Shaped(typed(without) if dialect == "typed" else without)
