"""Which IP addresses belong to the open internet.

Pure. Knows IANA's registries and the ways an IPv6 address can stand for an IPv4 one. Does not know configuration.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# The only unicast space of IPv6 that is handed out; the rest is local, reserved, or holds an IPv4 address.
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_6TO4 = ipaddress.IPv6Network("2002::/16")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_V4_COMPATIBLE = ipaddress.IPv6Network("::/96")
# IANA's special-purpose registries, written out: what `ipaddress` calls global differs between Python's versions.
# The last one is public by number and internal by use: Azure answers every machine of its own there.
_CLOSED_V4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
        "168.63.129.16/32",
    )
)
_CLOSED_V6 = tuple(ipaddress.IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "3fff::/20"))
# Where private networks and this machine itself are.
_INTERNAL = tuple(
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1", "fc00::/7")
)
# Where clouds answer their own machines, credentials included, at addresses that are otherwise internal ones.
_METADATA = frozenset(
    ipaddress.ip_address(address)
    for address in ("100.100.100.200", "169.254.169.254", "169.254.170.2", "fd00:ec2::254", "fd20:ce::254")
)


def plain_host(host: str) -> str:
    """A host as it is compared: lower case, without a closing dot and brackets."""
    return host.lower().rstrip(".").strip("[]")


def is_literal(host: str) -> bool:
    """Whether a host is an address in its canonical spelling; the odd spellings go through the resolver."""
    try:
        ipaddress.ip_address(plain_host(host).split("%", 1)[0])
    except ValueError:
        return False
    return True


def embedded_in(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    number = int(address)
    if address in _6TO4:
        return ipaddress.IPv4Address(number >> 80 & 0xFFFFFFFF)
    # `::` and `::1` lie in that range and are what they are.
    if address in _NAT64 or (address in _V4_COMPATIBLE and number > 1):
        return ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if number >> 32 & 0xFFFFFFFF in {0x00005EFE, 0x02005EFE}:
        # ISATAP: any prefix, and an IPv4 address in the last four bytes.
        return ipaddress.IPv4Address(number & 0xFFFFFFFF)
    return address


def is_internal(address: Address) -> bool:
    """Whether an address, as `embedded_in` gives it, is one of a private network or this machine's: no metadata service, no
    link-local, multicast or reserved address.
    """
    if address in _METADATA:
        return False
    return any(address.version == network.version and address in network for network in _INTERNAL)


def is_public(address: Address) -> bool:
    """Whether an address, as `embedded_in` gives it, belongs to the open internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _CLOSED_V4)
    return address in _PUBLIC_V6 and not any(address in network for network in _CLOSED_V6)
