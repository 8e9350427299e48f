"""Where the active bundle is kept for all replicas: a seam.

Knows bundles by generation, and leases with what each replica has acknowledged. Does not know what a bundle is built into,
nor which engine keeps it: `gateway/store/bundles.py` (this process alone) and `gateway/store/valkey.py` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from gateway.config.files import Files

# Bundles that are kept for a rollback, the active one among them.
KEPT_BUNDLES: Final = 20


class Published(msgspec.Struct, frozen=True):
    """One bundle as it is published: files as written, variables unexpanded.

    Attributes:
        generation: its number, never used again.
        digest: hex SHA-256 over everything that decides; whoever builds the files and gets another one cannot prove it.
        revision: the highest `config.revision` published so far; None where there never was one.
        files: what it is built from.
        failing: whether the publisher's encoder could not read the utterances, so that meaning decides nowhere.
        at: when it was published, seconds since the epoch.
        by: the replica that did.
    """

    generation: int
    digest: str
    revision: int | None
    files: Files
    failing: bool
    at: float
    by: str


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a renewal.

    Attributes:
        granted: whether the lease now runs for its full length from the moment of the answer.
        generation: the active generation, 0 where nothing is published.
        digest: the active bundle's.
        replicas: live leases, this one among them where it was granted.
    """

    granted: bool
    generation: int
    digest: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Leases:
    """Every live lease.

    Attributes:
        acknowledged: replica -> the generation it said last that it serves.
        age_s: seconds for which the store has surely forgotten no lease; small after a start or an emptying.
    """

    acknowledged: Mapping[str, int]
    age_s: float


class BundleStore(Protocol):
    """Bundles and leases. Every method is bounded in time and raises `StoreUnavailable` where the store is away."""

    async def active(self) -> Published | None:
        """The bundle of the highest generation; None where nothing was published."""
        ...

    async def publish(self, bundle: Published, after: int) -> bool:
        """Make a bundle the active one if the active generation is `after` (0: none); whether it is.

        `bundle.generation` is higher than `after`. The oldest bundles beyond `KEPT_BUNDLES` are dropped.
        """
        ...

    async def earlier(self, generation: int) -> Published | None:
        """A bundle that is still kept; None where it is not."""
        ...

    async def generations(self) -> tuple[int, ...]:
        """The generations that are kept, the oldest first."""
        ...

    async def renew(self, replica: str, lease_s: float, generation: int) -> Grant:
        """Take or extend a lease and acknowledge `generation`.

        A live lease is extended whatever its generation. One that has lapsed is granted again only to who serves the
        active generation: else a replica could come back with an old one behind a reload that did not wait for it.
        """
        ...

    async def release(self, replica: str) -> None:
        """Give a lease up at once."""
        ...

    async def leases(self) -> Leases:
        """Every live lease."""
        ...

    async def changed(self, after: int, timeout_s: float) -> None:
        """Wait until a generation above `after` is active, at most `timeout_s`."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
