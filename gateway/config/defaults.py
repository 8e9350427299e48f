"""Where the files are that nobody named, seen from the working directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DEFAULT_CONFIG: Final = Path("config/gateway.yaml")
DEFAULT_ROUTES: Final = Path("routes")
