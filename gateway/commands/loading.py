"""How a command's modules are imported: for good, and without what no command uses of their libraries.

Knows libraries that bring more along than is asked of them. Does not know any command.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    # Nothing of them is needed here, and half a megabyte comes with them.
    Loader = MetaPathFinder = object

# Packages of which we use single modules. What they import themselves waits until somebody asks for it: SQLAlchemy's mapper,
# and the types of PostgreSQL, uvicorn's command line, Prometheus' servers. 9 MB together, and a tenth of a start.
_LATE: Final = frozenset({"prometheus_client", "sqlalchemy.dialects.postgresql", "sqlalchemy.ext.asyncio", "uvicorn"})
# structlog takes it, wherever it is installed, for tracebacks in a terminal, which our log writes otherwise: 6 MB of every
# gateway.
_UNUSED: Final = "rich"
# Tells pydantic to look for no plugins: to find that there are none, it reads what every installed package says of itself.
_NO_PLUGINS: Final = "PYDANTIC_DISABLE_PLUGINS"


def loaded(name: str) -> ModuleType:
    """Import a module, for as long as the process lives."""
    # Looking for garbage among what is being imported finds next to none, and is a tenth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with _hidden(_UNUSED), _plain_models(), _late():
            return importlib.import_module(name)
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


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


@contextmanager
def _plain_models() -> Iterator[None]:
    """Models that are made meanwhile are pydantic's own; those of later modules get the plugins that are installed."""
    if _NO_PLUGINS in os.environ:
        yield
        return
    os.environ[_NO_PLUGINS] = "__all__"
    try:
        yield
    finally:
        del os.environ[_NO_PLUGINS]


@contextmanager
def _late() -> Iterator[None]:
    """Packages that are imported meanwhile are executed late, if they are among those of which we use single modules."""
    finder = _LateFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.at_work = False


class _LateFinder(MetaPathFinder):
    """Finds them where they are.

    Attributes:
        at_work: whether what uses single modules of them is still being imported.
    """

    def __init__(self) -> None:
        self.at_work = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As Python's own finder does, for these packages alone."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _LATE else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader, self)
        return spec


class _LateLoader(Loader):
    """Executes a package when it is first asked for something of its own."""

    def __init__(self, loader: Loader, finder: _LateFinder) -> None:
        self._loader = loader
        self._finder = finder
        self._lock = RLock()
        self._begun = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the package's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty, for now."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader

        def missing(name: str) -> Any:
            if self._finder.at_work and find_spec(f"{module.__name__}.{name}") is not None:
                # Its modules ask for each other; on hearing this, the import system looks for the module.
                raise AttributeError(name)
            with self._lock:
                if not self._begun:
                    self._begun = True
                    self._loader.exec_module(module)
                    vars(module).pop("__getattr__", None)
            try:
                return vars(module)[name]
            except KeyError:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}") from None

        vars(module)["__getattr__"] = missing
