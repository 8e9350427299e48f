"""Keys of the public contract that this version does not serve.

They are refused with words of their own, so that nobody looks for a typing mistake. `*` stands for any one part.
"""

from __future__ import annotations

from typing import Final

_GATEWAY: Final = (
    "server.public_url",
    "server.cors_origins",
    "backends.*.capabilities.parallel_tools",
    "backends.*.capabilities.streaming",
    "backends.*.capabilities.text_tool_calls",
    "runs.join_timeout_s",
    "observe.otlp",
)
_ROUTE: Final[tuple[str, ...]] = ()

GATEWAY_UNSERVED: Final = frozenset(tuple(key.split(".")) for key in _GATEWAY)
ROUTE_UNSERVED: Final = frozenset((key,) for key in _ROUTE)


def is_unserved(path: tuple[str | int, ...], unserved: frozenset[tuple[str, ...]]) -> bool:
    """Whether the contract knows this key and this version does not."""
    return any(
        len(known) == len(path) and all(part in {"*", str(here)} for part, here in zip(known, path, strict=True))
        for known in unserved
    )
