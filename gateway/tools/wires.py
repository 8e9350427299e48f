"""The `tools` array of a turn, in the words of every kind of server.

Knows the client's tools, which stay as they came, and the registry's. Each tool was encoded when its spec was made.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.chat.schemas.dialect import SchemaDialect
from gateway.tools.spec import ToolSpec, renamed_wire


class ToolWires(msgspec.Struct, frozen=True):
    """What goes upstream as `tools`.

    Attributes:
        client: the client's tools, encoded as it sent them.
        own: registry tools, with the names they are offered under.
    """

    client: tuple[bytes, ...]
    own: tuple[tuple[str, ToolSpec], ...]

    @property
    def whole(self) -> bytes | None:
        """The array in all of JSON Schema; None where there is none."""
        parts = [*self.client, *(_wire(name, spec, "whole") for name, spec in self.own)]
        return b"[" + b",".join(parts) + b"]" if parts else None

    def differing(self, dialect: SchemaDialect) -> bytes | None:
        """The array in a dialect; None where it is `whole`'s."""
        for _, spec in self.own:
            if dialect in spec.wires:
                break
        else:
            return None
        return b"[" + b",".join([*self.client, *(_wire(name, spec, dialect) for name, spec in self.own)]) + b"]"

    def also(self, name: str, spec: ToolSpec) -> ToolWires:
        """With one more tool, behind the others."""
        return ToolWires(self.client, (*self.own, (name, spec)))


NO_WIRES: Final = ToolWires((), ())


def _wire(name: str, spec: ToolSpec, dialect: SchemaDialect) -> bytes:
    wire = spec.wires.get(dialect, spec.wire)
    return wire if name == spec.name else renamed_wire(wire, name)
