"""`hermes-gateway check`: warnings, `--offline`, `--strict` and the three formats."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.commands.check import _annotation
from gateway.errors import Problem

GATEWAY = """\
backends:
  demo: {provider: demo}
models:
  demo: {backends: [demo]}
router:
  default: demo
  semantic: {enabled: false}
"""
ORDERS = "route: orders\nmodel: demo\npriority: 5\nkeywords:\n  - 订单\n  - order status\n"
LATE = "route: late\nmodel: demo\nkeywords:\n  - parcel\n  - my order status\n"


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("GATEWAY_") or name in {"PORT", "DATABASE_URL", "REDIS_URL", "BASE_URL", "API_KEY"}:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for folder in ("config", "routes", "plugins"):
        (tmp_path / folder).mkdir()
    write("config/gateway.yaml", GATEWAY)


def write(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")


def checked(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[str], str]:
    code = main(["check", *options])
    said = capsys.readouterr()
    return code, said.err.splitlines(), said.out


def test_warnings_have_file_and_line_and_fail_a_strict_check_alone(capsys: pytest.CaptureFixture[str]) -> None:
    write("routes/orders.yaml", ORDERS)
    write("routes/late.yaml", LATE)
    expected = (
        "routes/late.yaml:5: warning: keyword 'my order status' can never win: keyword 'order status' of route `orders`, "
        "which comes first (priority 5 over 0), is found in every text with it (routes/orders.yaml:6)"
    )
    assert checked(capsys) == (0, [expected], "1 warning.\n")
    assert checked(capsys, "--strict") == (1, [expected], "1 warning.\n")


def test_each_format_tells_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    write("routes/orders.yaml", ORDERS + "tools: [nope]\n")
    code, lines, out = checked(capsys, "--format", "json")
    assert (code, lines) == (1, [])
    assert json.loads(out) == [
        {"file": "routes/orders.yaml", "line": 7, "message": "there is no tool `nope`", "severity": "error"}
    ]
    code, _, out = checked(capsys, "--format", "github")
    assert (code, out) == (1, "::error file=routes/orders.yaml,line=7::there is no tool `nope`\n")
    code, lines, out = checked(capsys, "--format", "text")
    assert (code, lines, out) == (1, ["routes/orders.yaml:7: there is no tool `nope`"], "1 problem.\n")
    write("routes/orders.yaml", ORDERS)
    assert checked(capsys, "--format", "json") == (0, [], "[]\n")


def test_an_annotation_cannot_be_broken_by_what_it_tells() -> None:
    problem = Problem("a,b:c%.yaml", 0, "x\n::error::y%", "warning")
    assert _annotation(problem) == "::warning file=a%2Cb%3Ac%25.yaml,line=1::x%0A::error::y%25"
    assert _annotation(Problem("environment", 0, "x")) == "::error::x"


def test_what_is_not_set_is_a_warning_offline_and_an_error_else(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "config/gateway.yaml",
        """\
server: {port: "${SOME_PORT}"}
storage: {redis: "${SOME_REDIS}"}
backends:
  demo: {provider: demo}
  far: {provider: openai, base_url: "${FAR_URL}", model: "${FAR_MODEL}", api_key: "${FAR_KEY}"}
models:
  demo: {backends: [demo]}
  far: {backends: [far]}
router: {default: demo, semantic: {enabled: false}}
keys:
  static:
    one: {key: "${KEY_ONE}"}
    two: {key: "${KEY_TWO}"}
""",
    )
    write("routes/orders.yaml", ORDERS)
    code, lines, _ = checked(capsys)
    assert code == 1
    assert (
        "config/gateway.yaml:5: the variable FAR_KEY is not set; set it, or give a default: `${FAR_KEY:-...}`" in lines
    )
    code, lines, _ = checked(capsys, "--offline")
    assert code == 0
    assert [line.split(" is not set")[0] for line in lines] == [
        "config/gateway.yaml:1: warning: the variable SOME_PORT",
        "config/gateway.yaml:2: warning: the variable SOME_REDIS",
        *(f"config/gateway.yaml:5: warning: the variable FAR_{name}" for name in ("URL", "MODEL", "KEY")),
        *(f"config/gateway.yaml:{line}: warning: the variable KEY_{name}" for line, name in ((12, "ONE"), (13, "TWO"))),
    ]
    assert checked(capsys, "--offline", "--strict")[0] == 1


def test_offline_still_finds_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    write("routes/orders.yaml", ORDERS.replace("model: demo", "model: '${SOME_MODEL}'"))
    write("routes/late.yaml", "route: late\nmodel: nope\nkeywords: ['${BROKEN', x]\n")
    code, lines, _ = checked(capsys, "--offline")
    assert code == 1
    assert [line for line in lines if "warning" not in line] == [
        "routes/late.yaml:2: the route `late` names no model: there is no `nope`",
        (
            "routes/late.yaml:3: `${` begins a variable: write `${NAME}` or `${NAME:-default}`, or `$${` for the text "
            "`${`"
        ),
    ]
    write("routes/late.yaml", LATE)
    code, lines, _ = checked(capsys, "--offline")
    assert code == 0
    assert any("the variable SOME_MODEL is not set" in line for line in lines)


def test_offline_opens_no_resource_and_asks_no_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "plugins/far.py",
        """\
from gateway.tools import tool

async def lifespan():
    raise OSError("no network here")
    yield {}

@tool(name="far", description="Look far away.")
async def far() -> str:
    return ""

def register(registry):
    registry.add(far)
""",
    )
    write(
        "config/gateway.yaml",
        GATEWAY.replace(
            "{enabled: false}", '{encoder: {base_url: "http://127.0.0.1:9/v1", model: m, api_key: "${ENCODER_KEY}"}}'
        ),
    )
    write("routes/orders.yaml", ORDERS + "tools: [far]\nutterances: [where is it]\n")
    code, lines, _ = checked(capsys, "--offline")
    assert (code, [line for line in lines if "ENCODER_KEY" not in line]) == (0, [])
    assert checked(capsys)[0] == 1


def test_utterances_are_compared_by_the_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    write("config/gateway.yaml", GATEWAY.replace("{enabled: false}", "{encoder: multilingual, none: [tell me a joke]}"))
    parcels = ["where is my parcel", "has my order been shipped", "when will my delivery arrive", "track my package"]
    money = [
        "i want my money back",
        "how do i get a refund",
        "refund my purchase please",
        "when is my parcel delivered",
    ]
    for name, utterances in (("orders", parcels), ("refunds", money)):
        lines = "".join(f"  - {text}\n" for text in utterances)
        write(f"routes/{name}.yaml", f"route: {name}\nmodel: demo\nutterances:\n{lines}")
    code, lines_, _ = checked(capsys, "--offline")
    assert code == 0
    assert len(lines_) == 1
    assert lines_[0].startswith(
        "routes/refunds.yaml:7: warning: utterance 'when is my parcel delivered' is more like route `orders` ("
    )


def test_an_encoder_that_cannot_be_reached_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "config/gateway.yaml", GATEWAY.replace("enabled: false", 'encoder: {base_url: "http://127.0.0.1:9", model: m}')
    )
    write("routes/orders.yaml", ORDERS + "utterances: [where is it]\n")
    code, lines, _ = checked(capsys)
    assert code == 1
    assert lines[0].startswith("config/gateway.yaml:7: utterances cannot be compared: encoder ")
    assert checked(capsys, "--offline") == (0, [], "No problems.\n")


def test_the_shipped_files_pass_a_strict_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parent.parent)
    assert checked(capsys, "--offline", "--strict") == (0, [], "No problems.\n")


BROKEN = "config/gateway.yaml:8: the MCP server `x` is away: "


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("tools: {default: [nope]}", "config/gateway.yaml:8: there is no tool `nope`"),
        (
            "tools: {plugins: [plugins, none]}",
            "config/gateway.yaml:8: `tools.plugins` names `none`, and there is no such folder or file",
        ),
        (
            "tools: {http: {shop: {openapi: none.yaml}}}",
            "config/gateway.yaml:8: the OpenAPI file none.yaml of `tools.http.shop` cannot be read: No such file or directory",
        ),
        (
            (
                'tools: {http: {shop: {base_url: "https://a.test", tools: {a: {description: When asked., path: /, '
                "parameters: {z: {type: texd}}}}}}}"
            ),
            (
                "config/gateway.yaml:8: tool `a`: its parameters are no usable JSON Schema: `properties.z.type`: "
                "\"texd\" is not valid under any of the schemas listed in the 'anyOf' keyword"
            ),
        ),
        (
            'tools: {outbound: {allow_private: ["10.0.0.0/99"]}}',
            "config/gateway.yaml:8: `tools.outbound.allow_private`: '10.0.0.0/99' is no host name, address or network (CIDR)",
        ),
        (
            'tools: {outbound: {allow_domains: ["https://a.test"]}}',
            (
                "config/gateway.yaml:8: `tools.outbound.allow_domains`: 'https://a.test' is no host name, nor a glob over one: "
                "no scheme, port or path"
            ),
        ),
        ("keys: {static: {a: {key: k, tools: [nope]}}}", "config/gateway.yaml:8: there is no tool `nope`"),
        (
            "keys: {static: {a: {key: k, models: [demi, auto], routes: [none]}}}",
            (
                "config/gateway.yaml:8: warning: the key `a` may ask for `demi`, and there is no such model; did you mean `demo`?\n"
                "config/gateway.yaml:8: warning: the key `a` may be sent to `none`, and there is no such route"
            ),
        ),
        ("tools: {mcp: {x: {command: no-program}}}", f"{BROKEN}it cannot be started: there is no program `no-program`"),
        (
            "tools: {mcp: {x: {command: sh, args: [-c, 'echo not today >&2; exit 3']}}}",
            f"{BROKEN}the connection to the server ended before it answered; it said: not today; ended with status 3",
        ),
    ],
)
def test_a_mistake_in_a_section_is_told_once_with_its_line(
    section: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("config/gateway.yaml", f"{GATEWAY}{section}\n")
    assert checked(capsys)[1] == expected.splitlines()


def test_a_broken_plugin_is_the_only_mistake_where_its_tools_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    write("config/gateway.yaml", f"{GATEWAY}tools: {{default: [stock, price]}}\n")
    write("plugins/shop.py", "def stock(:\n")
    assert checked(capsys) == (1, ["plugins/shop.py:1: SyntaxError: invalid syntax"], "1 problem.\n")


def test_a_backend_that_cannot_be_made_is_told_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    mine = "  demo: {provider: demo}\n  my.own:\n    provider: plugin\n    module: none.py\n"
    write("config/gateway.yaml", GATEWAY.replace("  demo: {provider: demo}\n", mine))
    assert checked(capsys) == (1, ["config/gateway.yaml:5: there is no file 'none.py'"], "1 problem.\n")
