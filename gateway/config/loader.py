"""Files and environment in, one proved bundle out.

Knows the order of things: read, validate, lay the environment over, check what names what. Blocks on files: call it in a
thread once the event loop runs. Does not know routers, backends or tools.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gateway.config.bundle import Bundle, digest_of
from gateway.config.calibration import read_calibration
from gateway.config.document import Document, read_document
from gateway.config.files import Files, display, read_files
from gateway.config.models import GatewayConfig, RouteConfig
from gateway.config.names import WILDCARD, ModelNames, fallback_circle
from gateway.config.schedules import schedule_problems
from gateway.config.section import NAME_PATTERN
from gateway.config.unserved import GATEWAY_UNSERVED, ROUTE_UNSERVED
from gateway.config.validation import validate
from gateway.config.variables import Variables
from gateway.errors import ConfigError, Problem
from gateway.settings import Settings, overrides

# What BASE_URL and MODEL_NAME make: the backend's name, and the model's where MODEL_NAME cannot be one.
ENVIRONMENT_BACKEND: Final = "env"
RESERVED_KEY_NAMES: Final = frozenset({"admin", "local", "oidc"})
STORED_KEY_PREFIX: Final = "key_"


# What is a replica's own affair or a secret: only that a secret is set is part of the digest.
_OWN: Final = frozenset({"PORT", "DATABASE_URL", "REDIS_URL"})
_SECRET: Final = frozenset({"GATEWAY_ADMIN_KEY"})
_ENCODER_OWN: Final = {"base_url", "api_key", "headers"}


def load(config_path: Path, routes_path: Path | None, settings: Settings, *, offline: bool = False) -> Bundle:
    """Read and prove everything.

    Args:
        config_path: the gateway's own file.
        routes_path: the folder of the route files, or None for no routes. A folder that is missing is a mistake.
        settings: the environment; wins over the files.
        offline: whether variables without a value are warnings; such a bundle is for looking at alone.

    Raises:
        ConfigError: with every problem that was found, ordered by file and line.
    """
    problems: list[Problem] = []
    return load_files(read_files(config_path, routes_path, problems), settings, problems, offline=offline)


def load_files(
    files: Files, settings: Settings, problems: list[Problem] | None = None, *, offline: bool = False
) -> Bundle:
    """Prove files that have been read, here or by another replica.

    Args:
        files: what was read.
        settings: this process's environment.
        problems: what was found while reading.
        offline: as in `load`.

    Raises:
        ConfigError: as `load`.
    """
    problems = [] if problems is None else problems
    variables = Variables(settings.variables, offline)
    document = config = None
    environment_model: str | None = None
    if files.gateway is not None:
        document = read_document(files.gateway_name, files.gateway, variables, problems)
    if document is not None:
        before = len(_errors(problems))
        environment_model = _lay_over(document, settings, problems)
        # What a file with a broken variable or a duplicate key says is still worth checking, and never used.
        config = validate(GatewayConfig, document, problems, GATEWAY_UNSERVED)
        if config is not None and len(_errors(problems)) == before:
            problems += _config_problems(config, document)
    routes, places = _routes(files, variables, problems)
    if config is not None:
        routes = _with_environment_model(config, routes, environment_model)
        problems += _route_problems(config, routes, places)
        if document is not None:
            problems += _exempt_problems(config, routes, document, places)
        if document is not None and not _errors(problems):
            problems += _unknown_to_keys(config, [route.route for route in routes], document)
    calibration = None
    if files.calibration is not None:
        calibration = read_calibration(files.calibration_name, files.calibration, problems)
    if config is None or document is None or _errors(problems):
        raise ConfigError(_ordered(problems))
    return Bundle(
        config=config,
        routes=routes,
        digest=_digest(files, config, routes, settings),
        files=files,
        calibration=calibration,
        warnings=_ordered(problems),
        _gateway=document,
        _routes=places,
    )


def _errors(problems: Iterable[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.severity == "error"]


def _ordered(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(dict.fromkeys(problems), key=lambda problem: (problem.file, problem.line)))


def _lay_over(document: Document, settings: Settings, problems: list[Problem]) -> str | None:
    """Put the environment's values into the document; answer the name of the model that it makes, if it makes one."""
    for place, (name, value) in overrides(settings).items():
        document.override(place, value, name)
    if settings.base_url is None or settings.model_name is None:
        return None
    for section in ("backends", "models"):
        if not isinstance(document.value.get(section), dict):
            document.value[section] = {}
    if ENVIRONMENT_BACKEND in document.value["backends"]:
        problems.append(
            document.problem(
                ("backends", ENVIRONMENT_BACKEND),
                f"the backend name `{ENVIRONMENT_BACKEND}` belongs to BASE_URL and MODEL_NAME; unset them, or rename it",
            )
        )
        return None
    backend: dict[str, Any] = {"provider": "openai", "base_url": settings.base_url, "model": settings.model_name}
    document.override(("backends", ENVIRONMENT_BACKEND), backend, "BASE_URL, MODEL_NAME")
    if settings.api_key is not None:
        document.override(("backends", ENVIRONMENT_BACKEND, "api_key"), settings.api_key, "API_KEY")
    name = _environment_model_name(document.value, settings.model_name)
    document.override(("models", name), {"backends": [ENVIRONMENT_BACKEND]}, "MODEL_NAME")
    document.override(("router", "default"), name, "MODEL_NAME")
    return name


def _environment_model_name(value: dict[str, Any], wanted: str) -> str:
    """The model's own name where that is a name and free, so that clients may ask for it too."""
    router = value.get("router")
    taken = {"auto", *_keys(value.get("models")), *_keys(value.get("aliases"))}
    if isinstance(router, dict):
        taken.add(str(router.get("model")))
    return wanted if re.match(NAME_PATTERN, wanted) and wanted not in taken else ENVIRONMENT_BACKEND


def _keys(section: Any) -> Iterable[str]:
    return section if isinstance(section, dict) else ()


def _config_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    problems = []
    for name, model in config.models.items():
        for index, member in enumerate(model.backends):
            if member.name not in config.backends:
                message = f"there is no backend `{member.name}`{_near(member.name, config.backends)}"
                problems.append(document.problem(("models", name, "backends", index), message))
            elif WILDCARD in (config.backends[member.name].model or "") and WILDCARD not in name:
                message = (
                    f"the backend `{member.name}` has a `*` in its model, and the model `{name}` has none to fill it"
                )
                problems.append(document.problem(("models", name, "backends", index), message))
    problems += _fallback_problems(config, document) + _stand_in_problems(config, document)
    names = ModelNames(config.models, config.aliases)
    for alias, target in config.aliases.items():
        if alias in config.models:
            problems.append(document.problem(("aliases", alias), f"the alias `{alias}` is the name of a model too"))
        if target in config.aliases or names.find(target) is None:
            message = f"the alias `{alias}` names no model: there is no `{target}`{_near(target, config.models)}"
            problems.append(document.problem(("aliases", alias), message))
    router = config.router
    if router.model in config.models or router.model in config.aliases:
        message = f"`router.model` is `{router.model}`, which is the name of a model or an alias too"
        problems.append(document.problem(("router", "model"), message))
    if router.default not in config.models:
        message = (
            f"`router.default` names no model: there is no `{router.default}`{_near(router.default, config.models)}"
        )
        problems.append(document.problem(("router", "default"), message))
    problems += _helper_problems(config, document)
    if not config.storage.database.startswith(("sqlite:///", "postgresql://", "postgres://", "postgresql+asyncpg://")):
        message = "`storage.database` must begin with `sqlite:///` or `postgresql://`; others are not supported"
        problems.append(document.problem(("storage", "database"), message))
    problems += schedule_problems(config, document)
    return problems + _key_problems(config, document) + _webhook_problems(config, document)


def _helper_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Models that are asked beside a turn's own."""
    named: list[tuple[tuple[str, ...], str | None, str]] = [
        (("tools", "extract", "model"), config.tools.extract.model, "condense results"),
        (("context", "summary", "model"), config.context.summary.model, "write summaries"),
    ]
    return [
        document.problem(place, f"there is no model `{name}` to {what}{_near(name, config.models)}")
        for place, name, what in named
        if name is not None and config.aliases.get(name, name) not in config.models
    ]


def _exempt_problems(
    config: GatewayConfig, routes: tuple[RouteConfig, ...], document: Document, places: dict[str, Document]
) -> list[Problem]:
    """Backends that may see what is private, and are not there: one that is misspelt would be sent placeholders."""
    said = [(config.privacy.exempt_backends, document)]
    said += [
        (route.privacy.exempt_backends or (), places[route.route]) for route in routes if route.privacy is not None
    ]
    return [
        where.problem(
            ("privacy", "exempt_backends", index), f"there is no backend `{name}`{_near(name, config.backends)}"
        )
        for names, where in said
        for index, name in enumerate(names)
        if name not in config.backends
    ]


def _fallback_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Wildcards that cannot be read, and fallbacks that lead nowhere or round in a circle."""
    problems = []
    told: set[frozenset[str]] = set()
    for name, model in config.models.items():
        if name.count(WILDCARD) > 1:
            problems.append(document.problem(("models", name), f"the name `{name}` may hold one `*` only"))
        for index, fallback in enumerate(model.fallbacks):
            place = ("models", name, "fallbacks", index)
            if config.aliases.get(fallback, fallback) not in config.models:
                known = [*config.models, *config.aliases]
                message = f"there is no model `{fallback}` to fall back to{_near(fallback, known)}"
                problems.append(document.problem(place, message))
        circle = fallback_circle(name, config.models, config.aliases)
        # A circle of three is one mistake, not three.
        if circle is not None and frozenset(circle) not in told:
            told.add(frozenset(circle))
            message = f"the fallbacks of `{name}` lead back to it (a cycle): {' -> '.join(circle)}"
            problems.append(document.problem(("models", name, "fallbacks"), message))
    return problems


def _stand_in_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Models that do a part of another one's work, and are not there."""
    problems = []
    known = [*config.models, *config.aliases]
    for name, model in config.models.items():
        for part in ("tool_model", "answer_model", "escalate"):
            named = getattr(model, part)
            if named is not None and (meant := config.aliases.get(named, named)) not in config.models:
                message = f"there is no model `{named}`{_near(meant, known)}"
                problems.append(document.problem(("models", name, part), message))
    return problems


def _webhook_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    return [
        document.problem(
            ("approvals", "webhooks", index), f"there is no webhook `{name}`{_near(name, config.webhooks)}"
        )
        for index, name in enumerate(config.approvals.webhooks)
        if name not in config.webhooks
    ]


def _key_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    problems = []
    seen: dict[str, str] = {} if config.keys.admin_key is None else {config.keys.admin_key: "admin"}
    for name, key in config.keys.static.items():
        place = ("keys", "static", name)
        # Every stored row bears its owner: the key's name, then `/` and the end user where there is one.
        if name in RESERVED_KEY_NAMES or "/" in name:
            message = (
                f"a key must not be named `{name}`: `admin`, `local` and `oidc` are taken, and `/` parts key and user"
            )
            problems.append(document.problem(place, message))
        if name.startswith(STORED_KEY_PREFIX):
            message = (
                f"a key must not be named `{name}`: names in `{STORED_KEY_PREFIX}` are those of keys in the database"
            )
            problems.append(document.problem(place, message))
        if key.team is not None and key.team not in config.teams:
            message = f"there is no team `{key.team}`{_near(key.team, config.teams)}"
            problems.append(document.problem((*place, "team"), message))
        if key.key in seen:
            message = f"the keys `{seen[key.key]}` and `{name}` have the same value; nobody could tell them apart"
            problems.append(document.problem(place, message))
        seen.setdefault(key.key, name)
    return problems


def _unknown_to_keys(config: GatewayConfig, routes: list[str], document: Document) -> list[Problem]:
    """What keys may ask for, or be sent to, and is not there: it harms nobody, and is most often misspelt."""
    names = ModelNames(config.models, config.aliases)
    known = [config.router.model, *config.models, *config.aliases]
    problems = []
    for key, static in config.keys.static.items():
        for index, name in enumerate(static.models or ()):
            if WILDCARD not in name and name != config.router.model and names.find(name) is None:
                text = f"the key `{key}` may ask for `{name}`, and there is no such model{_near(name, known)}"
                problems.append(document.problem(("keys", "static", key, "models", index), text, "warning"))
        for index, name in enumerate(static.routes or ()):
            if name not in routes:
                text = f"the key `{key}` may be sent to `{name}`, and there is no such route{_near(name, routes)}"
                problems.append(document.problem(("keys", "static", key, "routes", index), text, "warning"))
    return problems


def _routes(
    files: Files, variables: Variables, problems: list[Problem]
) -> tuple[tuple[RouteConfig, ...], dict[str, Document]]:
    routes: dict[str, RouteConfig] = {}
    places: dict[str, Document] = {}
    for file, content in files.routes.items():
        document = read_document(file, content, variables, problems)
        if document is None:
            continue
        route = validate(RouteConfig, document, problems, ROUTE_UNSERVED)
        if route is None:
            continue
        if (first := places.get(route.route)) is not None:
            message = f"the route `{route.route}` stands in two files; first at {first.file}:{first.line(('route',))}"
            problems.append(document.problem(("route",), message))
            continue
        routes[route.route] = route
        places[route.route] = document
    return tuple(routes[name] for name in sorted(routes)), places


def _with_environment_model(
    config: GatewayConfig, routes: tuple[RouteConfig, ...], model: str | None
) -> tuple[RouteConfig, ...]:
    """Routes that lead to the demo alone lead to the environment's model, where there is one."""
    if model is None:
        return routes
    demos = {
        name
        for name, found in config.models.items()
        if all(
            member.name in config.backends and config.backends[member.name].provider == "demo"
            for member in found.backends
        )
    }
    return tuple(
        route.model_copy(update={"model": model}) if config.aliases.get(route.model, route.model) in demos else route
        for route in routes
    )


def _route_problems(
    config: GatewayConfig, routes: tuple[RouteConfig, ...], places: dict[str, Document]
) -> list[Problem]:
    names = [*config.models, *config.aliases]
    problems = []
    for route in routes:
        if route.model not in config.models and route.model not in config.aliases:
            message = (
                f"the route `{route.route}` names no model: there is no `{route.model}`{_near(route.model, names)}"
            )
            problems.append(places[route.route].problem(("model",), message))
    return problems


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def _digest(files: Files, config: GatewayConfig, routes: tuple[RouteConfig, ...], settings: Settings) -> str:
    """Over what decides."""
    parts = [("file:gateway", files.gateway or b"")]
    parts += [(f"file:route:{files.within(name)}", content) for name, content in files.routes.items()]
    if files.calibration is not None:
        parts.append(("file:calibration", files.calibration))
    if files.gate is not None:
        # It decides nothing. But what was proved by other lines is not proved by these.
        parts.append(("file:gate", files.gate))
    # With variables expanded: two replicas of one digest decide alike, whatever their environments say elsewhere.
    parts += [(f"route:{route.route}", route.model_dump_json().encode()) for route in routes]
    deciding = config.model_dump_json(
        include={"router", "models", "aliases"}, exclude={"router": {"semantic": {"encoder": _ENCODER_OWN}}}
    )
    parts.append(("config", deciding.encode()))
    for name, value in overrides(settings).values():
        if name not in _OWN:
            parts.append((f"env:{name}", b"set" if name in _SECRET else str(value).encode()))
    parts += [
        (f"env:{name}", value.encode())
        for name, value in (("BASE_URL", settings.base_url), ("MODEL_NAME", settings.model_name))
        if value is not None
    ]
    if settings.api_key is not None:
        parts.append(("env:API_KEY", b"set"))
    return digest_of(parts)


__all__ = ["display", "load"]
