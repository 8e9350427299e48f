"""The outbound guard: which addresses tools may reach, and a fetch that reaches no others.

Knows addresses, domains, redirects and sizes. Does not know tools. What was checked is what is connected to: names are
resolved once, each address is judged, and the socket is made for a judged address or not at all.
"""

from __future__ import annotations

import asyncio
import fnmatch
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from yarl import URL

from gateway.config.models import OutboundConfig
from gateway.security.addresses import embedded_in, is_internal, is_literal, is_public, plain_host
from gateway.security.fetched import Fetched
from gateway.security.outbound_errors import OutboundFailed, OutboundRefused
from gateway.security.outbound_gate import Gate, Resolve, system_resolve
from gateway.security.outbound_slots import Slots

if TYPE_CHECKING:
    from gateway.security.outbound_http import Answer

__all__ = ["Fetched", "OutboundFailed", "OutboundGuard", "OutboundRefused"]

MAX_REDIRECTS = 5
MAX_BYTES = 2 * 1024 * 1024
TIMEOUT_S = 10.0

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEPT_ELSEWHERE = frozenset({"accept", "accept-language", "user-agent"})


class OutboundGuard:
    """Judges addresses and fetches from those that pass."""

    def __init__(self, config: OutboundConfig, *, resolve: Resolve | None = None) -> None:
        """`resolve` answers the addresses of a host and port; the system's resolver by default."""
        self._domains = tuple(_ascii(domain) for domain in config.allow_domains)
        self._names: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._resolve = resolve or system_resolve
        self._slots = Slots(config.per_domain, config.total)
        for entry in config.allow_private:
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                self._names.add(_ascii(entry))

    def refuse_url(self, url: URL) -> None:
        """Judge what can be judged before a name is resolved.

        Raises:
            OutboundRefused: another scheme than http or https, credentials in the URL, or a domain that is not allowed.
        """
        if url.scheme not in {"http", "https"}:
            raise OutboundRefused(f"only http and https are allowed, got {url.scheme or 'no scheme'!r}")
        if not url.raw_host:
            raise OutboundRefused("the URL names no host")
        if url.raw_user is not None or url.raw_password is not None:
            raise OutboundRefused("a URL with a user name or password is not allowed")
        # The name as it will be resolved: a look-alike in another script is another name here too.
        host = plain_host(url.raw_host)
        if not any(fnmatch.fnmatchcase(host, domain) for domain in self._domains):
            raise OutboundRefused(f"the domain {host!r} is not allowed (tools.outbound.allow_domains)")

    def allows(self, address: str, host: str = "") -> bool:
        """Whether an address may be connected to, for the sake of `host`."""
        try:
            parsed = ipaddress.ip_address(address.split("%", 1)[0])
        except ValueError:
            return False
        inner = embedded_in(parsed)
        if any(
            each.version == network.version and each in network
            for each in (parsed, inner)
            for network in self._networks
        ):
            return True
        if "%" in address:
            return False
        return is_public(inner) or (plain_host(host) in self._names and is_internal(inner))

    def gate(self) -> Gate:
        """The judge of the addresses of one host, for who connects to it without `fetch`; ask `refuse_url` too."""
        return Gate(self.allows, self._resolve)

    async def fetch(
        self,
        url: str | URL,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        max_bytes: int = MAX_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> Fetched:
        """Fetch a URL, following at most 5 redirects, each of them judged like the first.

        Args:
            url: http or https; a URL object goes out as it is, text is quoted where it has to be.
            method: sent as it is; a redirect may turn it into GET, as browsers do.
            headers: sent to the first origin; only Accept, Accept-Language and User-Agent follow to another.
            body: bytes to send; they never follow to another origin.
            max_bytes: most bytes of the decompressed body.
            timeout_s: seconds for everything together, waiting for `per_domain` and `total` included.

        Raises:
            OutboundRefused: an address, domain or scheme is not allowed, too many redirects, or the body is too large.
            OutboundFailed: it could not be reached, broke off, or took too long.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._follow(_parse(url), method, dict(headers or {}), body, max_bytes)
        except TimeoutError:
            raise OutboundFailed(f"no answer within {timeout_s:g} s") from None

    @asynccontextmanager
    async def open(
        self, url: URL, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> AsyncIterator[Answer]:
        """One request to a judged address, its body still to be read; no redirect is followed, no time is limited.

        Raises:
            OutboundRefused: the address, domain or scheme is not allowed.
            OutboundFailed: it could not be reached or broke off.
        """
        self.refuse_url(url)
        gate = self.gate()
        assert url.raw_host is not None
        if is_literal(url.raw_host):
            gate.judge([url.raw_host], url.raw_host)
        # A client that a gateway without such tools does without: some 6 MB, and a tenth of its start.
        from gateway.security.outbound_http import sent

        async with sent(gate, url, method, headers or {}, body) as answer:
            yield answer

    async def _follow(
        self, url: URL, method: str, headers: dict[str, str], body: bytes | None, max_bytes: int
    ) -> Fetched:
        for hop in range(MAX_REDIRECTS + 1):
            try:
                self.refuse_url(url)
                answer = await self._once(url, method, headers, body, max_bytes)
            except OutboundRefused as refused:
                refused.answered |= hop > 0
                raise
            except OutboundFailed as failed:
                # Whoever redirects has taken the request, even if nobody is there behind it.
                failed.sent |= hop > 0
                raise
            if isinstance(answer, Fetched):
                return answer
            status, target = answer
            if status == 303 or (status in {301, 302} and method == "POST"):
                method, body = "GET", None
            if target.scheme in {"http", "https"} and target.raw_host and target.origin() != url.origin():
                headers = {name: value for name, value in headers.items() if name.lower() in _KEPT_ELSEWHERE}
                if body is not None:
                    raise OutboundRefused("the redirect would send the request's body to another host", answered=True)
            url = target
        raise OutboundRefused(f"more than {MAX_REDIRECTS} redirects", answered=True)

    async def _once(
        self, url: URL, method: str, headers: dict[str, str], body: bytes | None, max_bytes: int
    ) -> Fetched | tuple[int, URL]:
        async with (
            self._slots.taken(f"{plain_host(url.raw_host or '')}"),
            self.open(url, method=method, headers=headers, body=body) as answer,
        ):
            location = answer.headers.get("Location")
            if answer.status in _REDIRECTS and location:
                return answer.status, _parse(location, url)
            content = b"".join([block async for block in answer.blocks(max_bytes)])
            named = {name.lower(): value for name, value in answer.headers.items()}
            return Fetched(str(url), answer.status, answer.content_type, answer.charset, content, named)


def _parse(text: str | URL, base: URL | None = None) -> URL:
    if isinstance(text, URL):
        return text
    try:
        parsed = URL(text.strip())
        return base.join(parsed) if base is not None else parsed
    except (ValueError, TypeError) as error:
        raise OutboundRefused("that is not a URL") from error


def _ascii(host: str) -> str:
    """A host or glob as it is resolved: lower case, other scripts in their `xn--` spelling."""
    labels = []
    for label in plain_host(host).split("."):
        try:
            labels.append(label if label.isascii() else URL.build(scheme="http", host=label).raw_host or label)
        except ValueError:
            labels.append(label)
    return ".".join(labels)
