"""Where a request comes from: the peer of its connection, or what a trusted proxy says of it.

Knows `X-Forwarded-For`. Every hop but those listed as trusted may have been written by anybody, so they are read from the
right: the address is the first one that is no trusted proxy's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from starlette.types import Scope

from gateway.security.principal import Origin

# In the scope: the origin of every request of a connection that no proxy speaks for.
ORIGIN: Final = "gateway.origin"

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_UNKNOWN = "unknown"


def peer_of(scope: Scope) -> str:
    """The other end of the connection; `local` where it is a socket of this machine without an address."""
    client = scope.get("client")
    return str(client[0]) if client and client[0] else "local"


def origin_of(scope: Scope, trusted: Sequence[str]) -> Origin:
    """Both the peer and the client's address."""
    if not trusted:
        origin: Origin = scope[ORIGIN]
        return origin
    return Origin(peer_of(scope), address_of(scope, trusted))


def address_of(scope: Scope, trusted: Sequence[str]) -> str:
    """The client's address.

    Args:
        scope: ASGI's.
        trusted: addresses and networks of proxies whose `X-Forwarded-For` counts.
    """
    peer = peer_of(scope)
    if not trusted:
        return peer
    networks = [ipaddress.ip_network(each) for each in trusted]
    if not _is_in(peer, networks):
        return peer
    # Several lines of the header are one list.
    lines = [str(value, "latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    address = peer
    for hop in reversed([hop.strip() for line in lines for hop in line.split(",")]):
        found = _plain(hop)
        if found is None:
            # What a trusted proxy wrote cannot be read: nobody further away is believed.
            return address if address != peer else _UNKNOWN
        address = found
        if not _is_in(found, networks):
            return address
    return address


def _plain(hop: str) -> str | None:
    """The address of a hop, without port, brackets or quotes; None where it is none."""
    text = hop.strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _is_in(address: str, networks: Sequence[_Network]) -> bool:
    plain = _plain(address)
    return plain is not None and any(ipaddress.ip_address(plain) in network for network in networks)
