"""A tool as a server of tools describes it, before the gateway makes a spec of it.

Pure. Knows what of a description decides: a change of it is another tool. Does not know how it was fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """One tool in its server's own words.

    Attributes:
        name: what the server calls it; any text.
        description: what models read; may be empty.
        parameters: JSON Schema of the arguments.
        output: JSON Schema of structured results, or None.
        hints: what the server says of its effects: `readOnlyHint`, `destructiveHint` and the like, where it says so.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    output: Mapping[str, Any] | None = None
    hints: Mapping[str, bool] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Hex SHA-256 over all of it, whatever the order of keys."""
        whole = [self.name, self.description, self.parameters, self.output, self.hints]
        return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()
