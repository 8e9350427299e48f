"""What an open gateway asks of a request instead of a key: that it comes from this machine's own programs.

A page in this machine's browser can send requests to loopback too, under a name that its owner points there. `Host` and
`Origin` tell: neither may be a stranger's.
"""

from __future__ import annotations

from starlette.types import Scope

from gateway.errors import NotAllowed
from gateway.security.keys import is_loopback


def refuse_strangers(scope: Scope) -> None:
    """Raise `NotAllowed` where `Host` or `Origin` names something that is not this machine."""
    for name, value in scope["headers"]:
        if name == b"host" and not _is_here(str(value, "latin-1")):
            raise NotAllowed(
                "Without keys, the gateway answers under this machine's own names only; this `Host` is not one."
            )
        if name == b"origin" and not _is_here(str(value, "latin-1").partition("://")[2]):
            raise NotAllowed(
                "Without keys, the gateway does not answer pages of other origins. Create a key to allow them."
            )


def _is_here(authority: str) -> bool:
    host = authority.rpartition("]")[0] + "]" if authority.startswith("[") else authority.partition(":")[0]
    return is_loopback(host) or host.lower().endswith(".localhost")
