"""The outbound guard: which addresses tools may reach, and a fetch that reaches no others.

Knows addresses, domains, redirects and sizes. Does not know tools. What was checked is what is connected to: names are
resolved once, each address is judged, and the socket is made for a judged address or not at all.
"""

from __future__ import annotations

import asyncio
import codecs
import fnmatch
import ipaddress
import re
import socket
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway.config.models import OutboundConfig
from gateway.security.addresses import embedded_in, is_literal, is_public, plain_host

Resolve = Callable[[str, int], Awaitable[list[str]]]

MAX_REDIRECTS = 5
MAX_BYTES = 2 * 1024 * 1024
TIMEOUT_S = 10.0

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEPT_ELSEWHERE = frozenset({"accept", "accept-language", "user-agent"})
_CHARSET = re.compile(rb"""<meta[^>]+charset=["']?([A-Za-z0-9_:.-]+)""", re.IGNORECASE)

# What Python can decode and no page is written in: punycode takes minutes for a megabyte, the others make half characters.
_NO_CHARSETS = frozenset({"punycode", "idna", "unicode-escape", "raw-unicode-escape", "utf-7", "undefined"})


class OutboundRefused(Exception):
    """The guard does not let this through; the message says why and shows nothing of the far side."""


class OutboundFailed(ConnectionError):
    """The far side could not be reached or broke off; another attempt may work."""


class Fetched(msgspec.Struct, frozen=True):
    """What came back.

    Attributes:
        url: where it came from in the end.
        status: HTTP status.
        content_type: without parameters, lower case; empty where the far side named none.
        charset: as the far side named it, or None.
        content: the decompressed body.
    """

    url: str
    status: int
    content_type: str
    charset: str | None
    content: bytes

    @property
    def text(self) -> str:
        """The body as text: by the charset that was named, in a header or in the page, else UTF-8; never fails."""
        found = _CHARSET.search(self.content[:2048])
        named = self.charset or (found[1].decode("ascii") if found else "utf-8")
        try:
            if codecs.lookup(named).name in _NO_CHARSETS:
                named = "utf-8"
            return self.content.decode(named, "replace")
        except (LookupError, UnicodeError):
            return self.content.decode("utf-8", "replace")


class OutboundGuard:
    """Judges addresses and fetches from those that pass."""

    def __init__(self, config: OutboundConfig, *, resolve: Resolve | None = None) -> None:
        """`resolve` answers the addresses of a host and port; the system's resolver by default."""
        self._domains = tuple(domain.lower() for domain in config.allow_domains)
        self._names: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._resolve = resolve or _system_resolve
        for entry in config.allow_private:
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                self._names.add(plain_host(entry))

    def refuse_url(self, url: URL) -> None:
        """Judge what can be judged before a name is resolved.

        Raises:
            OutboundRefused: another scheme than http or https, credentials in the URL, or a domain that is not allowed.
        """
        if url.scheme not in {"http", "https"}:
            raise OutboundRefused(f"only http and https are allowed, got {url.scheme or 'no scheme'!r}")
        if not url.host:
            raise OutboundRefused("the URL names no host")
        if url.user is not None or url.password is not None:
            raise OutboundRefused("a URL with a user name or password is not allowed")
        host = plain_host(url.host)
        if not any(fnmatch.fnmatchcase(host, domain) for domain in self._domains):
            raise OutboundRefused(f"the domain {host!r} is not allowed (tools.outbound.allow_domains)")

    def allows(self, address: str, host: str = "") -> bool:
        """Whether an address may be connected to, for the sake of `host`."""
        try:
            parsed = ipaddress.ip_address(address.split("%", 1)[0])
        except ValueError:
            return False
        if plain_host(host) in self._names:
            return True
        inner = embedded_in(parsed)
        if any(
            each.version == network.version and each in network
            for each in (parsed, inner)
            for network in self._networks
        ):
            return True
        return is_public(inner) and "%" not in address

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        max_bytes: int = MAX_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> Fetched:
        """Fetch a URL, following at most 5 redirects, each of them judged like the first.

        Args:
            url: http or https.
            method: sent as it is; a redirect may turn it into GET, as browsers do.
            headers: sent to the first origin; only Accept, Accept-Language and User-Agent follow to another.
            body: bytes to send.
            max_bytes: most bytes of the decompressed body.
            timeout_s: seconds for everything together.

        Raises:
            OutboundRefused: an address, domain or scheme is not allowed, too many redirects, or the body is too large.
            OutboundFailed: it could not be reached, broke off, or took too long.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._follow(_parse(url), method, dict(headers or {}), body, max_bytes)
        except TimeoutError:
            raise OutboundFailed(f"no answer within {timeout_s:g} s") from None
        except aiohttp.InvalidURL as error:
            raise OutboundRefused("that is not a URL with a proper host") from error
        except (aiohttp.ClientError, OSError) as error:
            refused = _refusal_in(error)
            if refused is not None:
                raise refused from error
            raise OutboundFailed(f"the request failed: {type(error).__name__}") from error

    async def _follow(
        self, url: URL, method: str, headers: dict[str, str], body: bytes | None, max_bytes: int
    ) -> Fetched:
        for _ in range(MAX_REDIRECTS + 1):
            self.refuse_url(url)
            answer = await self._once(url, method, headers, body, max_bytes)
            if isinstance(answer, Fetched):
                return answer
            status, target = answer
            if status == 303 or (status in {301, 302} and method == "POST"):
                method, body = "GET", None
            if target.scheme in {"http", "https"} and target.origin() != url.origin():
                headers = {name: value for name, value in headers.items() if name.lower() in _KEPT_ELSEWHERE}
            url = target
        raise OutboundRefused(f"more than {MAX_REDIRECTS} redirects")

    async def _once(
        self, url: URL, method: str, headers: dict[str, str], body: bytes | None, max_bytes: int
    ) -> Fetched | tuple[int, URL]:
        gate = _Gate(self, self._resolve)
        assert url.host is not None
        if is_literal(url.host):
            gate.judge([url.host], url.host)
        # One connector a request: nothing is pooled that was judged for the sake of another host. No proxy, no cookies.
        connector = aiohttp.TCPConnector(
            resolver=gate, use_dns_cache=False, force_close=True, socket_factory=gate.make_socket, limit=1
        )
        sent = {"Accept-Encoding": "gzip, deflate", "User-Agent": "hermes-gateway", **headers}
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as session,
            session.request(method, url, headers=sent, data=body, allow_redirects=False) as response,
        ):
            location = response.headers.get("Location")
            if response.status in _REDIRECTS and location:
                return response.status, _parse(location, response.url)
            content = await _read(response, max_bytes)
            return Fetched(str(url), response.status, response.content_type.lower(), response.charset, content)


class _Gate(AbstractResolver):
    """The addresses that one request may connect to: resolves, judges, and makes sockets for nothing else."""

    def __init__(self, guard: OutboundGuard, resolve: Resolve) -> None:
        self._guard = guard
        self._resolve = resolve
        self._passed: set[str] = set()

    def judge(self, addresses: list[str], host: str) -> list[str]:
        """The addresses that may be connected to.

        Raises:
            OutboundRefused: none of them may.
        """
        passed = [address for address in addresses if self._guard.allows(address, host)]
        if not passed:
            raise OutboundRefused("address not allowed: it is private, local or reserved")
        self._passed.update(passed)
        return passed

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002
    ) -> list[ResolveResult]:
        """Resolve and judge, for aiohttp."""
        try:
            passed = self.judge(await self._resolve(host, port), host)
        except OutboundRefused as refused:
            raise OSError(None, str(refused)) from refused
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in passed
        ]

    async def close(self) -> None:
        """Nothing to close."""

    def make_socket(self, info: tuple[Any, Any, int, str, tuple[Any, ...]]) -> socket.socket:
        """A socket for an address that was judged before, for aiohttp."""
        family, kind, protocol, _, address = info
        if str(address[0]) not in self._passed:
            raise OSError(None, "address not allowed") from OutboundRefused("address not allowed")
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made


async def _system_resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """The body, decompressed piece by piece, so that a small one can't become a large one unseen."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
        raise OutboundRefused(f"the answer is encoded as {encoding[:40]!r}, which was not asked for")
    inflate = _Inflate(encoding)
    out = bytearray()
    async for block in response.content.iter_chunked(65536):
        out += inflate.feed(block, max_bytes - len(out) + 1)
        if len(out) > max_bytes:
            raise OutboundRefused(f"the answer is too large: more than {max_bytes} bytes")
    return bytes(out)


class _Inflate:
    """gzip, deflate in both its spellings, or nothing at all."""

    def __init__(self, encoding: str) -> None:
        self._plain = encoding in {"", "identity"}
        self._encoding = encoding
        self._engine = zlib.decompressobj(wbits=31 if "gzip" in encoding else 15)
        self._started = False

    def feed(self, block: bytes, most: int) -> bytes:
        """What `block` adds, at most `most` bytes: who gets that many stops reading."""
        if self._plain:
            return block[:most]
        if not self._started and block:
            self._started = True
            # Some servers call raw deflate "deflate", against the standard: the zlib header tells.
            if self._encoding == "deflate" and block[0] & 0x0F != 8:
                self._engine = zlib.decompressobj(wbits=-15)
        try:
            return self._engine.decompress(block, most)
        except zlib.error as error:
            raise OutboundFailed("the answer's compression is broken") from error


def _parse(text: str, base: URL | None = None) -> URL:
    try:
        parsed = URL(text.strip())
        return base.join(parsed) if base is not None else parsed
    except (ValueError, TypeError) as error:
        raise OutboundRefused("that is not a URL") from error


def _refusal_in(error: BaseException) -> OutboundRefused | None:
    """The guard's own word, wherever aiohttp has wrapped it."""
    seen: BaseException | None = error
    for _ in range(8):
        if isinstance(seen, OutboundRefused) or seen is None:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
