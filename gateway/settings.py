"""What the process environment says (`.env` too), and nothing else.

Knows names, types and synonyms of the variables. Does not know the files' models: `config/loader.py` lays these values
over what the files say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.errors import ConfigError, Problem

ENVIRONMENT: Final = "environment"

# Names of the public contract that this version does not act upon. Set, they would be accepted and ignored, so they are
# refused.
UNSERVED: Final = (
    "MAX_STEPS",
    "PARENT_TASK_TIMEOUT",
)


class Settings(BaseModel):
    """The environment, read once by `read_settings`.

    Attributes:
        variables: everything that `${NAME}` in the files may name: the environment laid over `.env`.
        warnings: what is set and has no effect, as sentences for the log.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    gateway_config: Path | None = Field(default=None, validation_alias="GATEWAY_CONFIG")
    gateway_routes: Path | None = Field(default=None, validation_alias="GATEWAY_ROUTES")
    gateway_admin_key: str | None = Field(default=None, validation_alias="GATEWAY_ADMIN_KEY", repr=False)
    gateway_privacy_key: str | None = Field(default=None, validation_alias="GATEWAY_PRIVACY_KEY", repr=False)
    gateway_url: str | None = Field(default=None, validation_alias="GATEWAY_URL")
    gateway_key: str | None = Field(default=None, validation_alias="GATEWAY_KEY", repr=False)
    port: int | None = Field(default=None, ge=0, le=65535, validation_alias="PORT")
    database_url: str | None = Field(default=None, validation_alias="DATABASE_URL", repr=False)
    redis_url: str | None = Field(default=None, validation_alias="REDIS_URL", repr=False)
    base_url: str | None = Field(default=None, validation_alias="BASE_URL", repr=False)
    model_name: str | None = Field(default=None, validation_alias="MODEL_NAME")
    api_key: str | None = Field(default=None, validation_alias="API_KEY", repr=False)
    max_tool_rounds: int | None = Field(default=None, ge=0, le=100, validation_alias="MAX_TOOL_ROUNDS")
    max_iterations: int | None = Field(default=None, ge=0, le=100, validation_alias="MAX_ITERATIONS")
    tool_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False, validation_alias="TOOL_TIMEOUT")
    tool_retries: int | None = Field(default=None, ge=0, le=10, validation_alias="MAX_RETRIES")
    tool_backoff_s: float | None = Field(
        default=None, ge=0, le=60, allow_inf_nan=False, validation_alias="RETRY_BACKOFF"
    )
    tool_breaker: int | None = Field(default=None, ge=1, validation_alias="CIRCUIT_BREAK_THRESHOLD")
    confidence_threshold: float | None = Field(
        default=None, ge=0, le=1, allow_inf_nan=False, validation_alias="CONFIDENCE_THRESHOLD"
    )
    semantic_threshold: Annotated[float, Field(allow_inf_nan=False)] | Literal["auto"] | None = Field(
        default=None, validation_alias="SEMANTIC_ROUTE_THRESHOLD"
    )
    context_window: int | None = Field(default=None, ge=2, le=100_000, validation_alias="CONTEXT_WINDOW_SIZE")
    context_messages: int | None = Field(default=None, ge=2, le=100_000, validation_alias="CONTEXT_MAX_MESSAGES")
    context_turns: int | None = Field(default=None, ge=1, le=1000, validation_alias="CONTEXT_RECENT_TURNS")
    keep_pins: int | None = Field(default=None, ge=0, le=100, validation_alias="KEEPALIVE_K")
    summary_every: int | None = Field(default=None, ge=1, le=1000, validation_alias="SUMMARY_INTERVAL")

    variables: Mapping[str, str] = Field(default_factory=dict, repr=False, exclude=True)
    warnings: tuple[str, ...] = Field(default=(), exclude=True)

    @property
    def tool_rounds(self) -> int | None:
        """`MAX_TOOL_ROUNDS`, or its synonym `MAX_ITERATIONS`."""
        return self.max_tool_rounds if self.max_tool_rounds is not None else self.max_iterations

    @property
    def max_messages(self) -> int | None:
        """`CONTEXT_WINDOW_SIZE`, or its synonym `CONTEXT_MAX_MESSAGES`."""
        return self.context_window if self.context_window is not None else self.context_messages


def read_settings(env_file: Path | None = Path(".env")) -> Settings:
    """Read the process environment, and `env_file` beneath it where there is one.

    Raises:
        ConfigError: with every value that is wrong, contradicts its synonym or is not served by this version.
    """
    variables = _variables(env_file)
    problems = [
        _problem(f"{name} is not supported by this version; unset it") for name in UNSERVED if name in variables
    ]
    settings: Settings | None = None
    try:
        settings = Settings.model_validate({**variables, "variables": variables, "warnings": _warnings(variables)})
    except ValidationError as error:
        problems += _value_problems(error)
    if settings is not None:
        problems += _contradictions(settings)
    if settings is None or problems:
        raise ConfigError(tuple(problems))
    return settings


def _variables(env_file: Path | None) -> dict[str, str]:
    stored: Mapping[str, str | None] = {}
    if env_file is not None and env_file.is_file():
        # Whoever has no such file need not load what reads it.
        from dotenv import dotenv_values

        try:
            stored = dotenv_values(env_file, encoding="utf-8", interpolate=False)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError((Problem(str(env_file), 0, f"cannot be read: {error}"),)) from error
    # Empty values count as unset.
    merged = {**stored, **os.environ}
    return {name: value for name, value in merged.items() if value}


def _value_problems(error: ValidationError) -> list[Problem]:
    named: dict[str, list[str]] = {}
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        named.setdefault(str(item["loc"][0]), []).append(str(item["msg"]))
    return [_problem(f"{name}: {_sentence(messages)}") for name, messages in named.items()]


def _sentence(messages: list[str]) -> str:
    first = messages[0].removeprefix("Input ")
    words = {
        "should be a valid integer, unable to parse string as an integer": "must be a whole number",
        "should be a valid number, unable to parse string as a number": "must be a number",
    }
    text = words.get(first, first.replace("should be", "must be"))
    return f"{text}, or `auto`" if len(messages) > 1 and "'auto'" in messages[-1] else text


def _contradictions(settings: Settings) -> list[Problem]:
    problems = []
    rounds, iterations = settings.max_tool_rounds, settings.max_iterations
    if rounds is not None and iterations is not None and rounds != iterations:
        problems.append(
            _problem(f"MAX_TOOL_ROUNDS ({rounds}) and MAX_ITERATIONS ({iterations}) mean the same; set one of them")
        )
    window, messages = settings.context_window, settings.context_messages
    if window is not None and messages is not None and window != messages:
        problems.append(
            _problem(
                f"CONTEXT_WINDOW_SIZE ({window}) and CONTEXT_MAX_MESSAGES ({messages}) mean the same; set one of them"
            )
        )
    if settings.base_url is not None and settings.model_name is None:
        problems.append(_problem("BASE_URL is set and MODEL_NAME is not; set MODEL_NAME to a model of that server"))
    if settings.model_name is not None and settings.base_url is None:
        problems.append(
            _problem("MODEL_NAME is set and BASE_URL is not; set BASE_URL, for example https://api.openai.com/v1")
        )
    return problems


def _warnings(variables: Mapping[str, str]) -> tuple[str, ...]:
    found = []
    if "API_KEY" in variables and "BASE_URL" not in variables:
        found.append("API_KEY has no effect without BASE_URL and MODEL_NAME")
    return tuple(found)


def _problem(message: str) -> Problem:
    return Problem(ENVIRONMENT, 0, message)


def overrides(settings: Settings) -> dict[tuple[str, ...], tuple[str, Any]]:
    """What the environment lays over the files: the setting's place -> (the variable's name, its value)."""
    named: dict[tuple[str, ...], tuple[str, Any]] = {
        ("server", "port"): ("PORT", settings.port),
        ("storage", "database"): ("DATABASE_URL", settings.database_url),
        ("storage", "redis"): ("REDIS_URL", settings.redis_url),
        ("keys", "admin_key"): ("GATEWAY_ADMIN_KEY", settings.gateway_admin_key),
        ("tools", "max_rounds"): ("MAX_TOOL_ROUNDS", settings.tool_rounds),
        ("tools", "timeout_s"): ("TOOL_TIMEOUT", settings.tool_timeout_s),
        ("tools", "retries"): ("MAX_RETRIES", settings.tool_retries),
        ("tools", "backoff_s"): ("RETRY_BACKOFF", settings.tool_backoff_s),
        ("tools", "breaker_failures"): ("CIRCUIT_BREAK_THRESHOLD", settings.tool_breaker),
        ("router", "semantic", "threshold"): ("SEMANTIC_ROUTE_THRESHOLD", settings.semantic_threshold),
    }
    return {place: found for place, found in named.items() if found[1] is not None}
