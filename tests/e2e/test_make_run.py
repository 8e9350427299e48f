"""What `make run` starts, and the commands beside it, as processes with the shipped files."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.cli import main
from tests.e2e.program import Program, copy_shipped, environment, program, run
from tests.upstream import ScriptedUpstream, answer

QUESTION = "what is 12.5% of 18,640?"
HEAVY = ("litellm", "sentence_transformers", "torch", "transformers")
# The same program, which tells at its end what it has imported.
TELLS_ITS_MODULES = """
import json, pathlib, sys
from gateway.cli import main
code = main(sys.argv[1:])
pathlib.Path("modules.json").write_text(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_shipped(tmp_path)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command as the program does, without the start of an interpreter."""

    def call(cwd: Path, *arguments: str, **variables: str) -> Done:
        with monkeypatch.context() as here:
            for name in set(os.environ) - set(environment()):
                here.delenv(name)
            for name, value in variables.items():
                here.setenv(name, value)
            here.chdir(cwd)
            capfd.readouterr()
            try:
                code = main(arguments)
            except SystemExit as end:
                code = int(end.code or 0)
            printed = capfd.readouterr()
            return Done(code, printed.out, printed.err)

    return call


async def ask(url: str, text: str = QUESTION, model: str = "auto", **headers: str) -> tuple[int, dict[str, str], Any]:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        found = {name.lower(): value for name, value in response.headers.items()}
        return response.status, found, await response.json()


async def test_first_request_is_answered_within_5_s_of_the_start(folder: Path) -> None:
    with program(folder) as running:
        status, _, body = await ask(running.url)
        wall_s = time.monotonic() - running.started
        cpu_s = running.cpu_s
        print(f"first answer {wall_s:.2f} s after the start, {cpu_s:.2f} s of them on a processor")  # noqa: T201 - the figure is asked for
        assert status == 200
        assert "2330" in body["choices"][0]["message"]["content"]
        # Where other processes hold the machine, the time that this one had a processor is what can be judged.
        assert min(wall_s, cpu_s) < 5


async def test_printed_curl_line_answers(shipped: Program) -> None:
    words = shlex.split(shipped.printed[shipped.printed.index("curl ") :].replace("\\\n", " "))
    assert words[:2] == ["curl", "-s"]
    url = words[2]
    header = dict([words[words.index("-H") + 1].split(": ", 1)])
    data = words[words.index("-d") + 1]
    assert len(words) == 7, "the line holds nothing else"
    async with aiohttp.ClientSession() as http, http.post(url, data=data.encode(), headers=header) as response:
        assert response.status == 200
        assert "2330" in (await response.json())["choices"][0]["message"]["content"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_keyword_routed_request_loads_no_heavy_library_and_a_signal_ends_the_program_with_0(
    folder: Path, how: signal.Signals, command: Command
) -> None:
    with program(folder, command=(sys.executable, "-c", TELLS_ITS_MODULES)) as running:
        status, headers, _ = await ask(running.url)
        assert (status, headers["x-gateway-strategy"]) == (200, "rule")
        assert running.stop(how) == 0, running.log
    loaded = json.loads((folder / "modules.json").read_text())
    assert "gateway.app" in loaded
    assert [name for name in loaded if name.split(".")[0] in HEAVY] == []
    # Traces are written behind, but before the end.
    done = await asyncio.to_thread(command, folder, "trace", headers["x-gateway-trace"], "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == 200


STAYS = """
import asyncio, time

async def deaf():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def lifespan():
    tasks = [asyncio.create_task(deaf()), asyncio.create_task(asyncio.to_thread(time.sleep, 3600))]
    yield {"tasks": tasks}

def register(registry):
    pass
"""


def test_what_a_plugin_leaves_running_does_not_keep_the_program(folder: Path) -> None:
    (folder / "plugins" / "stays.py").write_text(STAYS)
    with program(folder) as running:
        assert running.stop() == 0, running.log


async def test_files_may_be_anywhere_and_the_port_in_the_environment(tmp_path: Path, unused_tcp_port: int) -> None:
    home = copy_shipped(tmp_path / "home")
    here = tmp_path / "here"
    here.mkdir()
    shutil.move(home / "plugins", here / "plugins")
    files = ["--config", str(home / "config" / "gateway.yaml"), "--routes", str(home / "routes")]
    # Without `--port`, which would win.
    command = (sys.executable, "-c", f"import sys; from gateway.cli import main; sys.exit(main(['serve', *{files!r}]))")
    with program(here, command=command, variables={"PORT": str(unused_tcp_port)}) as running:
        assert running.url == f"http://127.0.0.1:{unused_tcp_port}"
        _, headers, _ = await ask(running.url)
        assert headers["x-gateway-route"] == "calculate"
    assert (here / "data" / "hermes.db").exists()


async def test_three_variables_in_a_file_make_any_server_the_default_model(folder: Path) -> None:
    async with ScriptedUpstream(then=answer("from the upstream")) as upstream:
        values = {"BASE_URL": upstream.base_url, "MODEL_NAME": "qwen2.5:7b", "API_KEY": "sk-three"}
        (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        with program(folder) as running:
            status, headers, body = await ask(running.url, "zzz qqq xxyyzz")
            assert status == 200
            assert headers["x-gateway-strategy"] == "default"
            assert body["choices"][0]["message"]["content"] == "from the upstream"
    [request] = upstream.requests
    assert request.json["model"] == "qwen2.5:7b"
    assert request.headers["authorization"] == "Bearer sk-three"


def test_open_gateway_for_other_machines_is_refused_with_what_to_do(folder: Path) -> None:
    done = run(folder, "serve", "--host", "0.0.0.0", "--port", "0", timeout_s=60)
    assert done.returncode == 1
    for words in ("0.0.0.0", "GATEWAY_ADMIN_KEY", "keys.static", "127.0.0.1"):
        assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "curl" not in done.stdout


async def test_gateway_for_other_machines_serves_with_a_key(folder: Path) -> None:
    with program(folder, "--host", "0.0.0.0", variables={"GATEWAY_ADMIN_KEY": "gw-admin-1"}) as running:
        url = running.url.replace("0.0.0.0", "127.0.0.1")
        status, headers, body = await ask(url)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert headers["x-gateway-trace"]
        assert (await ask(url, **{"x-api-key": "gw-admin-1"}))[0] == 200


def test_port_in_use_is_told_in_words(shipped: Program, folder: Path) -> None:
    port = shipped.url.rsplit(":", 1)[1]
    done = run(folder, "serve", "--port", port)
    assert done.returncode == 1
    assert port in done.stderr
    assert "Traceback" not in done.stderr


# --- Commands ------------------------------------------------------------------------------------------------------


def test_check_of_the_shipped_files_finds_nothing(folder: Path, command: Command) -> None:
    done = command(folder, "check", "--strict")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "No problems.", "")


def test_check_names_every_problem_with_file_and_line(folder: Path, command: Command) -> None:
    (folder / "routes" / "wrong.yaml").write_text(
        "route: wrong\nmodel: nobody\nkeywrds: [a]\npatterns: ['(']\ntools: [calculatr]\n"
    )
    config = folder / "config" / "gateway.yaml"
    config.write_text(config.read_text() + "\nserver: {prot: 8080}\n")
    done = command(folder, "check")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    line_of_server = len(config.read_text().splitlines())
    for start, word in (
        (f"config/gateway.yaml:{line_of_server}: ", "port"),
        ("routes/wrong.yaml:3: ", "keywords"),
    ):
        assert any(line.startswith(start) and word in line for line in lines), done.stderr
    form = command(folder, "check", "--format", "json")
    assert {(problem["file"], problem["line"]) for problem in json.loads(form.stdout)} >= {
        ("config/gateway.yaml", line_of_server),
        ("routes/wrong.yaml", 3),
    }
    assert "::error file=routes/wrong.yaml,line=3::" in command(folder, "check", "--format", "github").stdout


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ("model: nobody\nkeywords: [zzz]", 2, "nobody"),
        ("model: demo\npatterns:\n  - a\n  - '('", 5, "not valid RE2"),
        ("model: demo\nkeywords: [zzz]\ntools: [calculatr]", 4, "calculator"),
        ("model: demo\nkeywords: [zzz", 4, "not valid YAML"),
    ],
    ids=["unknown model", "broken pattern", "unknown tool", "broken YAML"],
)
def test_check_finds_a_mistake_at_its_line(folder: Path, line: str, place: int, words: str, command: Command) -> None:
    (folder / "routes" / "wrong.yaml").write_text(f"route: wrong\n{line}\n")
    done = command(folder, "check")
    assert done.returncode == 1
    assert any(
        found.startswith(f"routes/wrong.yaml:{place}: ") and words in found for found in done.stderr.splitlines()
    ), done.stderr
    assert "Traceback" not in done.stderr


def test_explain_names_the_route_and_why(folder: Path, command: Command) -> None:
    done = command(folder, "explain", QUESTION)
    assert done.returncode == 0, done.stderr
    assert "route     calculate" in done.stdout
    assert "strategy  rule" in done.stdout
    assert "pattern" in done.stdout
    parsed = json.loads(command(folder, "explain", "我的订单 SO-2024-0318 到哪了，一共多少钱？", "--json").stdout)
    assert (parsed["route"], parsed["strategy"], parsed["model"]) == ("orders", "rule", "demo")
    assert "订单" in [match["value"] for match in parsed["matched"]]


def test_explain_of_other_words_names_score_threshold_and_nearest_utterance(folder: Path, command: Command) -> None:
    parsed = json.loads(command(folder, "explain", "where is the parcel I am waiting for", "--json").stdout)
    assert (parsed["route"], parsed["strategy"]) == ("orders", "semantic")
    [chosen] = [candidate for candidate in parsed["candidates"] if candidate["verdict"] == "chosen"]
    assert chosen["route"] == "orders"
    assert chosen["nearest"]
    assert chosen["score"] >= chosen["threshold"]


def test_explain_for_a_key_nobody_knows_is_wrong_usage(folder: Path, command: Command) -> None:
    done = command(folder, "explain", QUESTION, "--key", "nobody")
    assert done.returncode == 2
    assert "nobody" in done.stderr
    # What was built to find out is taken down all the same.
    assert not [name for name in sys.modules if name.startswith("_hermes_plugins_")]


LABELLED = [
    {"text": "what is 12.5% of 18,640?", "route": "calculate"},
    {"messages": [{"role": "user", "content": "我的订单 SO-2024-0318 到哪了"}], "route": "orders"},
    {"text": "qwx zzkj vbn", "route": None},
    {"text": "what is 2 + 2", "route": "orders", "tags": []},
]


def labelled(folder: Path, *lines: Any) -> str:
    (folder / "lines.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    return "lines.jsonl"


def test_eval_prints_the_figures_of_the_contract_and_holds_a_floor(folder: Path, command: Command) -> None:
    file = labelled(folder, *LABELLED)
    done = command(folder, "eval", file, "--json", "--min-accuracy", "0.75")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    wanted = {"n", "all", "in_scope", "top1", "oos_recall", "oos_f1", "auroc", "routes", "confusions", "version"}
    assert set(figures) == wanted
    assert (figures["n"], figures["all"], figures["oos_recall"]) == (4, 0.75, 1.0)
    assert figures["confusions"] == [["orders", "calculate", 1]]
    assert figures["routes"]["orders"] == {"n": 2, "precision": 1.0, "recall": 0.5}
    below = command(folder, "eval", file, "--min-accuracy", "0.8", "--report", "report.md")
    assert below.returncode == 1
    assert "below --min-accuracy 0.8" in below.stderr
    assert "| orders | calculate | 1 |" in (folder / "report.md").read_text(encoding="utf-8")


def test_eval_names_every_line_that_cannot_be_read(folder: Path, command: Command) -> None:
    file = labelled(
        folder,
        {"text": "x", "route": "nowhere"},
        {"route": None},
        {"text": "x"},
        {"text": "x", "route": None, "kye": 1},
    )
    done = command(folder, "eval", file)
    assert done.returncode == 1
    told = done.stderr.splitlines()
    assert [line.split(": ")[0] for line in told] == [f"{file}:{number}" for number in (1, 2, 3, 4)]
    assert "there is no route `nowhere`" in told[0]
    assert command(folder, "eval", "missing.jsonl").returncode == 1


def test_tools_lists_the_registry_and_checks_it(folder: Path, command: Command) -> None:
    done = command(folder, "tools", "--check")
    assert done.returncode == 0, done.stderr
    for name in ("calculator", "clock", "query_order", "track_shipment", "web_fetch", "read_file", "search_notes"):
        assert name in done.stdout
    tools = {tool["name"]: tool for tool in json.loads(command(folder, "tools", "--json").stdout)}
    assert tools["query_order"]["parameters"]["required"] == ["order_id"]


def test_tools_check_fails_where_a_self_check_fails(folder: Path, command: Command) -> None:
    (folder / "plugins" / "bad.py").write_text(
        "from gateway.tools import tool\n\n\ndef check() -> None:\n    raise RuntimeError('no such machine')\n\n\n"
        "@tool(check=check)\ndef broken() -> str:\n    'Break.'\n    return ''\n\n\n"
        "def register(registry):\n    registry.add(broken)\n"
    )
    done = command(folder, "tools", "--check")
    assert done.returncode == 1
    assert "no such machine" in done.stderr


def test_trace_replays_an_answered_request(shipped: Program, command: Command) -> None:
    _, headers, body = asyncio.run(ask(shipped.url))
    # Traces are written behind: the endpoint waits for this one, and then it is in the database too.
    over_http = command(
        shipped.folder, "trace", headers["x-gateway-trace"], "--json", GATEWAY_URL=shipped.url, GATEWAY_KEY="any"
    )
    assert over_http.returncode == 0, over_http.stderr
    assert json.loads(over_http.stdout)["id"] == headers["x-gateway-trace"]
    for name in (headers["x-gateway-trace"], headers["x-request-id"], body["id"]):
        done = command(shipped.folder, "trace", name)
        assert done.returncode == 0, done.stderr
        assert "calculator(" in done.stdout
        assert "2330" in done.stdout
        assert "pattern" in done.stdout


def test_trace_nobody_has_is_a_problem_and_a_gateway_nobody_runs_is_unreachable(
    shipped: Program, unused_tcp_port: int, command: Command
) -> None:
    done = command(shipped.folder, "trace", "0" * 32)
    assert done.returncode == 1
    assert "0" * 32 in done.stderr
    away = command(
        shipped.folder, "trace", "0" * 32, GATEWAY_URL=f"http://127.0.0.1:{unused_tcp_port}", GATEWAY_KEY="any"
    )
    assert away.returncode == 3
    assert "Traceback" not in away.stderr


@pytest.mark.parametrize(
    "arguments", [("frobnicate",), (), ("explain",), ("check", "--formt", "json"), ("serve", "--workers", "0")]
)
def test_wrong_usage_ends_with_2(folder: Path, arguments: tuple[str, ...], command: Command) -> None:
    done = command(folder, *arguments)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_commands_without_their_files_say_which_file(tmp_path: Path, command: Command) -> None:
    for words in (("check",), ("explain", "x"), ("tools",), ("serve", "--port", "0")):
        done = command(tmp_path, *words)
        assert done.returncode == 1, words
        assert "config/gateway.yaml" in done.stderr
        assert "Traceback" not in done.stderr


def test_help_and_version_cost_nothing_and_end_with_0(tmp_path: Path, command: Command) -> None:
    for argument, words in (("--help", "explain"), ("--version", "hermes-gateway")):
        done = command(tmp_path, argument)
        assert (done.returncode, done.stderr) == (0, "")
        assert words in done.stdout
