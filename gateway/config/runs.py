"""Background runs in the configuration: how many, how often, when, and who is told.

Knows shapes, defaults and units.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import Field, field_validator

from gateway.config.section import Name, NonEmpty, Section

_SHORTEST_KEY = 8
# Any time will do to see whether an expression can be read.
_EPOCH = "2026-01-01T00:00:00+00:00"


class ScheduleConfig(Section):
    """A run that is begun again and again."""

    cron: NonEmpty = Field(description="Five fields: minute, hour, day, month, day of the week.")
    timezone: NonEmpty = "UTC"
    key: Name = Field(description="The key under `keys.static` in whose name it is executed, or `local`.")
    request: dict[str, Any] | None = Field(default=None, description="The body of a Chat Completions request.")
    type: NonEmpty | None = Field(default=None, description="A type of runs that a plugin adds, instead of a request.")
    input: dict[str, Any] = Field(default_factory=dict, description="What a run of that type is given.")

    @field_validator("timezone")
    @classmethod
    def _zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (OSError, ValueError, ZoneInfoNotFoundError) as error:
            raise ValueError(f"there is no time zone {value!r}") from error
        return value

    @field_validator("cron")
    @classmethod
    def _readable(cls, value: str) -> str:
        from datetime import datetime

        try:
            CronSim(value, datetime.fromisoformat(_EPOCH))
        except CronSimError as error:
            raise ValueError(f"{value!r} is no cron expression of five fields") from error
        return value


class RunsConfig(Section):
    """Background runs."""

    concurrency: int = Field(default=10, ge=1, le=1000, description="Runs that one process executes at once.")
    per_key: int | None = Field(
        default=None, ge=1, description="Runs of one API key that are executed at once, in all processes."
    )
    max_deliveries: int = Field(default=3, ge=1, le=100, description="How often a run is begun before it is given up.")
    queue_max: int = Field(default=10_000, ge=1, description="Queued runs from which on no more are taken.")
    keep_days: float = Field(default=30, gt=0, description="How long runs that ended are kept.")
    schedules: dict[Name, ScheduleConfig] = Field(default_factory=dict)


WebhookEvent = Literal["response.completed", "response.failed", "approval.requested"]


def signing_key(secret: str) -> bytes:
    """The key that a secret says: `whsec_` and base64, or the text itself, as OpenAI's SDK reads it.

    Raises:
        ValueError: there is no base64 behind `whsec_`.
    """
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as error:
        raise ValueError("what stands behind `whsec_` must be base64") from error


class WebhookConfig(Section):
    """Where the end of runs, and what waits for approval, is told, by Standard Webhooks."""

    url: NonEmpty = Field(repr=False)
    secret: NonEmpty = Field(repr=False, description="The signing key: `whsec_` and base64, or any text.")
    events: tuple[WebhookEvent, ...] = ("response.completed", "response.failed", "approval.requested")

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if not re.match(r"^https?://[^/\s]+", value):
            raise ValueError("it must start with http:// or https://")
        return value

    @field_validator("secret")
    @classmethod
    def _key(cls, value: str) -> str:
        if len(signing_key(value)) < _SHORTEST_KEY:
            raise ValueError(f"the key must have {_SHORTEST_KEY} bytes or more")
        return value
