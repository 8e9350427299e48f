"""Plugin files as modules.

Knows how to import a folder's files under names of their own, so that two gateways, or two versions of one, hold separate
copies. Does not know what is in them.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
import uuid
from collections.abc import Sequence
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from gateway.errors import Problem
from gateway.tools.sources import told


class PluginFiles:
    """The plugin modules of some folders.

    Attributes:
        modules: what was imported, in order, by the name of its file.
        problems: what could not be, with file and line.
        importing: the file that is being imported, or was last.
        digest: hex SHA-256 over every source file of the folders, hooks and helper modules included.
    """

    def __init__(self, places: Sequence[Path], named_at: Sequence[Problem] = ()) -> None:
        """`places`: folders, whose `*.py` files that don't begin with `_` are plugins, or single files.

        `named_at` says where each of them is configured, as problems without words.
        """
        self.modules: list[tuple[str, ModuleType]] = []
        self.problems: list[Problem] = []
        self.digest = ""
        self.importing = ""
        self._places = places
        self._named_at = named_at
        self._prefix = f"_hermes_plugins_{uuid.uuid4().hex}"
        self._finder = _Finder(self._prefix)

    def load(self) -> None:
        """Import every plugin. Runs their code, so not on the event loop."""
        importlib.invalidate_caches()
        sys.meta_path.insert(0, self._finder)
        self.digest = _digest(self._places)
        for number, place in enumerate(self._places):
            if not place.exists():
                at = self._named_at[number] if self._named_at else Problem("tools.plugins", 0, "")
                text = f"`tools.plugins` names `{told(place)}`, and there is no such folder or file"
                self.problems.append(replace(at, message=text))
                continue
            folder = place if place.is_dir() else place.parent
            package = ModuleType(f"{self._prefix}_{number}")
            package.__path__ = [str(folder)]
            sys.modules[package.__name__] = package
            for file in self._files(place):
                self._import(file, package.__name__)

    def unload(self) -> None:
        """Forget the modules. Whoever still holds one of their functions can go on calling it."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        for name in [name for name in sys.modules if name.startswith(self._prefix)]:
            del sys.modules[name]

    @staticmethod
    def _files(place: Path) -> list[Path]:
        if not place.is_dir():
            return [place]
        packages = [folder / "__init__.py" for folder in place.iterdir() if (folder / "__init__.py").is_file()]
        files = [*place.glob("*.py"), *packages]
        return sorted(file for file in files if not _stem(file).startswith(("_", ".")))

    def _import(self, file: Path, package: str) -> None:
        name = _stem(file)
        if not name.isidentifier():
            self.problems.append(Problem(str(file), 0, f"a plugin's name must be a Python name, got {name!r}"))
            return
        self.importing = str(file)
        try:
            self.modules.append((name, importlib.import_module(f"{package}.{name}")))
        except SyntaxError as error:
            self.problems.append(Problem(told(error.filename or file), error.lineno or 0, f"SyntaxError: {error.msg}"))
        except BaseException as error:  # noqa: BLE001 - foreign code in a thread: whatever it raises is a problem of its file
            self.problems.append(problem_in(file, error))


def problem_in(file: Path, error: BaseException) -> Problem:
    """A plugin's exception as a problem: the last line of its own file that was on the way, and the message."""
    name = str(file.absolute())
    own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    # Half a surrogate pair could not be told to anybody.
    text = str(error).strip().encode(errors="replace").decode()
    return Problem(told(file), (own[-1] or 0) if own else 0, f"{type(error).__name__}{': ' if text else ''}{text}")


def _digest(places: Sequence[Path]) -> str:
    total = hashlib.sha256()
    for place in places:
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if file.is_file():
                source = file.read_bytes()
                total.update(f"{file.name} {len(source)}\n".encode())
                total.update(source)
    return total.hexdigest()


def _stem(file: Path) -> str:
    return file.parent.name if file.name == "__init__.py" else file.stem


class _Finder(MetaPathFinder):
    """Finds what lies under one prefix, always from source."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader) and spec.origin is not None:
            spec.loader = _FreshLoader(fullname, spec.origin)
            spec.cached = None
        return spec


class _FreshLoader(SourceFileLoader):
    """Compiles from source each time: cached bytecode is matched by whole seconds, and an edit may be quicker."""

    def path_stats(self, path: Any) -> Any:
        raise OSError(f"no cached bytecode for {path}")
