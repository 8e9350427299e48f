"""The built program as processes of their own, in a folder that holds copies of the shipped files.

Knows how to start, stop and run it. What is asked of it is the test's.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.settings import UNSERVED, Settings

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0
_SCRIPT = Path(sys.executable).with_name("hermes-gateway")
# Installed, it is the script people call; else the same program as a module of this folder.
COMMAND = (str(_SCRIPT),) if _SCRIPT.exists() else (sys.executable, "-m", "gateway")
_OURS = {str(field.validation_alias) for field in Settings.model_fields.values() if field.validation_alias}
_OURS |= {*UNSERVED, "ORDERS_DB", "FILES_ROOT", "NOTES_ROOT"}


def write_drill(folder: Path, config: Mapping[str, Any], tools: Sequence[str], plugin: str) -> None:
    """The files of a gateway that sends everything to one route, which has these tools of one plugin file."""
    route = {"route": "all", "model": "m", "match": "when", "when": {"models": ["auto"]}, "tools": list(tools)}
    for name in ("config", "routes", "plugins"):
        (folder / name).mkdir()
    (folder / "config" / "gateway.yaml").write_text(yaml.safe_dump(dict(config)))
    (folder / "routes" / "all.yaml").write_text(yaml.safe_dump(route))
    (folder / "plugins" / "drill.py").write_text(plugin)


@dataclass(frozen=True)
class Program:
    """A program that serves.

    Attributes:
        url: `http://HOST:PORT` as the program printed it.
        folder: its working directory: `config/`, `routes/`, `plugins/`, `data/`.
        printed: what it has printed once it listened.
        started: `time.monotonic()` right before the process was made.
    """

    process: subprocess.Popen[str]
    url: str
    folder: Path
    printed: str
    started: float

    @property
    def log(self) -> str:
        """What it has written to standard error so far."""
        return (self.folder / "stderr.txt").read_text(encoding="utf-8")

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, how: signal.Signals = signal.SIGTERM, timeout_s: float = 20) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(how)
        return self.process.wait(timeout_s)


def copy_shipped(folder: Path) -> Path:
    """The shipped files, as a newcomer has them, in a folder of the test."""
    for name in ("config", "routes", "plugins"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without anything that the gateway would read, and these variables."""
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    paths = [str(ROOT), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), **variables}


def run(folder: Path, *arguments: str, timeout_s: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@contextmanager
def program(
    folder: Path,
    *arguments: str,
    command: tuple[str, ...] = COMMAND,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """Serve on a free port from `folder`, which holds the files already; stopped at the end, whatever happens."""
    started = time.monotonic()
    with (folder / "stderr.txt").open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [*command, "serve", "--port", "0", *arguments],
            cwd=folder,
            env=environment(**(variables or {})),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        printed = _until_it_listens(process, folder)
        url = next(word for word in printed.split() if word.startswith("http://"))
        yield Program(process, url, folder, printed, started)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        if process.stdout is not None:
            process.stdout.close()


def _until_it_listens(process: subprocess.Popen[str], folder: Path) -> str:
    """What it prints up to the end of the `curl` line."""
    assert process.stdout is not None
    printed = ""
    deadline = time.monotonic() + START_S
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while "curl" not in printed or not printed.rstrip().endswith("}'"):
            if not ready.select(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"it does not listen after {START_S:g} s: {printed}{_errors(folder)}")
            # Past the buffer of `stdout`, which would hide from the selector what it holds.
            more = os.read(process.stdout.fileno(), 65536).decode()
            if not more:
                raise AssertionError(f"it ended with {process.wait(10)}: {printed}{_errors(folder)}")
            printed += more
    return printed


def _errors(folder: Path) -> str:
    return (folder / "stderr.txt").read_text(encoding="utf-8")[-4000:]
