"""The pages for users name everything there is, and nothing that is not.

What is there is asked of the code itself: its models, tables, parser and registry.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.routing import Route

from gateway import cli
from gateway.api.application import create_app
from gateway.api.errors import TABLE, describe, internal
from gateway.api.services import Services
from gateway.cli import _parser
from gateway.config.document import read_document
from gateway.config.loader import load
from gateway.config.models import GatewayConfig, RouteConfig
from gateway.config.unserved import GATEWAY_UNSERVED, ROUTE_UNSERVED
from gateway.config.validation import _without_none
from gateway.config.variables import Variables
from gateway.errors import Problem, UpstreamError
from gateway.observe.events import EventType
from gateway.observe.metrics import BackendStanding, Metrics
from gateway.observe.runs_metrics import RunsMetrics
from gateway.routing.decision import Candidate, Decision
from gateway.routing.explain import REASONS
from gateway.routing.scripts import LANGUAGES
from gateway.settings import UNSERVED, Settings
from gateway.store.trace_records import TraceSummary
from gateway.tools.provider import HOOK_NAMES
from gateway.tools.providers.python import PythonProvider
from gateway.turn.state import State
from tests.documents import ROOT, Example, code, examples, pages, rows, said_twice, section, text_of


def first_code(found: Iterable[Mapping[str, str]], head: str) -> list[str]:
    return [code(row[head])[0] for row in found]


# --- Configuration ---------------------------------------------------------------------------------------------------


def keys_of(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key a file may have, as the pages write it: NAME for a free name, `[]` for an entry."""
    for name, field in model.model_fields.items():
        yield from _keys_below(_without_none(field.annotation), above + name, field)


def _keys_below(kind: Any, place: str, field: FieldInfo) -> Iterator[tuple[str, FieldInfo]]:
    arguments = [_without_none(argument) for argument in get_args(kind)]
    if _is_model(kind):
        if field.is_required() or field.default is None or isinstance(field.default, str):
            yield place, field
        yield from keys_of(kind, f"{place}.")
        return
    yield place, field
    if arguments and _is_model(arguments[-1]):
        yield from keys_of(arguments[-1], f"{place}.NAME.")
    elif arguments and _is_model(arguments[0]):
        yield from keys_of(arguments[0], f"{place}[].")


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def default_of(field: FieldInfo) -> Any:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(("model", "starts_with_route"), [(GatewayConfig, False), (RouteConfig, True)])
def test_every_key_of_a_file_is_documented_with_its_default(model: type[BaseModel], starts_with_route: bool) -> None:
    text = text_of("configuration")
    routes = section(text, "Route files")
    table = rows(routes if starts_with_route else text.replace(routes, ""), "key", "type", "default", "meaning")
    written = {code(row["key"])[0]: yaml.safe_load(row["default"].strip("`*")) for row in table}
    assert len(written) == len(table), "a key stands in two rows"
    assert written == {key: default_of(field) for key, field in keys_of(model)}
    assert all(row["meaning"] and row["type"] for row in table)


def test_the_words_that_a_key_takes_are_documented() -> None:
    found = {**dict(keys_of(GatewayConfig)), **dict(keys_of(RouteConfig))}
    words = {key: _words(field.annotation) for key, field in found.items()}
    table = rows(text_of("configuration"), "key", "type", "default", "meaning")
    told = {code(row["key"])[0]: {*code(row["type"]), *code(row["meaning"])} for row in table}
    assert {key: missing for key, known in words.items() if (missing := known - told[key])} == {}
    assert set(LANGUAGES) <= told["when.language"]


def _words(annotation: Any) -> set[str]:
    arguments = get_args(annotation)
    here = {argument for argument in arguments if isinstance(argument, str)}
    return here.union(*(_words(argument) for argument in arguments if not isinstance(argument, str)))


def test_what_this_version_does_not_serve_is_listed() -> None:
    text = section(text_of("configuration"), "Not supported by this version")
    _, gateway, route, environment = text.split("\n\n")[:4]
    assert set(code(gateway)[1:]) == {".".join(key) for key in GATEWAY_UNSERVED}
    assert set(code(route)) == {".".join(key) for key in ROUTE_UNSERVED}
    assert set(code(environment)) == set(UNSERVED)


def test_every_variable_of_the_environment_is_documented() -> None:
    table = rows(section(text_of("configuration"), "Environment"), "variable", "overrides", "meaning")
    known = {str(field.validation_alias) for field in Settings.model_fields.values() if field.validation_alias}
    assert set(first_code(table, "variable")) == known
    keys = dict(keys_of(GatewayConfig))
    assert {key for row in table for key in code(row["overrides"])} - set(keys) == set()


def test_the_example_environment_tells_true_defaults() -> None:
    written = re.findall(r"^# ([A-Z_]+)=(.+)$", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE)
    keys = dict(keys_of(GatewayConfig))
    table = rows(section(text_of("configuration"), "Environment"), "variable", "overrides", "meaning")
    overrides = {code(row["variable"])[0]: code(row["overrides"]) for row in table}
    told = {name: (value, str(default_of(keys[overrides[name][0]]))) for name, value in written if overrides[name]}
    told.pop("MODEL_NAME")
    assert len(told) >= 5
    assert {name: values for name, values in told.items() if values[0] != values[1]} == {}


# --- HTTP ------------------------------------------------------------------------------------------------------------


def served() -> set[str]:
    app = create_app(Services(*[None] * len(Services.__dataclass_fields__)))  # type: ignore[arg-type]
    return {f"{method} {path}" for path, methods in _paths(app.routes) for method in methods}


def _paths(routes: Iterable[Any]) -> Iterator[tuple[str, set[str]]]:
    for route in routes:
        assert isinstance(route, Route), f"an endpoint of a kind this test does not know: {route!r}"
        yield route.path.replace(":path", ""), (route.methods or set()) - {"HEAD"}


def test_every_endpoint_is_documented() -> None:
    table = rows(text_of("api"), "endpoint", "needs", "does")
    assert set(first_code(table, "endpoint")) == served()


def literals(folder: str, *kinds: type) -> Iterator[str]:
    """Texts and bytes in the code of a folder, docstrings left out."""
    for path in sorted((ROOT / "gateway" / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, kinds):
                value = node.value
                yield value.decode("latin-1") if isinstance(value, bytes) else str(value)


_HEADER = re.compile(r"authorization|traceparent|[a-z]+(-[a-z]+)+")


def headers_of_the_api() -> tuple[set[str], set[str]]:
    """Headers that are looked for, and headers that are sent: a pair of bytes whose first part is a name, or a line of a head."""
    asked: set[str] = set()
    sent: set[str] = set()
    for path in sorted((ROOT / "gateway" / "api").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Tuple) and len(node.elts) == 2:
                sent |= _names(node.elts[:1])
            elif isinstance(node, ast.Compare):
                asked |= _names([node.left, *node.comparators])
            elif isinstance(node, ast.Dict):
                asked |= _names(node.keys)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                asked |= _names(node.args)
            elif isinstance(node, ast.JoinedStr):
                parts = [str(each.value) for each in node.values if isinstance(each, ast.Constant)]
                sent |= set(_LINE.findall("\0".join(parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, bytes):
                sent |= set(_LINE.findall(node.value.decode("latin-1")))
    return asked, sent - _FRAMING


# The server's own, of no interest to who reads answers.
_FRAMING = {"connection", "transfer-encoding"}
# At the beginning of a head's line, which ends with a line break.
_LINE = re.compile(r"(?:^|%b|\r\n)([a-z][a-z-]+): [^\r]*(?=\r\n)")


def _names(nodes: Iterable[ast.expr | None]) -> set[str]:
    values = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, bytes)]
    return {text for value in values if _HEADER.fullmatch(text := value.decode("latin-1"))}


def test_every_header_is_documented_and_no_other() -> None:
    text = text_of("api")
    asked, sent = headers_of_the_api()
    assert set(first_code(rows(text, "header", "meaning"), "header")) == asked
    assert set(first_code(rows(text, "header", "when", "meaning"), "header")) == sent
    response = section(text, "Headers of an answer")
    upstream = response.split("To backends")[1]
    known = re.compile(r"x-[a-z-]+[a-z]|retry-after(-ms)?|traceparent|authorization|accept-encoding|content-type")
    assert {text for text in literals("backends", str) if known.fullmatch(text)} - set(code(upstream)) == set()


def codes_in_code() -> set[tuple[str, str]]:
    """Status and code of every error: the table's rows, and what the API says beside it."""
    found = {(str(status), code or "null") for status, _, code in TABLE.values()}
    for answer in (internal(), *(describe(UpstreamError("", status=status)) for status in (429, 502, 503))):
        found.add((str(answer.status), answer.code or "null"))
    return found | {
        ("404", "unknown_url"),
        ("405", "method_not_allowed"),
        ("408", "request_timeout"),
        ("431", "head_too_large"),
    }


def test_every_error_is_documented_and_no_other() -> None:
    table = rows(section(text_of("api"), "Errors"), "status", "type", "code", "meaning")
    told = {(row["status"], row["code"].strip("`")) for row in table}
    assert told == codes_in_code()
    types = {(str(status), kind, code or "null") for status, kind, code in TABLE.values()}
    assert types - {(row["status"], row["type"].strip("`"), row["code"].strip("`")) for row in table} == set()
    # The four that stand in no table are what the API really says.
    assert {"unknown_url", "method_not_allowed", "request_timeout", "head_too_large"} <= set(literals("api", str))


def test_a_decision_is_documented_field_by_field() -> None:
    told = set(code(text_of("api") + text_of("routing")))
    assert set(Decision.__struct_fields__) - told == set()
    strategies = set(get_args(Decision.__annotations__["strategy"])) or {"rule", "semantic", "default", "explicit"}
    assert strategies - told == set()
    verdicts = set(first_code(rows(text_of("routing"), "verdict", "meaning"), "verdict"))
    assert verdicts == {*re.findall(r"`([a-z_]+)`", str(Candidate.__doc__).split("verdict:")[1])}
    assert set(first_code(rows(text_of("routing"), "reason", "meaning"), "reason")) == set(REASONS)


# --- Commands --------------------------------------------------------------------------------------------------------


def commands() -> dict[str, argparse.ArgumentParser]:
    actions = _parser()._actions
    found = next(action for action in actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")}


def test_every_command_is_documented_with_every_option() -> None:
    text = text_of("cli")
    common = {name.split()[0] for name in first_code(rows(text.split("\n## ")[0], "option", "meaning"), "option")}
    assert common == {"--config", "--routes", "--help"}
    assert options(_parser()) == {"--help", "--version"} <= {*common, *code(text)}
    titles = set(re.findall(r"^## (\S+)$", text, re.MULTILINE))
    assert titles == set(commands())
    for name, parser in commands().items():
        told = {option.split()[0] for option in first_code(rows(section(text, name), "option", "meaning"), "option")}
        assert told | common == options(parser), name
        for action in parser._actions:
            assert {str(choice) for choice in action.choices or ()} <= set(re.findall(r"\w+", section(text, name))), (
                name
            )


def test_every_exit_code_is_documented() -> None:
    told = {row["exit code"] for row in rows(text_of("cli"), "exit code", "meaning")}
    assert told == set(re.findall(r"\b(\d) ", str(cli.__doc__).split("Exit codes:")[1]))


# --- Observing -------------------------------------------------------------------------------------------------------


def emitted() -> dict[str, set[str]]:
    """The data keys that the code names where it records an event, by the event's type."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for kind, keys in emitted_in(node):
                    assert isinstance(kind, ast.Constant), f"{path.name}: which event is {ast.unparse(kind)}?"
                    found.setdefault(str(kind.value), set()).update(keys)
    return found


def emitted_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[ast.expr, set[str]]]:
    """The events a function records, each with the keys that it names: as keywords, in a dict, or in one it has a name for."""
    named: dict[str, ast.expr] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named[node.targets[0].id] = node.value
    for node in ast.walk(function):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr == "emit":
            yield node.args[0], {word.arg for word in node.keywords if word.arg}
        elif node.func.attr == "add" and ast.unparse(node.func.value).rpartition(".")[2] == "record":
            kind, data = node.args
            if isinstance(data, ast.Name):
                data = named.get(data.id, data)
            keys = data.keys if isinstance(data, ast.Dict) else ()
            yield kind, {str(key.value) for key in keys if isinstance(key, ast.Constant)}


def test_every_event_is_documented_with_its_data() -> None:
    table = rows(section(text_of("observe"), "Events"), "event", "when", "data")
    told = {code(row["event"])[0]: set(code(row["data"])) for row in table}
    assert set(told) == set(get_args(EventType))
    in_code = emitted()
    assert set(in_code) == set(told)
    assert {name: left for name, keys in in_code.items() if (left := keys - told[name])} == {}


def test_states_and_fields_of_a_trace_are_documented() -> None:
    told = set(code(section(text_of("observe"), "Events")))
    assert {state.value for state in State} - told == set()
    fields = set(first_code(rows(text_of("observe"), "field", "meaning"), "field"))
    assert fields == {*TraceSummary.__struct_fields__, "id", "object", "events"} - {"trace_id"}


def metrics_in_code() -> dict[str, tuple[str, set[str]]]:
    metrics = Metrics(lambda: {"idle": 0}, lambda: {"b1": BackendStanding(0, 0, 0, 0.1)})
    metrics.count_traces_dropped(int)
    metrics.count_reload_failures(int)
    metrics.show_config(float, float, float, float)
    metrics.show_calls(float, float, float)
    metrics.show_servers(lambda: {"docs": True}, lambda: {"docs": 0})
    registry: CollectorRegistry = metrics.registry
    RunsMetrics(registry, dict)
    labels = {
        name: set(getattr(collector, "label_names", getattr(collector, "_labelnames", ())))
        for collector, names in registry._collector_to_names.items()
        for name in names
    }
    found = {}
    for family in registry.collect():
        if family.name.startswith("hermes_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            sampled = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = (family.type, labels.get(family.name, set()) | sampled)
    return found


def test_every_metric_is_documented_with_its_labels() -> None:
    table = rows(text_of("observe"), "metric", "kind", "labels", "meaning")
    told = {code(row["metric"])[0]: (row["kind"], set(code(row["labels"]))) for row in table}
    assert told == metrics_in_code()


def test_every_turns_log_line_is_documented() -> None:
    told = set(first_code(rows(text_of("observe"), "line", "level", "when"), "line"))
    for path in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            owner = ast.unparse(node.func.value)
            if owner in {"_log", "self._log"} and node.func.attr in {"info", "warning", "error", "exception"}:
                line = ast.literal_eval(node.args[0])
                # Lines with places in them are sentences of their own, and say what they are about.
                assert line in told or "%" in line, f"{path.name}: {line}"


# --- Hooks and examples ----------------------------------------------------------------------------------------------


def test_every_hook_is_documented_with_an_example() -> None:
    text = text_of("hooks")
    assert {
        call.split("(")[0] for call in first_code(rows(text, "hook", "called", "returns", "refuses by raising"), "hook")
    } == {*HOOK_NAMES}
    for name in HOOK_NAMES:
        assert f"async def {name}(" in section(text, name)


@pytest.mark.parametrize("page", [page.name for page in pages()])
def test_no_table_says_the_same_name_twice(page: str) -> None:
    assert said_twice(next(each for each in pages() if each.name == page).read_text(encoding="utf-8")) == []


def test_links_lead_somewhere() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"https?:", target):
                continue
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in {_anchor(title) for title in titles}, f"{page.name}: {target}"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


BASE: dict[str, Any] = {
    "backends": {"demo": {"provider": "demo"}},
    "models": {name: {"backends": ["demo"]} for name in ("demo", "fast", "strong")},
    "router": {"default": "demo"},
}


@pytest.mark.parametrize("example", [*examples("yaml")], ids=str)
def test_yaml_examples_are_what_the_loader_takes(example: Example, tmp_path: Path) -> None:
    variables = {name: f"value-of-{name}" for name in re.findall(r"\$\{(\w+)", example.text)}
    problems: list[Problem] = []
    document = read_document(str(example), example.text.encode(), Variables(variables), problems)
    assert problems == []
    assert document is not None
    whole: dict[str, Any] = copy.deepcopy(BASE)
    (tmp_path / "routes").mkdir()
    if "route" in document.value:
        (tmp_path / "routes" / "example.yaml").write_text(example.text, encoding="utf-8")
    elif {"backends", "models", "router"} <= set(document.value):
        whole = document.value
    else:
        assert set(document.value) <= set(GatewayConfig.model_fields), f"{example}: what is this a part of?"
        whole = _merged(whole, document.value)
    # What the part is about may name backends that stand elsewhere.
    for member in [member for model in whole["models"].values() for member in model["backends"]]:
        whole["backends"].setdefault(member if isinstance(member, str) else member["name"], {"provider": "demo"})
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    settings = Settings(variables=variables)
    bundle = load(tmp_path / "gateway.yaml", tmp_path / "routes", settings)
    assert len(bundle.routes) == ("route" in document.value)


def _merged(base: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(base[key], part[key]) for key in base.keys() & part.keys() if isinstance(part[key], dict)}
    return {**base, **part, **both}


def test_json_examples_are_json() -> None:
    for example in examples("json"):
        assert json.loads(example.text) is not None, example


def is_plugin(example: Example) -> bool:
    return "def register(" in example.text or any(f"async def {name}(" in example.text for name in HOOK_NAMES)


@pytest.mark.parametrize("example", [*examples("python")], ids=str)
async def test_python_examples_are_python_and_plugins_load(example: Example, tmp_path: Path) -> None:
    source = textwrap.dedent(example.text)
    compile(source, str(example), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if not is_plugin(example):
        return
    (tmp_path / "example.py").write_text(source, encoding="utf-8")
    provider = PythonProvider([tmp_path])
    try:
        specs = await provider.list()
        assert specs or provider.hooks or provider.brought or provider.run_types or provider.strategies
        assert {name for name in HOOK_NAMES if f"async def {name}(" in source} == set(provider.hooks)
    finally:
        await provider.close()


def test_the_readmes_commands_are_those_of_the_program() -> None:
    table = rows((ROOT / "README.md").read_text(encoding="utf-8"), "command", "does")
    named = {command.removeprefix("hermes-gateway ").split()[0] for command in first_code(table, "command")}
    assert named == set(commands())
    for row in table:
        parser = commands()[code(row["command"])[0].split()[1]]
        assert {option for option in code(row["does"]) if option.startswith("--")} <= options(parser)
