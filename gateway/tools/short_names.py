"""Servers' own names for their tools, for as long as each means one tool alone.

Pure. A tool of a server is called `SERVER__TOOL`, always; `TOOL` alone is another way to say it while nothing else has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.tools.names import callable_name
from gateway.tools.spec import ToolSpec


class ShortNames:
    """The short names among some tools.

    Attributes:
        names: the tool's whole name by its short one, where that is unique.
        ambiguous: the whole names that a short one may mean, where it is not.
    """

    def __init__(self, specs: Mapping[str, ToolSpec]) -> None:
        self._specs = specs
        meant: dict[str, list[str]] = {}
        for spec in specs.values():
            if (short := short_name(spec)) is not None:
                meant.setdefault(short, []).append(spec.name)
        self.names = {short: whole[0] for short, whole in meant.items() if len(whole) == 1 and short not in specs}
        self.ambiguous = {
            short: tuple(whole) for short, whole in meant.items() if len(whole) > 1 and short not in specs
        }

    def find(self, name: str) -> ToolSpec | None:
        """The tool that a name in a file, a key or a header means, or None.

        A server's tool may be named in its server's own letters too: they are mapped as the tool's name was.
        """
        for each in (name, callable_name(name)):
            spec = self._specs.get(each) or self._specs.get(self.names.get(each, ""))
            if spec is not None:
                return spec
        return None


def short_name(spec: ToolSpec) -> str | None:
    """What a server's tool is called without its server; None for other tools."""
    return callable_name(spec.remote_name) if spec.remote_name else None
