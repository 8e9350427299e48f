"""The addresses that one request may connect to: resolves, judges, and makes sockets for nothing else.

Knows aiohttp's seams for names and sockets. Whether an address is allowed is the guard's to say.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from gateway.security.outbound_errors import OutboundRefused

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver, ResolveResult
else:
    # All that aiohttp asks for are the methods; the guard is there before anybody needs a client.
    AbstractResolver = object

Resolve = Callable[[str, int], Awaitable[list[str]]]


class Gate(AbstractResolver):
    """One request's addresses: resolved once, judged, and then the only ones a socket is made for.

    Args:
        allows: whether an address may be connected to, for the sake of a host.
        resolve: the addresses of a host and port.
    """

    def __init__(self, allows: Callable[[str, str], bool], resolve: Resolve) -> None:
        self._allows = allows
        self._resolve = resolve
        self._passed: set[str] = set()

    def judge(self, addresses: list[str], host: str) -> list[str]:
        """The addresses that may be connected to.

        Raises:
            OutboundRefused: none of them may.
        """
        passed = [address for address in addresses if self._allows(address, host)]
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
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            }
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


def addresses_of(host: str, port: int) -> list[str]:
    """What the system's resolver says. Blocks.

    Raises:
        OSError: it knows no such name.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def system_resolve(host: str, port: int) -> list[str]:
    """The system's resolver, in one of the loop's threads."""
    return await asyncio.get_running_loop().run_in_executor(None, addresses_of, host, port)
