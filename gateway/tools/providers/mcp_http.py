"""An MCP server over HTTP: the SDK's requests, sent by the gateway's own client and behind its outbound guard.

Knows how a failed request is told to the SDK: as an error answer to that request alone, so that the others of a session
go on. Imports the MCP SDK's HTTP library: `mcp_sdk.py` says when.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import httpx2
import msgspec
from mcp.client.streamable_http import streamable_http_client
from yarl import URL

from gateway.security.addresses import is_literal
from gateway.security.outbound import OutboundGuard
from gateway.security.outbound_errors import OutboundRefused, refusal_in

# Codes of JSON-RPC's range for implementations, for what happened to a request on its way.
NOT_SENT: Final = -32090
BROKEN: Final = -32091
REFUSED: Final = -32092

CONNECT_S: Final = 10.0
# Most bytes of one answer or event.
MAX_BYTES: Final = 8 * 1024 * 1024
# What came back from who surely did nothing with the request.
_UNPROCESSED: Final = frozenset({429, 503})


@asynccontextmanager
async def http_streams(
    url: str, headers: Mapping[str, str], guard: OutboundGuard, patience_s: float
) -> AsyncIterator[tuple[Any, Any]]:
    """The streams of a session over streamable HTTP.

    Args:
        url: the server's endpoint.
        headers: sent with every request, and nothing else of anybody's.
        guard: which addresses may be reached.
        patience_s: seconds one request may stay without its answer.
    """
    transport = GuardedTransport(guard, patience_s)
    async with (
        httpx2.AsyncClient(transport=transport, headers=dict(headers), timeout=None, trust_env=False) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_BYTES) as streams,
    ):
        yield streams


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends through the guard. Never raises for what the far side does."""

    def __init__(self, guard: OutboundGuard, patience_s: float) -> None:
        self._guard = guard
        self._gate = guard.gate()
        # No proxy, no cookies, nothing decompressed unseen; connections are this session's own.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=self._gate, use_dns_cache=False, socket_factory=self._gate.make_socket
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )
        self._answered = aiohttp.ClientTimeout(total=patience_s, sock_connect=CONNECT_S)
        self._listening = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; an answer in any case."""
        url = URL(str(request.url), encoded=True)
        try:
            self._guard.refuse_url(url)
            if url.host is not None and is_literal(url.host):
                self._gate.judge([url.host], url.host)
            response = await self._session.request(
                request.method,
                url,
                headers=_sent(request),
                data=await request.aread() or None,
                allow_redirects=False,
                timeout=self._listening if request.method == "GET" else self._answered,
            )
        except (OutboundRefused, aiohttp.InvalidURL) as error:
            return _failed(NOT_SENT, f"the address is not allowed: {error} (tools.outbound)")
        except aiohttp.ClientConnectorError as error:
            refused = refusal_in(error)
            text = f"the address is not allowed: {refused} (tools.outbound)" if refused else "it cannot be reached"
            return _failed(NOT_SENT, text)
        except (aiohttp.ClientError, OSError) as error:
            refused = refusal_in(error)
            if refused is not None:
                return _failed(NOT_SENT, f"the address is not allowed: {refused} (tools.outbound)")
            return _failed(BROKEN, f"the connection broke: {type(error).__name__}")
        return await _taken(response)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._session.close()


def _sent(request: httpx2.Request) -> list[tuple[str, str]]:
    left = [(name, value) for name, value in request.headers.multi_items() if name not in _OURS]
    return [*left, ("accept-encoding", "identity")]


_OURS: Final = frozenset({"accept-encoding", "connection", "content-length", "host", "transfer-encoding"})
_KEPT: Final = frozenset({"content-type", "location", "mcp-session-id", "www-authenticate"})


async def _taken(response: aiohttp.ClientResponse) -> httpx2.Response:
    """The answer for the SDK: whole, where it is not a stream of events."""
    headers = [(name.lower(), value) for name, value in response.headers.items() if name.lower() in _KEPT]
    status = response.status
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        response.close()
        return _failed(BROKEN, "its answer is compressed, which was not asked for")
    if status < 400 and response.content_type == "text/event-stream":
        return httpx2.Response(status, headers=headers, stream=_Events(response))
    try:
        content = await _whole(response)
    except (aiohttp.ClientError, OSError) as error:
        return _failed(BROKEN, f"the connection broke: {type(error).__name__}")
    finally:
        response.close()
    if content is None:
        return _failed(BROKEN, f"its answer is larger than {MAX_BYTES} bytes")
    if status in {401, 403}:
        return _failed(REFUSED, f"it refused our credentials (HTTP {status})")
    if status == 429 or status >= 500:
        return _failed(NOT_SENT if status in _UNPROCESSED else BROKEN, f"it answered HTTP {status}")
    return httpx2.Response(status, headers=headers, content=content)


async def _whole(response: aiohttp.ClientResponse) -> bytes | None:
    content = bytearray()
    async for block in response.content.iter_any():
        content += block
        if len(content) > MAX_BYTES:
            return None
    return bytes(content)


class _Events(httpx2.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for block in self._response.content.iter_any():
                yield block
        except (aiohttp.ClientError, OSError) as error:
            raise httpx2.ReadError(f"the connection broke: {type(error).__name__}") from error

    async def aclose(self) -> None:
        self._response.close()


def _failed(code: int, text: str) -> httpx2.Response:
    """An error answer, which the SDK hands to the one request that it belongs to."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}}
    return httpx2.Response(500, headers={"content-type": "application/json"}, content=msgspec.json.encode(body))
