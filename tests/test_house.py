"""The house itself: what it imports, what it locks, and that its commands agree with each other."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("pip", "base", "models", "dev", "real")
HEAVY = ("litellm", "sentence_transformers", "torch", "transformers")
BANNED = {"litellm": {"1.82.7", "1.82.8", "1.107.0"}}

# One interpreter that has loaded none of our modules forks once a module, so that each import starts from nothing of
# ours. What it loads beforehand is third-party, learnt from a first child, and only saves time.
IMPORT_EACH_ALONE = """
import contextlib, importlib, json, os, sys, traceback

def in_a_child(report):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            json.dump(report(), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(said) if said and not status else f"ended with status {status}"

def third_party():
    for name in sys.argv[1:]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    return [name for name in sys.modules if name.split(".")[0] not in {"gateway", "__main__"}]

def problem_of(name):
    try:
        importlib.import_module(name)
    except BaseException:
        return traceback.format_exc()
    return ""

for name in in_a_child(third_party):
    with contextlib.suppress(Exception):
        importlib.import_module(name)
problems = {name: in_a_child(lambda: problem_of(name)) for name in sys.argv[1:]}
print(json.dumps({name: problem for name, problem in problems.items() if problem}))
"""

WHAT_IS_LOADED_AFTER = """
import json, sys
try:
    {statement}
except SystemExit as end:
    if end.code:
        raise
print("\\n" + json.dumps(sorted(sys.modules)))
"""


def run_python(program: str, *arguments: str) -> str:
    """What `program` printed, run by a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules() -> list[str]:
    """Every importable module: not `__main__`, which runs, nor migrations, which Alembic loads."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / "gateway").rglob("*.py"))
    parts = (path.parts[:-1] if path.name == "__init__" else path.parts for path in paths)
    return sorted({".".join(part) for part in parts if part[-1] != "__main__" and "migrations" not in part})


@dataclass(frozen=True)
class Pin:
    """One requirement of a lock."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def pins(lock: str) -> list[Pin]:
    """The requirements of a lock, in order. A line that is neither one nor its hashes fails."""
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    found = []
    for entry in text.replace("\\\n", " ").splitlines():
        if not entry.strip() or entry.startswith("#"):
            continue
        match = re.fullmatch(r"([a-z0-9-]+)==(\S+)(?: ; (.*?))?((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*", entry)
        assert match, f"{lock}.lock holds more than pins and hashes: {entry!r}"
        name, version, marker, hashes = match.groups()
        found.append(Pin(name, version, marker or "", tuple(hashes.split())))
    return found


def wanted(file: str) -> set[str]:
    """The names in a requirements/*.in file, normalised, without extras and versions."""
    lines = (ROOT / "requirements" / f"{file}.in").read_text(encoding="utf-8").splitlines()
    return {requirement_name(line) for line in lines if line.strip() and not line.startswith("#")}


def requirement_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return re.sub(r"[._-]+", "-", match.group()).lower()


def imported(path: Path) -> set[str]:
    """The top-level names that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def import_failures() -> dict[str, str]:
    failures: dict[str, str] = json.loads(run_python(IMPORT_EACH_ALONE, *modules()).splitlines()[-1])
    return failures


@pytest.mark.timeout(330)  # the first one imports all of them
@pytest.mark.parametrize("module", modules())
def test_module_can_be_imported_alone(module: str, import_failures: dict[str, str]) -> None:
    assert module not in import_failures, import_failures[module]


@pytest.mark.parametrize(
    "statement",
    [
        "import gateway.app",
        "import runpy; sys.argv = ['hermes-gateway', '--help']; runpy.run_module('gateway', run_name='__main__')",
    ],
    ids=["import of the app", "help"],
)
def test_starting_loads_no_heavy_library(statement: str) -> None:
    loaded = json.loads(run_python(WHAT_IS_LOADED_AFTER.format(statement=statement)).splitlines()[-1])
    assert "gateway" in loaded
    assert [name for name in loaded if name.split(".")[0] in HEAVY] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_hashes_every_requirement_and_names_no_address(lock: str) -> None:
    found = pins(lock)
    assert found
    assert [pin.name for pin in found if not pin.hashes] == []
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    assert re.findall(r"\w+://\S*|--(?:extra-)?index-url|--find-links|^.* @ .*$", text, re.MULTILINE) == []


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_no_banned_version_and_no_torch(lock: str) -> None:
    found = pins(lock)
    assert [pin for pin in found if pin.version in BANNED.get(pin.name, ())] == []
    assert [pin.name for pin in found if pin.name in {"torch", "triton"} or pin.name.startswith("nvidia-")] == []


def test_banned_versions_are_refused_where_requirements_are_written() -> None:
    lines = (ROOT / "requirements" / "base.in").read_text(encoding="utf-8").splitlines()
    written = [line for line in (*lines, *pyproject()["project"]["dependencies"]) if line.startswith("litellm")]
    assert len(written) == 2
    for line in written:
        assert all(f"!= {version}" in line for version in BANNED["litellm"]), line


def test_locks_agree_with_each_other() -> None:
    versions: dict[tuple[str, str], set[str]] = {}
    for pin in (pin for lock in LOCKS for pin in pins(lock)):
        versions.setdefault((pin.name, pin.marker), set()).add(pin.version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_what_was_asked_for(lock: str) -> None:
    # A requirement of the tests may also be one of the gateway, and then stands in base.lock.
    held = {pin.name for pin in (*pins(lock), *pins("base"))}
    assert wanted(lock) - held == set()


def test_project_asks_for_what_the_locks_are_made_from() -> None:
    project = pyproject()
    build = {requirement_name(name) for name in project["build-system"]["requires"]}
    asked = {requirement_name(name) for name in project["project"]["dependencies"]}
    assert asked | build == wanted("base") | wanted("models")
    assert build <= {pin.name for pin in pins("base")}


@pytest.mark.parametrize(
    ("folders", "files"),
    [(("gateway", "plugins"), ("base", "models")), (("tests", "bench"), ("base", "models", "dev", "real"))],
    ids=["gateway", "tests"],
)
def test_what_is_imported_is_asked_for(folders: tuple[str, ...], files: tuple[str, ...]) -> None:
    asked = {name for file in files for name in wanted(file)}
    asked |= {
        requirement_name(name) for extra in pyproject()["project"]["optional-dependencies"].values() for name in extra
    }
    owners = packages_distributions()
    ours = {"gateway", "plugins", "tests", "bench", "routes"}
    unasked = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "node_modules" not in path.parts
        for name in imported(path) - ours - sys.stdlib_module_names
        if name in owners and asked.isdisjoint(requirement_name(owner) for owner in owners[name])
    }
    assert unasked == set()


def test_node_lock_names_no_address_and_checks_every_package() -> None:
    lock = json.loads((ROOT / "tests" / "node" / "package-lock.json").read_text(encoding="utf-8"))
    packages = {path: package for path, package in lock["packages"].items() if path}
    assert packages
    assert [path for path, package in packages.items() if "resolved" in package] == []
    assert [path for path, package in packages.items() if not package.get("integrity", "").startswith("sha512-")] == []


def test_hooks_run_the_commands_of_make_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in hooks["repos"]] == ["local"]
    entries = [hook["entry"] for hook in hooks["repos"][0]["hooks"]]
    # `make -n` prints the commands as they would run; -o leaves the installation out of them.
    listing = subprocess.run(
        ["make", "--no-print-directory", "-n", "-o", ".venv/.stamp-test", "check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert sorted(listing.stdout.splitlines()) == sorted(entries)


def test_example_environment_names_only_variables_that_are_read() -> None:
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    named = set(re.findall(r"^#? ?([A-Z][A-Z_]+)=", text, re.MULTILINE))
    assert {"BASE_URL", "MODEL_NAME", "API_KEY"} <= named
    assert named - {str(field.validation_alias) for field in Settings.model_fields.values()} == set()


def test_ci_runs_exactly_make_test() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "make" in line and not line.startswith("#")] == ["exec make test"]
