"""The process environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.settings import UNSERVED, Settings, overrides, read_settings


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name != "PATH":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def refused(**environ: str) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        with pytest.raises(ConfigError) as caught:
            read_settings()
    assert {problem.file for problem in caught.value.problems} == {"environment"}
    return [problem.message for problem in caught.value.problems]


def settings(**environ: str) -> Settings:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        return read_settings()


def test_an_empty_environment_overrides_nothing() -> None:
    assert overrides(settings()) == {}


def test_every_setting_has_its_place_in_the_configuration() -> None:
    found = overrides(
        settings(
            PORT="9000",
            DATABASE_URL="sqlite:///x.db",
            GATEWAY_ADMIN_KEY="secret",
            MAX_ITERATIONS="3",
            TOOL_TIMEOUT="2.5",
            SEMANTIC_ROUTE_THRESHOLD="0.7",
        )
    )
    assert {place: value for place, (_, value) in found.items()} == {
        ("server", "port"): 9000,
        ("storage", "database"): "sqlite:///x.db",
        ("keys", "admin_key"): "secret",
        ("tools", "max_rounds"): 3,
        ("tools", "timeout_s"): 2.5,
        ("router", "semantic", "threshold"): 0.7,
    }


def test_the_threshold_may_be_auto() -> None:
    assert overrides(settings(SEMANTIC_ROUTE_THRESHOLD="auto"))["router", "semantic", "threshold"][1] == "auto"


def test_how_tools_are_tried_again_may_come_from_the_environment() -> None:
    found = overrides(settings(MAX_RETRIES="1", RETRY_BACKOFF="0.25", CIRCUIT_BREAK_THRESHOLD="7"))
    values = {place[-1]: value for place, (_, value) in found.items()}
    assert values == {"retries": 1, "backoff_s": 0.25, "breaker_failures": 7}


def test_an_empty_value_counts_as_unset() -> None:
    assert overrides(settings(PORT="", TOOL_TIMEOUT="", MAX_RETRIES="")) == {}


def test_synonyms_that_agree_are_one_setting() -> None:
    assert settings(MAX_TOOL_ROUNDS="4", MAX_ITERATIONS="4").tool_rounds == 4


def test_synonyms_that_differ_are_an_error_that_names_both() -> None:
    (message,) = refused(MAX_TOOL_ROUNDS="3", MAX_ITERATIONS="0")
    assert "MAX_TOOL_ROUNDS (3)" in message
    assert "MAX_ITERATIONS (0)" in message


@pytest.mark.parametrize("name", UNSERVED)
def test_a_name_that_this_version_does_not_serve_is_refused(name: str) -> None:
    assert refused(**{name: "1"}) == [f"{name} is not supported by this version; unset it"]


def test_a_redis_url_says_where_replicas_agree() -> None:
    assert overrides(settings(REDIS_URL="redis://127.0.0.1:1"))["storage", "redis"] == (
        "REDIS_URL",
        "redis://127.0.0.1:1",
    )
    assert settings(REDIS_URL="redis://127.0.0.1:1").warnings == ()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PORT", "eighty", "whole number"),
        ("PORT", "70000", "65535"),
        ("TOOL_TIMEOUT", "0", "greater than 0"),
        ("TOOL_TIMEOUT", "inf", "finite"),
        ("MAX_TOOL_ROUNDS", "-1", "0"),
        ("MAX_RETRIES", "11", "10"),
        ("RETRY_BACKOFF", "-1", "0"),
        ("CIRCUIT_BREAK_THRESHOLD", "0", "1"),
        ("SEMANTIC_ROUTE_THRESHOLD", "high", "a number, or `auto`"),
    ],
)
def test_a_wrong_value_names_the_variable_and_what_was_expected(name: str, value: str, words: str) -> None:
    (message,) = refused(**{name: value})
    assert message.startswith(f"{name}: ")
    assert words in message


def test_all_mistakes_are_told_at_once() -> None:
    assert len(refused(PORT="x", TOOL_TIMEOUT="y", MAX_RETRIES="many")) == 3


def test_a_server_needs_its_model_and_a_model_its_server() -> None:
    assert "MODEL_NAME is not" in refused(BASE_URL="http://127.0.0.1:1/v1")[0]
    assert "BASE_URL is not" in refused(MODEL_NAME="m")[0]


def test_the_dotenv_file_lies_beneath_the_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PORT=9001\nTOOL_TIMEOUT=7\nMY_KEY='a b'\n")
    found = settings(PORT="9002")
    assert (found.port, found.tool_timeout_s) == (9002, 7)
    assert found.variables["MY_KEY"] == "a b"
    assert found.variables["PORT"] == "9002"


def test_an_unserved_name_in_the_dotenv_file_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MAX_STEPS=3\n")
    assert refused() == ["MAX_STEPS is not supported by this version; unset it"]


def test_no_secret_is_in_the_settings_text() -> None:
    found = settings(
        GATEWAY_ADMIN_KEY="tell-nobody", API_KEY="tell-nobody", BASE_URL="http://u:tell-nobody@h/v1", MODEL_NAME="m"
    )
    assert "tell-nobody" not in repr(found)
