"""The keys of the database, as far as this process has seen them.

Knows for how long a look counts. A key that is revoked, blocked or changed anywhere is so here within `STALE_S` of the
change's commit, because nothing read before counts for longer, whether or not the database can be reached; a change made by this
process counts at once. Does not know what a key may do.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec

from gateway.clock import Clock
from gateway.errors import StoreUnavailable
from gateway.store.key_records import KeyRow, Keys

# Seconds after which a key in use is looked at again, beside its requests; and after which no request goes on without.
FRESH_S: Final = 0.7
STALE_S: Final = 1.7
# Seconds one look may take.
_LOOK_S: Final = 5.0
# Keys that are remembered; and looks for unknown ones that run at once: a guesser must not keep the database from the rest.
_SIZE: Final = 10_000
_GUESSES: Final = 8


class _Seen(msgspec.Struct):
    """What a look found, and when it began."""

    row: KeyRow
    at: float


class KeyBook:
    """Looks keys up, and remembers for a moment.

    Args:
        clock: time.
        keys: the keys of the database, or None until it is open.
    """

    def __init__(self, clock: Clock, keys: Keys | None = None) -> None:
        self._keys = keys
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._looking: dict[str, asyncio.Task[KeyRow | None]] = {}
        self._tasks: set[asyncio.Task[KeyRow | None]] = set()
        self._guesses = asyncio.Semaphore(_GUESSES)
        # Rises with every change made here: what was being read meanwhile does not count.
        self._changes = 0
        self._ever = False
        self._ever_at = float("-inf")

    def open(self, keys: Keys) -> None:
        """Take the database's keys, once it is open."""
        self._keys = keys

    def known(self, digest: str) -> KeyRow | None:
        """The key of this secret, where it was seen lately enough to need no look; it may be blocked or at its end by now."""
        seen = self._seen.get(digest)
        if seen is None:
            return None
        age_s = self._clock.monotonic() - seen.at
        if age_s >= STALE_S:
            return None
        if age_s >= FRESH_S and digest not in self._looking:
            self._begin(digest)
        return seen.row

    async def find(self, digest: str) -> KeyRow | None:
        """The key of this secret, or None.

        Raises:
            StoreUnavailable: it cannot be found out.
        """
        row = self.known(digest)
        if row is not None:
            return row
        while True:
            changes = self._changes
            if digest not in self._looking:
                self._begin(digest)
            # Who goes away must not take the look from others who wait for it.
            found = await asyncio.shield(self._looking[digest])
            if changes == self._changes:
                return found

    async def named(self, key_id: str) -> KeyRow | None:
        """The key of this id as it is now, or None.

        Raises:
            StoreUnavailable: it cannot be found out.
        """
        try:
            async with asyncio.timeout(_LOOK_S):
                return await self._there().get(key_id)
        except TimeoutError as error:
            raise StoreUnavailable("The keys cannot be read: the database does not answer.") from error

    async def ever_created(self) -> bool:
        """Whether there ever was a key; a No counts for as long as a look at a key does.

        Raises:
            StoreUnavailable: it cannot be found out.
        """
        now = self._clock.monotonic()
        if not self._ever and now - self._ever_at >= STALE_S:
            self._ever = await self._there().ever_created()
            self._ever_at = now
        return self._ever

    async def any_active(self) -> bool:
        """Whether some key counts now. Raises `StoreUnavailable`."""
        return await self._there().any_active(self._clock.now())

    def close_for_good(self) -> None:
        """There are keys elsewhere, in the configuration: whatever becomes of them, this process lets nobody in without one."""
        self._ever = True

    def changed(self) -> None:
        """A key was made, changed or ended: look at all of them again before they are believed."""
        self._changes += 1
        self._seen.clear()
        self._looking.clear()
        self._ever_at = float("-inf")

    async def close(self) -> None:
        """Stop looking."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _there(self) -> Keys:
        if self._keys is None:
            raise StoreUnavailable("The keys cannot be read yet.")
        return self._keys

    def _begin(self, digest: str) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(digest), name="key-look")
        self._looking[digest] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._looked(digest, done))

    def _looked(self, digest: str, task: asyncio.Task[KeyRow | None]) -> None:
        self._tasks.discard(task)
        if self._looking.get(digest) is task:
            del self._looking[digest]
        if not task.cancelled():
            task.exception()  # whoever waits is told; a look beside a request is made again with the next one

    async def _ask(self, digest: str) -> KeyRow | None:
        changes, at = self._changes, self._clock.monotonic()
        guess = contextlib.nullcontext() if digest in self._seen else self._guesses
        try:
            async with asyncio.timeout(_LOOK_S), guess:
                at = self._clock.monotonic()
                row = await self._there().find(digest)
        except TimeoutError as error:
            raise StoreUnavailable("The keys cannot be read: the database does not answer.") from error
        if changes == self._changes:
            if row is None:
                self._seen.pop(digest, None)
            else:
                if len(self._seen) >= _SIZE:
                    self._seen.clear()
                before = self._seen.get(digest)
                if before is not None and before.row == row:
                    row = before.row  # the same object, so that whoever made something of it sees that nothing changed
                self._seen[digest] = _Seen(row, at)
        return row
