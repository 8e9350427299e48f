"""The log: forms, levels, and what never stands in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gateway.config.models import LogConfig
from gateway.observe.logging import LogSubscriber, configure_logging
from gateway.observe.redaction import Redactor
from tests.observe.turns import SECRETS, turn

KEY = "sk-very-secret-0123456789+/="


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


class Log(io.StringIO):
    def __init__(self, **config: Any) -> None:
        super().__init__()
        configure_logging(LogConfig.model_validate({"format": "json", **config}), Redactor([KEY]), self)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


def test_our_lines_and_a_librarys_have_one_form() -> None:
    log = Log()
    structlog.get_logger("gateway.x").info("started", port=8080)
    logging.getLogger("uvicorn.error").info("listening on %s", "订单")
    ours, theirs = log.lines
    assert (ours["event"], ours["port"], ours["level"], ours["logger"]) == ("started", 8080, "info", "gateway.x")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("listening on 订单", "info", "uvicorn.error")
    assert ours["timestamp"].endswith("Z")


def test_what_is_below_the_level_is_not_written() -> None:
    log = Log(level="warning")
    structlog.get_logger("gateway.x").info("quiet")
    logging.getLogger("x").info("quiet")
    structlog.get_logger("gateway.x").warning("loud")
    assert [line["event"] for line in log.lines] == ["loud"]


def test_the_database_driver_does_not_fill_the_log() -> None:
    log = Log(level="info")
    logging.getLogger("aiosqlite").info("executing")
    assert log.lines == []


def test_text_is_for_people_and_auto_is_json_where_nobody_looks() -> None:
    text = Log(format="text")
    structlog.get_logger("gateway.x").info("started", port=8080)
    assert "started" in text.getvalue()
    assert not text.getvalue().startswith("{")
    auto = Log(format="auto")
    structlog.get_logger("gateway.x").info("started")
    assert auto.lines[0]["event"] == "started"


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_is_in_a_line_however_it_came_there(form: str) -> None:
    log = Log(format=form)
    logger = structlog.get_logger("gateway.x")
    told = f"a {KEY}"
    logger.warning(told, nested={"list": [f"Bearer {KEY}"]}, url="http://h/?k=sk-very-secret-0123456789%2B%2F%3D")
    try:
        raise RuntimeError(f"refused {KEY}")
    except RuntimeError:
        logger.exception("failed")
        logging.getLogger("library").exception("failed too")
    logging.getLogger("library").error("key %s", KEY)
    assert "very-secret" not in log.getvalue()
    assert log.getvalue().count("[secret]") >= 5


def test_a_value_that_is_no_json_is_written_all_the_same() -> None:
    log = Log()
    structlog.get_logger("gateway.x").info("odd", thing=object(), bad="\ud800")
    assert log.lines[0]["event"] == "odd"


def test_an_answered_turn_is_a_line_only_where_that_is_wanted() -> None:
    log = Log()
    LogSubscriber(LogConfig()).finished(turn())
    assert log.lines == []
    LogSubscriber(LogConfig(requests=True)).finished(turn())
    (line,) = log.lines
    assert (line["level"], line["event"], line["status"], line["route"]) == ("info", "turn answered", 200, "orders")
    assert (line["trace_id"], line["owner"], line["endpoint"]) == ("a" * 32, "app", "/v1/chat/completions")


@pytest.mark.parametrize(
    ("status", "level", "event"),
    [
        (400, "warning", "request refused"),
        (499, "warning", "client went away"),
        (500, "error", "turn failed"),
        (502, "error", "turn failed"),
    ],
)
def test_a_failed_turn_is_always_a_line(status: int, level: str, event: str) -> None:
    log = Log()
    LogSubscriber(LogConfig()).finished(turn(status=status, code="x", message="why"))
    (line,) = log.lines
    assert (line["level"], line["event"], line["code"]) == (level, event, "x")


def test_nothing_anybody_said_is_in_a_turns_line() -> None:
    log = Log()
    LogSubscriber(LogConfig(requests=True)).finished(turn())
    for said in SECRETS:
        assert said not in log.getvalue()


def test_a_stack_trace_shows_no_values() -> None:
    log = Log()

    def fails(said: str) -> None:
        raise RuntimeError("broken")

    try:
        fails("what somebody said")
    except RuntimeError:
        structlog.get_logger("gateway.x").exception("failed")
    assert "broken" in log.getvalue()
    assert "test_logging.py" in log.getvalue()
    assert "what somebody said" not in log.getvalue().replace('fails(\\"what somebody said\\")', "")
