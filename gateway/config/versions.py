"""Versions: which generation decides, and how the next one takes over.

Knows swapping, leases and the last refused attempt. Does not know what a generation is made of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from gateway.clock import Clock
from gateway.errors import ConfigError, GatewayError, Problem


@dataclass(frozen=True, slots=True)
class Version:
    """A generation, counted over all replicas, and the hash of everything that decides in it."""

    generation: int
    digest: str

    def __str__(self) -> str:
        """The form of the `x-gateway-version` header."""
        return f"{self.generation}-{self.digest[:12]}"


class HasVersion(Protocol):
    """Anything that carries the version it was built as."""

    @property
    def version(self) -> Version:
        """The version; never changes."""
        ...


_log = structlog.stdlib.get_logger("gateway.config")

T = TypeVar("T", bound=HasVersion)

# Builds the next generation under the given number; answering the current value says that nothing has changed.
Build = Callable[[int, T], Awaitable[T]]
Close = Callable[[T], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reload that was refused: when (seconds since the epoch) and every reason."""

    at: float
    problems: tuple[Problem, ...]


class Lease(Generic[T]):
    """One generation in use. `users` counts those who still hold it."""

    __slots__ = ("retired", "users", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self.users = 0
        self.retired = False


class Versioned(Generic[T]):
    """The active generation and those before it that are still in use.

    `acquire` and `release` cost an addition each and never wait. A turn acquires once and ends with what it began with.

    Attributes:
        changed_at: when the active generation took over, seconds since the epoch.
        settled_at: when the last reload succeeded or was refused, seconds since the epoch; 0 before the first.
        last_error: the last reload's refusal; None once a reload succeeds.
        failures: reloads refused so far.
    """

    def __init__(
        self,
        first: T,
        build: Build[T],
        close: Close[T],
        clock: Clock,
        *,
        guard: Callable[[], None] | None = None,
        took_over: Callable[[T], None] | None = None,
    ) -> None:
        """Make `first` the active generation.

        Args:
            first: the first generation.
            build: makes the next one for a reload.
            close: closes one that nobody uses any more.
            clock: time.
            guard: raises where nothing may be decided now; asked in the same step in which a generation is taken.
            took_over: told of each generation right after it has become the active one.
        """
        self._lease: Lease[T] = Lease(first)
        self._build = build
        self._close = close
        self._clock = clock
        self._guard = guard
        self._took_over = took_over
        self._reloading = asyncio.Lock()
        self._generation = first.version.generation
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self.changed_at = clock.now()
        self.settled_at = 0.0
        self.last_error: Refusal | None = None
        self.failures = 0

    @property
    def current(self) -> T:
        """The active generation, for a look that decides nothing and does not outlive an await."""
        return self._lease.value

    @property
    def serving(self) -> T:
        """The active generation, to answer by within this step; else `acquire` it.

        Raises:
            GatewayError: nothing may be decided now.
        """
        if self._guard is not None:
            self._guard()
        return self._lease.value

    def acquire(self) -> Lease[T]:
        """Hold the active generation; give it back with `release`.

        Raises:
            GatewayError: nothing may be decided now.
        """
        if self._guard is not None:
            self._guard()
        lease = self._lease
        lease.users += 1
        return lease

    def release(self, lease: Lease[T]) -> None:
        """Give a lease back, once. The last one of an older generation closes it, in a task of its own."""
        lease.users -= 1
        if lease.retired and lease.users == 0:
            self._start_closing(lease)

    async def reload(self) -> T:
        """Build the next generation and make it the active one; what is active after it.

        One reload runs at a time; one that waited still reads the files after it was called. The generation before
        stays active until the new one is complete, and for good if it cannot be built.

        Raises:
            ConfigError: the new generation is refused, with every problem.
            GatewayError: it could not be built for another reason.
        """
        return await self.change(lambda current: self._build(self._generation + 1, current))

    async def change(self, make: Callable[[T], Awaitable[T]]) -> T:
        """As `reload`, with a generation that `make` makes from the current one. Under its lock, as everything here."""
        try:
            return await self.swap_in(make)
        except GatewayError as error:
            self.refused(error)
            _log.error(
                "reload refused; the version before still serves",
                version=str(self.current.version),
                problems=[str(problem) for problem in _problems(error)],
            )
            raise

    async def swap_in(self, make: Callable[[T], Awaitable[T]]) -> T:
        """Make what `make` answers the active generation, unless it is it already; what is active after it.

        There is no wait between the answer of `make` and the swap. What it raises is the caller's to tell.
        """
        async with self._reloading:
            current = self._lease.value
            found = await make(current)
            self.settled_at, self.last_error = self._clock.now(), None
            if found is not current:
                self._swap(found)
                _log.info("version active", version=str(found.version))
            return found

    def refused(self, error: GatewayError) -> None:
        """Keep why a generation was refused, until another takes over."""
        self.settled_at = self._clock.now()
        self.last_error = Refusal(self.settled_at, _problems(error))
        self.failures += 1

    def _swap(self, value: T) -> None:
        old, self._lease = self._lease, Lease(value)
        self._generation = value.version.generation
        self.changed_at = self._clock.now()
        if self._took_over is not None:
            self._took_over(value)
        old.retired = True
        if old.users == 0:
            self._start_closing(old)

    def _start_closing(self, lease: Lease[T]) -> None:
        task = asyncio.get_running_loop().create_task(self._run_close(lease.value))
        self._closing.add(task)
        task.add_done_callback(self._closed_one)

    async def _run_close(self, value: T) -> None:
        await self._close(value)

    def _closed_one(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Nobody waits for it, and the next generation serves all the same.
            _log.error("an older generation was not closed cleanly", exc_info=error)

    async def close(self, timeout_s: float = 10) -> None:
        """Close the active generation, in use or not, and wait up to `timeout_s` for older ones."""
        if self._closed:
            return
        self._closed = True
        async with self._reloading:
            self._lease.retired = True
            self._lease.users += 1
            await asyncio.wait_for(self._close(self._lease.value), timeout_s)
            if self._closing:
                await asyncio.wait(self._closing, timeout=timeout_s)


def _problems(error: GatewayError) -> tuple[Problem, ...]:
    return error.problems if isinstance(error, ConfigError) else (Problem("reload", 0, error.message),)
