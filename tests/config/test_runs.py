"""Schedules and webhooks as they stand in the file: mistakes have a line, secrets are not told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.loader import load
from gateway.config.runs import signing_key
from gateway.errors import ConfigError
from gateway.observe.redaction import secrets_of
from gateway.settings import Settings

BASE: dict[str, Any] = {
    "backends": {"b": {"provider": "demo"}},
    "models": {"m": {"backends": ["b"]}},
    "router": {"default": "m"},
    "tools": {"plugins": []},
}
MESSAGES = [{"role": "user", "content": "?"}]
GOOD = {"cron": "0 9 * * 1-5", "key": "local", "request": {"model": "m", "messages": MESSAGES}}


def problems(folder: Path, **more: Any) -> str:
    (folder / "routes").mkdir(exist_ok=True)
    (folder / "gateway.yaml").write_text(yaml.safe_dump({**BASE, **more}))
    try:
        load(folder / "gateway.yaml", folder / "routes", Settings())
    except ConfigError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"request": {"model": "auto", "messages": MESSAGES}}, ""),
        ({"timezone": "Asia/Shanghai"}, ""),
        ({"cron": "every day"}, "no cron expression"),
        ({"cron": "61 * * * *"}, "no cron expression"),
        ({"timezone": "Mars/Olympus"}, "no time zone"),
        ({"timezone": "../etc/passwd"}, "no time zone"),
        ({"key": "nobody"}, "no key `nobody`"),
        ({"request": {"model": "other", "messages": MESSAGES}}, "no model `other`"),
        ({"request": {"model": "m"}}, "messages"),
        ({"request": None}, "either a `request` or a `type`"),
        ({"type": "reports"}, "either a `request` or a `type`"),
        ({"request": None, "type": "reports", "input": {"a": 1}}, ""),
        ({"request": {"model": "m", "messages": MESSAGES, "stream": True}}, "cannot be streamed"),
    ],
)
def test_a_schedules_mistakes_are_told_with_their_place(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    told = problems(tmp_path, runs={"schedules": {"s": {**GOOD, **change}}})
    assert words in told
    assert bool(words) == bool(told)
    if told:
        assert "gateway.yaml:" in told


@pytest.mark.parametrize("secret", ["short", "whsec_not base64!", "whsec_c2hvcnQ="])
def test_a_webhooks_secret_that_cannot_sign_is_refused_and_not_shown(secret: str, tmp_path: Path) -> None:
    told = problems(tmp_path, webhooks={"w": {"url": "https://example.org/?token=deep", "secret": secret}})
    assert "webhooks.w.secret" in told
    assert secret not in told


def test_what_a_webhook_is_signed_with_reaches_no_log(tmp_path: Path) -> None:
    assert (
        problems(tmp_path, webhooks={"w": {"url": "https://example.org/?token=deep", "secret": "a long secret"}}) == ""
    )
    config = load(tmp_path / "gateway.yaml", tmp_path / "routes", Settings()).config
    assert {"a long secret", "deep"} <= set(secrets_of(config))
    assert "secret" not in repr(config.webhooks["w"])


def test_a_secret_is_read_as_the_sdk_reads_it() -> None:
    assert signing_key("whsec_MDEyMzQ1Njc=") == b"01234567"
    assert signing_key("any text") == b"any text"
