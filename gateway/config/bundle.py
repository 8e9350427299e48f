"""Everything the files and the environment say, proved and frozen.

A pure value. Knows where each part came from, so that later checks can name file and line.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.config.calibration import CalibrationFile
from gateway.config.document import Document, Path
from gateway.config.files import Files
from gateway.config.models import GatewayConfig, RouteConfig
from gateway.errors import Problem


@dataclass(frozen=True, slots=True)
class Bundle:
    """What one generation of the gateway is built from.

    Attributes:
        config: `config/gateway.yaml` with the environment laid over it.
        routes: every route, ordered by name.
        digest: hex SHA-256 over the files as written, what routes and models say with variables expanded, and the environment's
            settings, secrets left out. Two bundles of one digest may still differ in secrets: compare `config` too.
        calibration: what `routes/calibration.json` says, or None where there is none.
        warnings: what is well-formed and probably not meant.
        files: what it was read from, as written.
    """

    config: GatewayConfig
    routes: tuple[RouteConfig, ...]
    digest: str
    calibration: CalibrationFile | None = None
    warnings: tuple[Problem, ...] = ()
    files: Files = field(default_factory=lambda: Files("gateway.yaml", None, {}, None), repr=False, compare=False)
    _gateway: Document = field(default_factory=lambda: Document("gateway.yaml"), repr=False, compare=False)
    _routes: Mapping[str, Document] = field(default_factory=dict, repr=False, compare=False)

    def problem(self, path: Path, message: str, severity: str = "error") -> Problem:
        """A problem at a place of the gateway's own file, for example `("backends", "small", "module")`."""
        return self._gateway.problem(path, message, severity)

    def route_problem(self, route: str, path: Path, message: str, severity: str = "error") -> Problem:
        """A problem at a place of a route's file, for example `("orders", ("patterns", 0), ...)`."""
        document = self._routes.get(route)
        return document.problem(path, message, severity) if document else Problem(route, 0, message, severity)

    @property
    def whole(self) -> bool:
        """Whether every model and backend that is named is there; not so where a variable without a value names it."""
        config = self.config
        models = {*config.models, *config.aliases}
        named = {config.router.default, *config.aliases.values(), *(route.model for route in self.routes)}
        backends = {member.name for model in config.models.values() for member in model.backends}
        return named <= models and backends <= set(config.backends)

    def missing_tools(self, known: Collection[str]) -> tuple[Problem, ...]:
        """A problem for every tool that is named and not among `known`."""
        return self.tool_problems(lambda name: None if name in known else (no_tool(name, known), "error"))

    def tool_problems(
        self, judge: Callable[[str], tuple[str, str] | None], run_types: Collection[str] = ()
    ) -> tuple[Problem, ...]:
        """A problem for every tool that is named and about which `judge` says something: words, and how severe it is.

        Keys may name `run_types` among their tools.
        """
        problems = [
            self._gateway.problem(path, *said)
            for path, name in self._named_tools()
            if not (path[0] == "keys" and name in run_types) and (said := judge(name)) is not None
        ]
        for route in self.routes:
            problems += [
                self.route_problem(route.route, ("tools", index), *said)
                for index, name in enumerate(route.tools or ())
                if (said := judge(name)) is not None
            ]
        return tuple(problems)

    def _named_tools(self) -> Iterable[tuple[Path, str]]:
        for index, name in enumerate(self.config.tools.default):
            yield ("tools", "default", index), name
        for name in self.config.tools.limits:
            yield ("tools", "limits", name), name
        for model, config in self.config.models.items():
            for index, name in enumerate(config.tools or ()):
                yield ("models", model, "tools", index), name
        for key, static in self.config.keys.static.items():
            for index, name in enumerate(static.tools or ()):
                yield ("keys", "static", key, "tools", index), name


def no_tool(name: str, known: Collection[str]) -> str:
    """What to say of a tool that is not there."""
    return f"there is no tool `{name}`{_hint(name, known)}"


def digest_of(parts: Iterable[tuple[str, bytes]]) -> str:
    """Hex SHA-256 over named parts, whatever their order; no two different sets run together into one input."""
    total = hashlib.sha256()
    for name, content in sorted(parts):
        for piece in (name.encode(), content):
            total.update(len(piece).to_bytes(8, "big"))
            total.update(piece)
    return total.hexdigest()


def _hint(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
