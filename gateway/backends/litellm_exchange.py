"""Stands where litellm would have an HTTP client: one request of its making, sent over connections of our own.

Knows the methods that litellm's translators call, and what its own client raises; does not know what is said.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import msgspec
from yarl import URL

from gateway.backends.http1 import Http1, HttpFailed, Response
from gateway.backends.reading import NO_STREAM, Reader, UnknownEncoding, read_refusal, read_whole, reader_of
from gateway.chat.sse import EventTooLarge, SseParser

# A wildcard's models may each have an address of their own.
_MOST_ADDRESSES: Final = 64
# Said by the connection, and no longer true of a body that was read.
_FRAMING: Final = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})

_encode = msgspec.json.Encoder().encode


class NotSent(Exception):
    """This has to be asked the plain way; nothing has been sent."""


class Servers:
    """Our clients of the addresses that litellm sends to, as its own settings of TLS and proxies have them."""

    def __init__(self, litellm: Any) -> None:
        self._handler = litellm.llms.custom_httpx.http_handler
        self._http = litellm.exceptions.httpx
        self._headers = {"accept": "*/*", "accept-encoding": "identity"}
        self._headers |= {name.lower(): value for name, value in self._handler.get_default_headers().items()}
        self._plain = bool(litellm.ssl_certificate or litellm.http2)
        self._known: dict[str, Http1] = {}
        # An answer belongs to a request, and only its address is ever read: one is enough for all.
        self._requests: dict[str, Any] = {}

    @property
    def used(self) -> bool:
        """Whether anything was sent."""
        return bool(self._known)

    def of(self, url: str) -> Http1:
        """The client of this address.

        Raises:
            NotSent: what litellm is set to is not what ours can.
        """
        server = self._known.get(url)
        if server is not None:
            return server
        place = URL(url)
        proxied = place.scheme in getproxies() or "all" in getproxies()
        if self._plain or len(self._known) >= _MOST_ADDRESSES or place.scheme not in ("http", "https"):
            raise NotSent
        if place.user is not None:
            raise NotSent  # two may then claim the same header
        if proxied and not proxy_bypass(place.host or ""):
            raise NotSent
        tls = None
        if place.scheme == "https":
            tls = self._handler.get_ssl_configuration()
            if not isinstance(tls, ssl.SSLContext) or os.environ.get("SSL_CERTIFICATE"):
                raise NotSent
        self._requests[url] = self._http.Request("POST", url)
        server = self._known[url] = Http1(place, {}, tls=tls)
        return server

    def head(self, headers: Mapping[str, str]) -> bytes:
        """A request's headers as they are sent. Raises ValueError for what cannot be."""
        sent = {**self._headers, **{name.lower(): str(value) for name, value in headers.items()}}
        head = "".join([f"{name}: {value}\r\n" for name, value in sent.items()])
        if head.count("\r") + head.count("\n") != 2 * len(sent) or "\0" in head:
            raise ValueError("a header holds a line break")
        return head.encode("ascii")

    def answer(self, url: str, response: Response, body: bytes) -> Any:
        """A whole answer as litellm reads it."""
        headers, request = self.headers(response), self._requests[url]
        return self._http.Response(response.status, headers=headers, content=body, request=request)

    def headers(self, response: Response) -> Any:
        """An answer's headers as litellm reads them."""
        return self._http.Headers([pair for pair in response.headers.items() if pair[0] not in _FRAMING])

    def refused(self, answer: Any) -> Exception:
        """The error litellm's client raises for an answer that is none."""
        status = self._http.HTTPStatusError(f"status {answer.status_code}", request=answer.request, response=answer)
        error: Exception = self._handler.MaskedHTTPStatusError(status, message=answer.text, text=answer.text)
        return error

    async def close(self) -> None:
        """Close every connection."""
        for server in self._known.values():
            await server.close()


class Exchange:
    """Stands where litellm would have an HTTP client of its own: one request, and its answer.

    Attributes:
        until: when to give up, by the loop's time; whoever reads a stream moves it.
        asked: whether anything may have been sent.
        failed: why the connection did not bring an answer, whatever litellm made of it.
    """

    def __init__(self, servers: Servers, until: float) -> None:
        self.until = until
        self.asked = False
        self.failed: Exception | None = None
        self._servers = servers
        self._response: Response | None = None

    def __del__(self) -> None:
        """Litellm's clients close what they were built with; this one was built with nothing."""

    async def post(
        self,
        url: str,
        data: Any = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        stream: bool = False,
        **other: Any,
    ) -> Any:
        """As litellm's client: raises for every status but those of success."""
        if isinstance(data, dict) or any(other.get(name) is not None for name in ("params", "files", "content")):
            raise NotSent
        server = self._servers.of(url)
        given = {} if headers is None else headers
        if data is None:
            data, given = _encode(json), {"content-type": "application/json", **given}
        head = self._servers.head(given)
        body = data.encode() if isinstance(data, str) else data
        self.close()
        self.asked = True
        try:
            response = self._response = await server.post(head, body, self.until)
            if response.status >= 300:
                said = await read_refusal(response, self.until)
                raise self._servers.refused(self._servers.answer(url, response, said))
            reader = reader_of(response)
            if not stream:
                return self._servers.answer(url, response, await read_whole(reader, self.until))
        except (HttpFailed, OSError, UnknownEncoding) as error:
            self.failed = error
            raise
        return Streamed(self, response, reader, self._servers.headers(response))

    def close(self) -> None:
        """Give the connection back; one that is not read to its end is closed."""
        if self._response is not None:
            self._response.give_back()
            self._response = None


class Streamed:
    """A streamed answer as litellm's translators read it: the lines with something in them."""

    def __init__(self, exchange: Exchange, response: Response, reader: Reader, headers: Any) -> None:
        self.status_code = response.status
        self.headers = headers
        self._exchange = exchange
        self._reader = reader
        # A server that does not stream says why.
        self._events = response.content_type not in NO_STREAM

    def raise_for_status(self) -> Streamed:
        """It is one of success: any other was raised."""
        return self

    async def aiter_text(self) -> AsyncIterator[str]:
        """Text as it comes, whole lines at a time."""
        parser = SseParser()
        held: list[bytes] = []
        try:
            while data := await self._reader.readany(self._exchange.until):
                if not self._events:
                    held.append(data)
                elif lines := _lines(parser.feed(data)):
                    yield lines
            if lines := _lines(parser.close()):
                yield lines
        except (HttpFailed, OSError, EventTooLarge) as error:
            self._exchange.failed = error
            raise
        if held:
            yield b"".join(held).decode("utf-8", "replace")

    async def aclose(self) -> None:
        """Give the connection back."""
        self._exchange.close()


def _lines(payloads: list[bytes]) -> str:
    """One line for each event that says something. A line break within one stands between JSON's tokens: a string cannot
    hold it raw.
    """
    said = b"".join([b"data: " + payload.replace(b"\n", b" ") + b"\n" for payload in payloads if payload])
    return said.decode("utf-8", "replace")
