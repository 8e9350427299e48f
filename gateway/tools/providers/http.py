"""The operations of one HTTP service as tools.

Knows credentials, forwarded headers and what an answer means. What a request looks like is `http_request.py`'s, which
addresses it may go to is the outbound guard's.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.files import display
from gateway.config.http_tools import HttpServiceConfig
from gateway.config.yaml import MAX_BYTES
from gateway.errors import ConfigError, Problem
from gateway.security.outbound import Fetched, OutboundFailed, OutboundGuard, OutboundRefused
from gateway.tools.decorator import deletes_by_name
from gateway.tools.names import callable_name
from gateway.tools.outcome import AnswerUnreadable, CallFailed, TransportFailed
from gateway.tools.provider import Hook
from gateway.tools.providers.http_operation import Operation, described_operations
from gateway.tools.providers.http_request import build_request
from gateway.tools.providers.http_secrets import Secrets
from gateway.tools.providers.openapi import base_url_of, openapi_operations
from gateway.tools.providers.openapi_document import read_openapi
from gateway.tools.spec import ToolContext, ToolSpec, make_spec

# Most of an error's body that the model is shown, in characters.
_MAX_ERROR = 2000
_HEAVY_BYTES = 65_536
# The far side did not take the call, or may take it later; 429 says that it did nothing.
_PASSING = frozenset({408, 425, 429})


class HttpProvider:
    """One service as a ToolProvider.

    Args:
        service: its name under `tools.http`.
        config: what stands there.
        guard: what requests go out through.
        timeout_s: seconds a call may take whose tool says nothing else.
        retries: how often a call is made again whose connection failed; of a writing one only where it surely was not received.
        root: what a relative `openapi` starts from.
        place: where a key of the service stands, as a problem without words; the keys themselves by default.
    """

    def __init__(
        self,
        service: str,
        config: HttpServiceConfig,
        guard: OutboundGuard,
        *,
        timeout_s: float,
        retries: int = 0,
        root: Path | None = None,
        place: Callable[[tuple[str, ...]], Problem] | None = None,
    ) -> None:
        self._place = place or (lambda path: Problem(".".join(("tools", "http", service, *path)), 0, ""))
        self._service = service
        self._config = config
        self._guard = guard
        self._timeout_s = config.timeout_s or timeout_s
        self._retries = retries
        self._root = root or Path()
        self._base_url = config.base_url or ""
        self._operations: dict[str, Operation] = {}
        self._specs: tuple[ToolSpec, ...] | None = None

    @property
    def name(self) -> str:
        """`http:` and the service's name."""
        return f"http:{self._service}"

    @property
    def hooks(self) -> Mapping[str, Sequence[Hook]]:
        """None."""
        return {}

    @property
    def fingerprint(self) -> str:
        """The specs say everything."""
        return hashlib.sha256(self.name.encode()).hexdigest()

    async def open(self) -> None:
        """List the tools, where `list` has not; nothing is connected."""
        await self.list()

    async def list(self) -> Sequence[ToolSpec]:
        """Every operation as a tool, those described in the configuration first.

        Raises:
            ConfigError: with every problem of the OpenAPI file.
        """
        if self._specs is None:
            operations = list(described_operations(self._config, self._origin))
            if self._config.openapi is not None:
                imported = await asyncio.to_thread(self._imported, self._root / self._config.openapi)
                operations += [replace(each, name=self._called(each)) for each in imported]
            # Of one name twice the registry says so, naming both places.
            for each in operations:
                self._operations.setdefault(each.name, each)
            self._specs = tuple(self._spec(each) for each in operations)
        return self._specs

    async def check(self) -> tuple[Problem, ...]:
        """Nothing: a service has no call that is known to be harmless."""
        return ()

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Send one request and read its answer.

        Raises:
            InvalidArguments: a value cannot stand where it belongs in the request.
            CallFailed: the service refused, or the outbound guard did; `AnswerUnreadable` where the service had taken it.
            TransportFailed: the service could not be reached, or failed.
        """
        operation = self._operations[name]
        request = build_request(operation, self._base_url, arguments)
        forwarded = {key: context.headers[key] for key in self._config.forward_headers if key in context.headers}
        headers = {"Accept": "application/json, text/*;q=0.9, */*;q=0.1", **request.headers}
        if operation.writes:
            headers["Idempotency-Key"] = context.idempotency_key
        # Whoever configured a header meant it, in whatever case: it stands in the place of ours.
        own = {**forwarded, **self._config.headers}
        taken = {key.lower() for key in own}
        headers = {**{key: value for key, value in headers.items() if key.lower() not in taken}, **own}
        secrets = Secrets(own)
        try:
            answer = await self._guard.fetch(
                request.url,
                method=request.method,
                headers=headers,
                body=request.body,
                timeout_s=operation.timeout_s or self._timeout_s,
            )
        except OutboundRefused as refused:
            if refused.answered:
                raise AnswerUnreadable(f"the answer of `{name}` was refused: {refused}") from refused
            raise CallFailed(f"`{name}` was not reached: {refused}") from refused
        except OutboundFailed as failed:
            how = "did not answer" if failed.sent else "was not reached"
            raise TransportFailed(f"`{name}` {how}: {failed}", processed=failed.sent) from failed
        return await self._result(operation, answer, secrets)

    async def probe(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> tuple[bool, Any]:  # noqa: ARG002
        """Never asked: no operation is probed."""
        raise CallFailed(f"whether `{name}` took effect cannot be found out")

    async def close(self) -> None:
        """Nothing stays open between calls."""

    def _origin(self, name: str) -> str:
        place = self._place(("tools", name))
        return f"{place.file}:{place.line}" if place.line else place.file

    def _imported(self, path: Path) -> tuple[Operation, ...]:
        shown = display(path)
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            text = f"the OpenAPI file {shown} of `tools.http.{self._service}` cannot be read: {error.strerror}"
            raise ConfigError((replace(self._place(("openapi",)), message=text),)) from error
        if len(content) > MAX_BYTES:
            raise ConfigError((Problem(shown, 0, f"the file is larger than {MAX_BYTES // 1024 // 1024} MiB"),))
        document = read_openapi(shown, content)
        if not self._base_url:
            self._base_url = base_url_of(document)
        return openapi_operations(document, self._config)

    def _called(self, operation: Operation) -> str:
        """As servers' tools are: behind the service's name, so that two services may call theirs alike."""
        return callable_name(f"{self._service}__{operation.remote_name}")

    def _spec(self, operation: Operation) -> ToolSpec:
        layout = [operation.method, self._base_url, operation.path, operation.placed, operation.body]
        decides = [*layout, sorted(self._config.headers), self._config.forward_headers]
        return make_spec(
            name=operation.name,
            description=operation.description,
            parameters=operation.parameters,
            provider=self.name,
            origin=operation.origin,
            timeout_s=operation.timeout_s or self._timeout_s,
            writes=operation.writes,
            retries=self._retries,
            deletes=operation.method == "DELETE" or (operation.writes and deletes_by_name(operation.name)),
            forward_headers=self._config.forward_headers,
            remote_name=operation.remote_name,
            implementation=hashlib.sha256(msgspec.json.encode(decides)).hexdigest(),
        )

    async def _result(self, operation: Operation, answer: Fetched, secrets: Secrets) -> Any:
        name, status = operation.name, answer.status
        heavy = len(answer.content) > _HEAVY_BYTES
        value = await asyncio.to_thread(_value, answer, secrets) if heavy else _value(answer, secrets)
        if 200 <= status < 300:
            if isinstance(value, _NoText):
                if operation.writes:
                    # What it was called for has happened all the same.
                    return {"status": status, "note": f"it answered with {value.kind}, which is not shown"}
                raise CallFailed(f"`{name}` answered with {value.kind}, which is no text")
            return {"status": status} if value is None else value
        said = f"`{name}` answered {status}{_words(value)}"
        if status in _PASSING or status >= 500:
            raise TransportFailed(said, processed=status != 429, retry_after_s=_retry_after(answer))
        raise CallFailed(said)


class _NoText(msgspec.Struct, frozen=True):
    kind: str


def _value(answer: Fetched, secrets: Secrets) -> Any:
    """The body as a JSON value: what JSON says, else its text; None where there is none."""
    if not answer.content.strip():
        return None
    # Some write a mark of the byte order in front, which JSON does not have.
    content = answer.content.removeprefix(codecs.BOM_UTF8)
    kind = answer.content_type
    if kind.endswith(("/json", "+json")) or not kind:
        try:
            return secrets.hidden(msgspec.json.decode(content))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # It says JSON and is none: the model may still make sense of it.
            return secrets.hidden(answer.text)
    if kind.startswith("text/") or kind.endswith(("xml", "javascript", "yaml", "x-ndjson", "x-www-form-urlencoded")):
        return secrets.hidden(answer.text)
    return _NoText(kind)


def _words(value: Any) -> str:
    if value is None or isinstance(value, _NoText):
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f": {text.strip()[:_MAX_ERROR]}"


def _retry_after(answer: Fetched) -> float | None:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 7 else None
