"""The commands' words: what they take, and what they tell."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.commands import tools
from gateway.commands.listening import how_to_try


@pytest.mark.parametrize("port", ["65536", "99999", "-1", "abc", "8080.5"])
def test_a_port_that_no_socket_has_is_wrong_usage(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--port", port])
    assert caught.value.code == 2
    assert f"expected a whole number from 0 to 65535, not '{port}'" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "does"), [("audit", "Who has done what"), ("runs", "Background runs, and")])
def test_a_commands_own_help_says_what_it_does(command: str, does: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert does in capsys.readouterr().out


def test_line_to_try_can_be_tried_on_this_machine() -> None:
    text = how_to_try("0.0.0.0", 8080, needs_key=False)
    assert text.splitlines()[0] == "Hermes Gateway serves on http://0.0.0.0:8080"
    assert "curl -s http://127.0.0.1:8080/v1/chat/completions" in text
    assert "authorization" not in text
    assert "curl -s http://[::1]:1/v1/" in how_to_try("::", 1, needs_key=False)


def test_line_to_try_names_the_key_where_one_is_asked_for() -> None:
    assert "-H 'authorization: Bearer KEY'" in how_to_try("127.0.0.1", 8080, needs_key=True)


def test_tools_check_says_that_it_found_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "routes").mkdir()
    (tmp_path / "plugins").mkdir()
    (tmp_path / "gateway.yaml").write_text(
        "backends:\n  demo: {provider: demo}\nmodels:\n  demo: {backends: [demo]}\nrouter:\n  default: demo\n", "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("GATEWAY_CONFIG", "GATEWAY_ROUTES", *(n for n in os.environ if n.startswith("GATEWAY_"))):
        monkeypatch.delenv(name, raising=False)
    assert tools.run(_asked()) == 0
    assert "No self-check failed, and lint found nothing." in capsys.readouterr().out


def _asked(**more: bool) -> Namespace:
    flags = {"check": True, "lock": False, "json": False, "strict": False, **more}
    return Namespace(config=Path("gateway.yaml"), routes=Path("routes"), **flags)


def test_tools_check_tells_what_is_wrong_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "routes").mkdir()
    (tmp_path / "plugins").mkdir()
    plugin = tmp_path / "plugins" / "act.py"
    good = """from gateway.tools import tool

@tool(check=lambda: None, writes=True)
def act(text: str) -> str:
    '''Act when the user asks for it.

    text: what to do
    '''

def register(registry): registry.add(act)
"""
    (tmp_path / "gateway.yaml").write_text(
        "backends:\n  demo: {provider: demo}\nmodels:\n  demo: {backends: [demo]}\nrouter:\n  default: demo\n", "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("GATEWAY_CONFIG", "GATEWAY_ROUTES", *(n for n in os.environ if n.startswith("GATEWAY_"))):
        monkeypatch.delenv(name, raising=False)

    def run(source: str, **more: bool) -> tuple[int, str, str]:
        plugin.write_text(source)
        code = tools.run(_asked(**more))
        told = capsys.readouterr()
        return code, told.out, told.err.replace(f"{tmp_path}/", "")

    code, out, err = run(good)
    assert (code, err) == (0, "")
    assert "act (writes)" in out
    code, _, err = run(good.replace("lambda: None", "lambda: 1 / 0"))
    assert (code, err) == (1, "plugins/act.py:3: tool `act`: its check failed: division by zero\n")
    code, _, err = run(good.replace("    text: what to do\n", ""))
    assert (code, err) == (1, "plugins/act.py:3: tool `act`: parameter `text` has no description\n")
    unchecked = good.replace("check=lambda: None, ", "")
    code, out, err = run(unchecked)
    assert code == 0
    assert "plugins/act.py:3: warning: tool `act`: it writes and has no `check`" in err
    assert "Nothing but warnings." in out
    assert run(unchecked, strict=True)[0] == 1
