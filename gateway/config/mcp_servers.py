"""`tools.mcp`: MCP servers, as the gateway's file describes them."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from gateway.config.section import NonEmpty, Section


class McpOverride(Section):
    """What the gateway knows of some tools better than their server tells. It can only make them count as more dangerous."""

    deletes: Literal[True]


class McpServerConfig(Section):
    """One MCP server: a program to start (`command`), or an address (`url`)."""

    command: NonEmpty | None = None
    args: tuple[str, ...] = ()
    env: dict[NonEmpty, str] = Field(default_factory=dict, repr=False)
    url: NonEmpty | None = Field(default=None, repr=False)
    headers: dict[NonEmpty, str] = Field(default_factory=dict, repr=False)
    allow: tuple[NonEmpty, ...] = Field(default=("*",), description="Globs of the server's own names for its tools.")
    pin: bool = Field(default=False, description="Offer only what `tools.lock.json` holds, and exactly as it holds it.")
    required: bool = Field(default=False, description="Not ready (`/readyz`) while the server is away.")
    overrides: dict[NonEmpty, McpOverride] = Field(default_factory=dict)

    @field_validator("url")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"^https?://[^/\s]+", value):
            raise ValueError("`url` must start with http:// or https://")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> McpServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server needs either `command` or `url`")
        if self.url is not None and (self.args or self.env):
            raise ValueError("`args` and `env` belong to `command`, not to `url`")
        if self.command is not None and self.headers:
            raise ValueError("`headers` belong to `url`, not to `command`")
        return self
