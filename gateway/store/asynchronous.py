"""SQLAlchemy's asynchronous engine and connections, without its object-relational mapper.

Knows how SQLAlchemy's package is laid out. Does not know databases.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

    __all__ = ["AsyncConnection", "AsyncEngine", "create_async_engine"]

_PACKAGE: Final = "sqlalchemy.ext.asyncio"


def _engine() -> Any:
    """The module with the engine.

    Its package imports sessions, and with them the mapper, which nobody here uses: 5 MB and a tenth of a start. So the package
    stands empty while that one module is imported; whoever imports it later gets all of it, with the same engine.
    """
    if _PACKAGE in sys.modules:
        return importlib.import_module(f"{_PACKAGE}.engine")
    spec = find_spec(_PACKAGE)
    assert spec is not None
    sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        module = importlib.import_module(f"{_PACKAGE}.engine")
    finally:
        del sys.modules[_PACKAGE]
    # What the package does at its end.
    importlib.import_module("sqlalchemy.util.concurrency")._concurrency_shim._initialize()  # noqa: SLF001
    return module


if not TYPE_CHECKING:
    _module = _engine()
    AsyncConnection = _module.AsyncConnection
    AsyncEngine = _module.AsyncEngine
    create_async_engine = _module.create_async_engine
