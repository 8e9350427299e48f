"""One request of the outbound guard on the wire, through a gate that is all it can connect to.

Knows aiohttp: its sessions, its answers and its errors. Which addresses are allowed is the gate's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import aiohttp
from yarl import URL

from gateway.security.inflate import ACCEPTED, Inflate
from gateway.security.outbound_errors import OutboundFailed, OutboundRefused, refusal_in
from gateway.security.outbound_gate import Gate


class Answer:
    """An answer whose body is still to be read.

    Attributes:
        status: HTTP status.
        headers: as they came; names are found in any case.
        content_type: without parameters, lower case; empty where the far side named none.
        charset: as the far side named it, or None.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.content_type = response.content_type.lower() if "Content-Type" in response.headers else ""
        self.charset = response.charset

    async def blocks(self, max_bytes: int) -> AsyncIterator[bytes]:
        """The decompressed body, piece by piece as it comes, at most `max_bytes`.

        Raises:
            OutboundRefused: there is more, or it is encoded in a way that was not asked for.
            OutboundFailed: it broke off.
        """
        inflate = Inflate(self._response.headers.get("Content-Encoding", ""))
        left = max_bytes
        with translated():
            async for block in self._response.content.iter_any():
                piece = inflate.feed(block, left + 1)
                left -= len(piece)
                if left < 0:
                    raise OutboundRefused(f"the answer is too large: more than {max_bytes} bytes", answered=True)
                if piece:
                    yield piece
            inflate.end()


@asynccontextmanager
async def sent(
    gate: Gate, url: URL, method: str, headers: Mapping[str, str], body: bytes | None
) -> AsyncIterator[Answer]:
    """Send a request whose URL was judged; no redirect is followed, no time is limited.

    Raises:
        OutboundRefused: no address of its host is allowed.
        OutboundFailed: it could not be reached or broke off.
    """
    # One connector a request: nothing is pooled that was judged for the sake of another host. No proxy, no cookies.
    connector = aiohttp.TCPConnector(
        resolver=gate, use_dns_cache=False, force_close=True, socket_factory=gate.make_socket, limit=1
    )
    all_headers = {"Accept-Encoding": ACCEPTED, "User-Agent": "hermes-gateway", **headers}
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        middlewares=(_sent_once,),
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        with translated():
            response = await session.request(method, url, headers=all_headers, data=body, allow_redirects=False)
        async with response:
            yield Answer(response)


@contextmanager
def translated() -> Iterator[None]:
    """The client library's errors in the guard's own words."""
    try:
        yield
    except aiohttp.InvalidURL as error:
        raise OutboundRefused("that is not a URL with a proper host") from error
    except OutboundFailed:
        raise
    except (aiohttp.ClientError, OSError, ValueError) as error:
        refused = refusal_in(error)
        if refused is not None:
            raise refused from error
        # Which of them it was, not its words: those name addresses.
        unsent = isinstance(error, aiohttp.ClientConnectorError)
        known = error.__cause__ if isinstance(error, _BrokenOff) else error
        raise OutboundFailed(f"the request failed: {type(known).__name__}", sent=not unsent) from error


class _BrokenOff(aiohttp.ClientConnectionError):
    """The connection broke after the request had gone out."""


async def _sent_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep the client library from sending GET, PUT or DELETE again by itself: who asked decides whether that does harm."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _BrokenOff from error
