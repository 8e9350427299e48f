"""Secrets, and texts without them.

Knows which settings are secret and how they may be written in a URL or a header. Does not know who prints.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from gateway.config.models import BackendConfig, GatewayConfig, RemoteEncoderConfig
from gateway.security.masking.scrubbing import Scrub

HIDDEN: Final = "[secret]"
# Shorter ones (`none`, `test`) are ordinary words.
_SHORTEST: Final = 6
# Of the variables that a server's program is given, those whose values are none of the log's business.
_SECRET_NAME: Final = re.compile(r"key|token|secret|pass|pwd|cred|auth|cookie|session|dsn|url|uri", re.IGNORECASE)
# Patterns that no JSON text holds: control characters are escaped there. Beside them the finder has too many different first letters
# to look for each of those, and compares up to 64 patterns at once, 16 places a step: a fifth of the time.
_NOWHERE: Final = [bytes([letter]) * _SHORTEST for letter in range(1, 5)]
_COMPARED: Final = 60


class Redactor:
    """Replaces every known secret in a text, also where it is percent-encoded or base64.

    Attributes:
        scrub: takes private data out of what is logged; None where nothing is looked for.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.scrub: Scrub | None = None
        self._pattern: re.Pattern[str] | None = None
        self.update(secrets)

    def update(self, secrets: Iterable[str]) -> None:
        """Take another set of secrets."""
        forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in _forms(secret)}
        ordered = sorted(forms, key=len, reverse=True)
        self._encoded = [
            json.dumps(form, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass") for form in ordered
        ]
        self._finds = _finder(self._encoded) if ordered else None
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def clean(self, text: str) -> str:
        """The text without secrets."""
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)

    def clean_json(self, encoded: bytes) -> bytes:
        """The same for a whole JSON text, encoded as UTF-8."""
        # All of them at once, in every trace: one after the other, sixty keys took a tenth of a millisecond.
        finds = self._finds
        if finds is None or not finds(encoded):
            return encoded
        for form in self._encoded:
            encoded = encoded.replace(form, HIDDEN.encode())
        return encoded

    def clean_value(self, value: Any) -> Any:
        """The same for texts inside of lists and mappings."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {key: self.clean_value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean_value(item) for item in value]
        return value


def _finder(forms: list[bytes]) -> Callable[[bytes], list[tuple[int, int, int]]]:
    """What finds any of these in a JSON text, and nothing in a text without them."""
    if len(forms) > _COMPARED:
        return BytesAhoCorasick(forms).find_matches_as_indexes
    # Only where the first match wins are patterns compared at once.
    return BytesAhoCorasick([*forms, *_NOWHERE], MatchKind.LeftmostFirst).find_matches_as_indexes


def secrets_of(config: GatewayConfig) -> Iterator[str]:
    """Every secret of a configuration: keys, header values, what stands in URLs before the host or as a query, and so on."""
    if config.keys.admin_key is not None:
        yield config.keys.admin_key
    for key in config.keys.static.values():
        yield key.key
    if config.storage.redis is not None and (password := urlsplit(config.storage.redis).password):
        yield unquote(password)
    for backend in config.backends.values():
        yield from backend.keys
    servers: list[BackendConfig | RemoteEncoderConfig] = [*config.backends.values()]
    if isinstance(config.router.semantic.encoder, RemoteEncoderConfig):
        servers.append(config.router.semantic.encoder)
    for server in servers:
        if isinstance(server, RemoteEncoderConfig) and server.api_key is not None:
            yield server.api_key
        yield from _reached_by(server.base_url, server.headers)
    for webhook in config.webhooks.values():
        yield webhook.secret
        yield webhook.secret.removeprefix("whsec_")
        yield from _reached_by(webhook.url, {})
    for mcp in config.tools.mcp.values():
        yield from (value for name, value in mcp.env.items() if _SECRET_NAME.search(name))
        yield from _reached_by(mcp.url, mcp.headers)


def _reached_by(url: str | None, headers: Mapping[str, str]) -> Iterator[str]:
    """What is secret of the way to a server."""
    for value in headers.values():
        yield value
        # `Bearer KEY`: the key alone is as secret.
        yield from value.split()[1:]
    if url is not None:
        parts = urlsplit(url)
        if parts.password:
            yield parts.password
        yield from (pair.partition("=")[2] for pair in parts.query.split("&") if "=" in pair)


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield base64.b64encode(secret.encode()).decode().rstrip("=")
