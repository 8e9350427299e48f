"""One of several gateways that decide alike: it publishes, follows and acknowledges.

Knows the order of the steps and what each failure means; `docs/decisions/0004-versions-over-replicas.md` gives the reasons.
Does not know how a generation is built, nor which engine keeps the bundles.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Generic, TypeVar

import structlog

from gateway.clock import Clock
from gateway.config.bundle_store import BundleStore, Published
from gateway.config.publishing import MakeDraft, Publisher
from gateway.config.standing import Standing
from gateway.config.versions import Close, HasVersion, Versioned
from gateway.errors import ConfigError, GatewayError, Problem, StoreUnavailable
from gateway.ids import new_trace_id

_log = structlog.stdlib.get_logger("gateway.config")

# Seconds a replica may take to prove a bundle before it gives its lease up, so that no reload waits longer for it.
PROVE_S: Final = 120.0
# Seconds between two looks at who has acknowledged, and before a store that failed is asked again.
_LOOK_S: Final = 0.02
_AGAIN_S: Final = 0.25
# Seconds that following may take to end.
_CLOSE_S: Final = 5.0

T = TypeVar("T", bound=HasVersion)


class Replica(Generic[T]):
    """This process among those that share a `BundleStore`.

    Attributes:
        name: unlike any other replica's.
        standing: whether it may decide.
        count: live leases when the store was asked last; 1 without a shared store.
    """

    def __init__(
        self,
        draft: MakeDraft[T],
        dismiss: Close[T],
        revision: int | None,
        store: BundleStore,
        clock: Clock,
        *,
        alone: bool = False,
    ) -> None:
        """Nothing is built yet: `first` comes first.

        Args:
            draft: builds a generation.
            dismiss: closes one that was not used after all.
            revision: `config.revision` of the own files.
            store: where bundles and leases are.
            clock: time.
            alone: the store belongs to this process: there are no leases to hold and nobody to wait for.
        """
        self.name = new_trace_id()[16:]
        self.standing = Standing(clock, alone=alone)
        self.count = 1 if alone else 0
        self._store = store
        self._clock = clock
        self._alone = alone
        self._publisher = Publisher(draft, dismiss, revision, store, clock, self.name, self._took)
        self._refused: GatewayError | None = None
        self._renewing = asyncio.Lock()
        self._told_stale = False
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self.versions: Versioned[T]

    # --- Starting and stopping ---------------------------------------------------------------------------------------

    async def first(self) -> T:
        """The first generation: the active bundle, or the own files where they are to be published.

        Where the store is away or the active bundle cannot be proved it is the own files as generation 0, which never
        decide: `follow` goes on trying.

        Raises:
            ConfigError: the own files are wrong.
        """
        try:
            return await self._publisher.first()
        except (StoreUnavailable, ConfigError) as error:
            if isinstance(error, ConfigError) and self._publisher.seen == 0:
                raise
            self._note(error)
            return await self._publisher.unpublished()

    async def start(self, versions: Versioned[T]) -> None:
        """Take the first lease and follow the others from now on."""
        self.versions = versions
        if self._alone:
            return
        if self._refused is not None:
            versions.refused(self._refused)
        await self._renew()
        self._tasks = [
            asyncio.create_task(self._keep_renewing(), name="lease"),
            asyncio.create_task(self._follow(), name="follow"),
        ]

    async def close(self) -> None:
        """Stop following and give the lease back, so that nobody waits for it. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            # Bounded, and the loops look at `_closed`: a client library may keep a cancellation to itself.
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        if not self._alone:
            self.standing.lost("this process is about to stop")
            with contextlib.suppress(StoreUnavailable):
                await self._store.release(self.name)
        await self._store.close()

    # --- What operators ask for --------------------------------------------------------------------------------------

    async def build(self, _generation: int, current: T) -> T:
        """The files on disk as the next generation, published. Called by `Versioned.reload`, under its lock.

        Raises:
            ConfigError: the files are wrong, with every problem.
            StoreUnavailable: nothing could be published.
        """
        return await self._publisher.publish_files(None, current)

    async def reload(self) -> T:
        """Publish the files on disk; done when every replica with a live lease serves them.

        Raises:
            GatewayError: as `build`; or they are published and it is not known that everybody serves them.
        """
        value = await self.versions.reload()
        await self._confirm()
        return value

    async def refresh(self) -> T:
        """Publish what is active as it is built now, where something beside its files has changed; done as `reload` is.

        Raises:
            GatewayError: as `reload`.
        """
        value = await self.versions.change(self._publisher.publish_anew)
        await self._confirm()
        return value

    async def roll_back(self, generation: int | None = None) -> T:
        """Publish an earlier bundle anew; done as `reload` is.

        Args:
            generation: the one to go back to; None for the last one before the active that differs from it.

        Raises:
            NotFound: it is not kept any more, or there is none.
            GatewayError: as `reload`.
        """
        earlier = await self._publisher.earlier(generation)
        value = await self.versions.change(lambda current: self._publisher.publish_files(earlier.files, current))
        await self._confirm()
        return value

    # --- Waiting for the others --------------------------------------------------------------------------------------

    async def _confirm(self) -> None:
        """Acknowledge, then wait until every live lease has, or has lapsed."""
        if self._alone or self._publisher.held is None:
            return
        generation = self._publisher.held.generation
        failed = False
        await self._renew()
        try:
            async with asyncio.timeout(PROVE_S + 2 * self._publisher.config.lease_s):
                while True:
                    try:
                        leases = await self._store.leases()
                    except StoreUnavailable:
                        # Once is a slow moment: what is published stays so, and others may be taking it over right now.
                        if failed:
                            raise
                        failed = True
                        await asyncio.sleep(_AGAIN_S)
                        continue
                    failed = False
                    self.count = len(leases.acknowledged)
                    behind = [name for name, at in leases.acknowledged.items() if at < generation]
                    # A store that lost its memory does not know yet whom to wait for.
                    if not behind and leases.age_s >= self._publisher.config.lease_s:
                        return
                    await asyncio.sleep(_LOOK_S)
        except (TimeoutError, StoreUnavailable) as error:
            raise StoreUnavailable(
                f"Generation {generation} is published; that all replicas serve it could not be seen in time."
            ) from error

    # --- Following ---------------------------------------------------------------------------------------------------

    async def _keep_renewing(self) -> None:
        while not self._closed:
            await asyncio.sleep(self._publisher.config.lease_s / 3 if await self._renew() else _AGAIN_S)

    async def _renew(self) -> bool:
        """Renew the lease and acknowledge what decides here; whether the store answered."""
        async with self._renewing:
            held = self._publisher.held
            answered = True
            # Who cannot prove what is active has given its lease up, and does not ask for it.
            if held is not None and self._refused is None:
                try:
                    await self._ask(held)
                except StoreUnavailable as error:
                    answered = False
                    self.standing.troubled(_reason(error))
            self._tell()
            return answered

    async def _ask(self, held: Published) -> None:
        asked_at, lease_s = self._clock.monotonic(), self._publisher.config.lease_s
        grant = await self._store.renew(self.name, lease_s, held.generation)
        self.count = grant.replicas
        # Of one number and another content is not what is active: an emptied store gave it out twice.
        if grant.granted and (grant.generation != held.generation or grant.digest == held.digest):
            self.standing.granted(asked_at, lease_s)

    async def _follow(self) -> None:
        while not self._closed:
            try:
                # Before the first bundle there is nothing to wait for; behind one that cannot be proved, another is
                # waited for, and a while later this one is tried again.
                if self._refused is not None:
                    await self._store.changed(self._publisher.seen, self._publisher.config.lease_s / 3)
                elif self._publisher.held is not None:
                    await self._store.changed(self._publisher.held.generation, self._publisher.config.lease_s / 3)
                await self._settle()
            except StoreUnavailable as error:
                self.standing.troubled(_reason(error))
                self._tell()
                await asyncio.sleep(_AGAIN_S)
            except Exception:  # noqa: BLE001 - the task ends nowhere else; others must not wait for who follows no more
                _log.exception("following the other replicas failed")
                await self._give_up(ConfigError((Problem("active", 0, "a defect of the gateway; the log has it"),)))
                await asyncio.sleep(self._publisher.config.lease_s / 3)

    async def _settle(self) -> None:
        """Hold what is active, whatever it takes."""
        held = self._publisher.held
        active = await self._publisher.active()
        if active is not None and self._publisher.holds(active):
            if self.standing.stale:
                await self._renew()
            return
        if self._refused is not None and (
            active is None or (held is not None and active.generation <= held.generation)
        ):
            # The store has lost what this replica could not prove. What it holds is older: others have to publish.
            return
        try:
            async with asyncio.timeout(PROVE_S):
                if held is None:
                    await self.versions.swap_in(lambda _: self._publisher.first())
                elif active is None or active.generation <= held.generation:
                    # The store was emptied, or went back to an older state. The number goes on from the highest seen.
                    await self.versions.swap_in(lambda current: self._publisher.publish_again(held, current))
                else:
                    await self.versions.swap_in(self._publisher.adopt)
        except TimeoutError:
            await self._give_up(ConfigError((Problem("reload", 0, f"proving it took more than {PROVE_S:g} s"),)))
        except StoreUnavailable:
            raise
        except GatewayError as error:
            await self._give_up(error)
        else:
            await self._renew()

    async def _give_up(self, error: GatewayError) -> None:
        """Without proof the lease goes back at once: nobody has to wait for what this replica cannot do."""
        # Behind a renewal that is under way, whose answer would count as a lease that the store no longer knows.
        async with self._renewing:
            self._note(error)
            self._tell()
            with contextlib.suppress(StoreUnavailable):
                await self._store.release(self.name)

    def _took(self) -> None:
        """Another generation decides from this step on."""
        self.standing.on_loss = self._publisher.config.on_lease_loss
        if self._publisher.held is not None:
            self._refused = None

    # --- Telling -----------------------------------------------------------------------------------------------------

    def _note(self, error: GatewayError) -> None:
        reason = _reason(error)
        if isinstance(error, StoreUnavailable):
            self.standing.troubled(reason)
            return
        self.standing.lost(f"the active version cannot be proved here: {reason}")
        if self._refused is None or reason != _reason(self._refused):
            _log.error("the active version cannot be proved here", problems=reason.split("\n"))
            if hasattr(self, "versions"):
                self.versions.refused(error)
        self._refused = error

    def _tell(self) -> None:
        """Say once that the lease is lost, and once that it is back."""
        stale = self.standing.stale
        if stale and not self._told_stale:
            _log.error("this replica is stale", reason=self.standing.reason, on_lease_loss=self.standing.on_loss)
        elif self._told_stale and not stale:
            _log.info("this replica is not stale any more")
        self._told_stale = stale


def _reason(error: GatewayError) -> str:
    return error.message.rstrip(".")
