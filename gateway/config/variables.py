"""`${NAME}` and `${NAME:-default}` in the values of the files.

Knows where a variable's value comes from. Does not know YAML: a value never becomes structure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# `$${` stands for a literal `${`.
_PLACE: Final = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")
_MAX_BYTES: Final = 64 * 1024


class UnknownVariable(Exception):
    """A variable that is unset and has no default, or that is written in a way nobody reads."""


class UnsetVariable(UnknownVariable):
    """A variable that is unset and has no default."""


@dataclass(frozen=True, slots=True)
class Variables:
    """The values by name. Empty counts as unset, and `NAME_FILE` names a file that holds the value of `NAME`."""

    values: Mapping[str, str]

    def expand(self, text: str) -> str:
        """`text` with every variable replaced.

        Raises:
            UnknownVariable: with a message that names the variable and never a value.
        """
        if "${" not in text:
            return text
        return _PLACE.sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name, default = match[1], match[2]
        if name is None:
            raise UnknownVariable(
                "`${` begins a variable: write `${NAME}` or `${NAME:-default}`, or `$${` for the text `${`"
            )
        value = self.values.get(name) or self._from_file(name)
        if value:
            return value
        if default is None:
            raise UnsetVariable(f"the variable {name} is not set; set it, or give a default: `${{{name}:-...}}`")
        return str(default)

    def _from_file(self, name: str) -> str | None:
        path = self.values.get(f"{name}_FILE")
        if not path:
            return None
        try:
            with Path(path).open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
            if len(content) > _MAX_BYTES:
                raise UnknownVariable(f"the file that {name}_FILE names is larger than {_MAX_BYTES // 1024} KiB")
            return content.decode("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UnknownVariable(f"the file that {name}_FILE names cannot be read: {reason}") from error
