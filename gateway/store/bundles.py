"""Bundles and leases in this process's memory: what a gateway without Redis has, and what tests compare with.

Knows the rules of `BundleStore`. Forgets everything when the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib

from gateway.clock import Clock
from gateway.config.bundle_store import KEPT_BUNDLES, Grant, Leases, Published


class MemoryBundles:
    """`BundleStore` for the replicas of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bundles: dict[int, Published] = {}
        self._leases: dict[str, tuple[float, int]] = {}
        self._since = clock.monotonic()
        self._news = asyncio.Event()

    async def active(self) -> Published | None:
        """The bundle of the highest generation."""
        return self._bundles[max(self._bundles)] if self._bundles else None

    async def publish(self, bundle: Published, after: int) -> bool:
        """Make a bundle the active one if the active generation is `after`."""
        if max(self._bundles, default=0) != after:
            return False
        self._bundles[bundle.generation] = bundle
        for old in sorted(self._bundles)[:-KEPT_BUNDLES]:
            del self._bundles[old]
        self._news.set()
        self._news = asyncio.Event()
        return True

    async def earlier(self, generation: int) -> Published | None:
        """A bundle that is still kept."""
        return self._bundles.get(generation)

    async def generations(self) -> tuple[int, ...]:
        """The generations that are kept, the oldest first."""
        return tuple(sorted(self._bundles))

    async def renew(self, replica: str, lease_s: float, generation: int) -> Grant:
        """Take or extend a lease and acknowledge `generation`."""
        self._forget_lapsed()
        active = await self.active()
        granted = replica in self._leases or (active is not None and active.generation == generation)
        if granted:
            # Never shorter than before: its holder may not hear this answer.
            before, _ = self._leases.get(replica, (0.0, 0))
            self._leases[replica] = (max(before, self._clock.monotonic() + lease_s), generation)
        return Grant(
            granted, active.generation if active else 0, active.digest if active else "", replicas=len(self._leases)
        )

    async def release(self, replica: str) -> None:
        """Give a lease up at once."""
        self._leases.pop(replica, None)

    async def leases(self) -> Leases:
        """Every live lease."""
        self._forget_lapsed()
        acknowledged = {replica: generation for replica, (_, generation) in self._leases.items()}
        return Leases(acknowledged, self._clock.monotonic() - self._since)

    async def changed(self, after: int, timeout_s: float) -> None:
        """Wait until a generation above `after` is active, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while max(self._bundles, default=0) <= after:
                    await self._news.wait()

    async def close(self) -> None:
        """Nothing is open."""

    def _forget_lapsed(self) -> None:
        now = self._clock.monotonic()
        self._leases = {replica: lease for replica, lease in self._leases.items() if lease[0] > now}
