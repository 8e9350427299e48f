"""How conversations are kept short: `context` in the gateway's file and in a route's."""

from __future__ import annotations

from typing import Annotated, Final

import re2
from pydantic import Field, StringConstraints, field_validator

from gateway.config.section import NonEmpty, Section

# What there is without any plugin.
STRATEGIES: Final = ("auto", "window", "summary", "last", "fresh", "none")
Strategy = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]


class PinConfig(Section):
    """A kind of fact that no cut may lose."""

    # Its length is not in the pattern, which would hold all letters of Unicode as often: 3 MB.
    tag: Annotated[str, StringConstraints(pattern=r"^\w[\w -]*$", max_length=32)] = Field(
        description="What the fact is called; a newer value of the same tag replaces the older one."
    )
    pattern: NonEmpty | None = Field(
        default=None, description="RE2; its first group, or all of it, is the value. Without: only `#tag: value`."
    )
    priority: int = Field(default=0, ge=-100, le=100)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            options = re2.Options()
            options.log_errors = False
            try:
                re2.compile(value, options)
            except re2.error as error:
                # The library's words are bytes.
                why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error
                raise ValueError(f"{value!r} is no RE2 pattern: {why}") from error
        return value


class SummaryConfig(Section):
    """How what was cut off is summed up."""

    model: NonEmpty | None = Field(default=None, description="The model that writes it; without one, it is extracted.")
    every: int = Field(default=5, ge=1, le=1000, description="Turns after which it is written anew.")


class SessionsConfig(Section):
    """Which conversations the gateway keeps."""

    store: bool = Field(default=False, description="Whether requests with `x-gateway-session` go on from what is kept.")
    ttl_s: float = Field(default=604_800, gt=0, description="Seconds from the last turn.")
    max_mb: float = Field(default=16, gt=0, le=256, description="What one may hold; the oldest turns go first.")


class MemoryConfig(Section):
    """What is remembered of callers beyond one conversation."""

    enabled: bool = False
    max_tokens: int = Field(default=300, ge=0, le=100_000, description="What memories may take of a request.")


class ContextConfig(Section):
    """What a model is sent of a long conversation."""

    strategy: Strategy = "auto"
    max_messages: int = Field(default=24, ge=2, le=100_000)
    recent_turns: int = Field(default=2, ge=1, le=1000)
    keep_pins: int = Field(default=8, ge=0, le=100)
    pins: tuple[PinConfig, ...] = ()
    summary: SummaryConfig = SummaryConfig()
    answer_reserve_tokens: int = Field(default=1024, ge=0)
    sessions: SessionsConfig = SessionsConfig()
    memory: MemoryConfig = MemoryConfig()


class RouteContextConfig(Section):
    """The same for one route; what it does not say is as in the gateway's file."""

    strategy: Strategy | None = None
    max_messages: int | None = Field(default=None, ge=2, le=100_000)
    recent_turns: int | None = Field(default=None, ge=1, le=1000)
    keep_pins: int | None = Field(default=None, ge=0, le=100)
    answer_reserve_tokens: int | None = Field(default=None, ge=0)
