"""How people are told where a plugin's code stands.

Knows that files below the working directory are named from there, as the configuration's and the routes' are.
"""

from __future__ import annotations

from pathlib import Path


def told(file: str | Path) -> str:
    """The file's path from the working directory where it lies below it, else as it is."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_absolute() and path.is_relative_to(Path.cwd()) else path)
