"""Plain ASGI: what the hot endpoints need of HTTP and no more."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from gateway.api.cycle import BODY_FOLLOWS
from gateway.api.errors import ErrorAnswer
from gateway.errors import BodyTooLarge, UnreadableBody

Headers = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed its connection before its request was complete."""


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole request body.

    Raises:
        BodyTooLarge: it is larger than the limit; no more than the limit is ever held.
        UnreadableBody: it is compressed.
        ClientGone: the client left.
    """
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise UnreadableBody(
                f"`content-encoding: {value.decode('latin-1')}` is not read here; send the body uncompressed."
            )
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise _too_large(limit_bytes)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        return body
    parts = [body]
    size = len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
    return b"".join(parts)


async def send_json(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """A complete JSON answer."""
    all_headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers, BODY_FOLLOWS: True})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, answer: ErrorAnswer) -> None:
    """A complete error answer."""
    await send_json(send, answer.status, answer.body, answer.headers)


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {limit_bytes} bytes (`server.body_limit_mb`).")
