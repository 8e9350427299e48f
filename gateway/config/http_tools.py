"""The models of `tools.http`: services whose operations become tools, described here or in an OpenAPI file.

Knows shapes. Does not know what a request looks like, nor what is in an OpenAPI file.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from gateway.config.section import Name, NonEmpty, Section

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# The caller's key to this gateway, and what belongs to one connection: nobody else's business, whatever a file says.
_NEVER_FORWARDED = frozenset(
    "authorization x-api-key host content-length content-type content-encoding transfer-encoding connection keep-alive te "
    "trailer upgrade proxy-authorization proxy-connection expect accept-encoding idempotency-key".split()
)
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


def placeholders(path: str) -> tuple[str, ...]:
    """The names in a path template's braces."""
    return tuple(_PLACEHOLDER.findall(path))


def _is_header_value(value: str) -> bool:
    return all(" " <= char <= "\xff" and char != "\x7f" for char in value)


class HttpToolConfig(Section):
    """One tool of a service, described here."""

    description: NonEmpty
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    path: NonEmpty
    parameters: dict[str, dict[str, Any]] = Field(default_factory=dict)
    required: tuple[NonEmpty, ...] | None = None
    query: tuple[NonEmpty, ...] = ()
    header: dict[str, str] = Field(default_factory=dict)
    body: Literal["json", "form"] = "json"
    writes: bool | None = None
    timeout_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _fits(self) -> HttpToolConfig:
        if not self.path.startswith("/") or "?" in self.path or "#" in self.path:
            raise ValueError(
                "`path` must begin with `/` and hold no `?` or `#`; what is asked for stands in `parameters`"
            )
        named = {
            "path": placeholders(self.path),
            "required": self.required or (),
            "query": self.query,
            "header": tuple(self.header),
        }
        for key, names in named.items():
            unknown = [name for name in names if name not in self.parameters]
            if unknown:
                raise ValueError(f"`{key}` names `{unknown[0]}`, which is not among `parameters`")
        if self.writes is False and self.method == "DELETE":
            raise ValueError("`writes: false` cannot be said of DELETE")
        return self


class HttpServiceConfig(Section):
    """One service whose operations are tools."""

    openapi: NonEmpty | None = None
    base_url: NonEmpty | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    operations: tuple[NonEmpty, ...] = ()
    forward_headers: tuple[NonEmpty, ...] = ()
    timeout_s: float | None = Field(default=None, gt=0)
    tools: dict[Name, HttpToolConfig] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^/\s?#@]+(/[^\s?#]*)?", value):
            raise ValueError("it must be http:// or https:// and a host, without user name, `?` or `#`")
        return value

    @field_validator("headers")
    @classmethod
    def _sendable(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"`{name}` is not the name of a header")
            if not _is_header_value(text):
                raise ValueError(f"the value of `{name}` holds characters that a header cannot")
        return value

    @field_validator("forward_headers")
    @classmethod
    def _forwardable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(name.lower() for name in value)
        for name in names:
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"`{name}` is not the name of a header")
            if name in _NEVER_FORWARDED or name.startswith("x-gateway-"):
                raise ValueError(f"`{name}` is never forwarded; give the service its own with `headers`")
        return names

    @model_validator(mode="after")
    def _described(self) -> HttpServiceConfig:
        if self.openapi is None and not self.tools:
            raise ValueError("it needs `openapi` or `tools`")
        if self.openapi is None and self.operations:
            raise ValueError("`operations` chooses from an OpenAPI file; name it with `openapi`")
        if self.base_url is None and self.tools:
            raise ValueError("`base_url` is missing: where the service is")
        twice = sorted({name.lower() for name in self.headers} & set(self.forward_headers))
        if twice:
            raise ValueError(f"`{twice[0]}` stands in both `headers` and `forward_headers`")
        return self
