"""What the endpoints need of HTTP and no more."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from starlette.types import Scope

from gateway.api.cycle import CYCLE, Cycle, too_large
from gateway.errors import UnreadableBody

Headers = list[tuple[bytes, bytes]]

_PLAIN = frozenset({b"", b"identity"})


def read_body(scope: Scope, limit_bytes: int) -> Coroutine[Any, Any, bytes]:
    """The whole request body, to be awaited.

    Raises:
        BodyTooLarge: it is larger than the limit; no more than the limit is ever held.
        UnreadableBody: it is compressed.
        ClientGone: the client left.
    """
    headers: dict[bytes, bytes] = dict(scope["headers"])
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.lower() not in _PLAIN:
        raise UnreadableBody(
            f"`content-encoding: {encoding.decode('latin-1')}` is not read here; send the body uncompressed."
        )
    cycle: Cycle = scope[CYCLE]
    if not cycle.received:
        # What is too long need not come first.
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit_bytes:
            raise too_large(limit_bytes)
    return cycle.body(limit_bytes)


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None
