"""How a command's modules are imported.

Knows what their libraries bring along that no command uses. Does not know any command.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

# structlog takes it, wherever it is installed, for tracebacks in a terminal, which our log writes otherwise: 6 MB of every
# gateway, and a twentieth of its start.
_UNUSED: Final = "rich"


def loaded(name: str) -> ModuleType:
    """Import a module."""
    with _hidden(_UNUSED):
        return importlib.import_module(name)


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """As if a package were not installed, for who asks meanwhile; who asks later finds it."""
    if name in sys.modules:
        yield
        return
    # What the import system takes for "there is none".
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
