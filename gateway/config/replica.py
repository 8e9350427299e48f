"""One of several gateways that decide alike: it publishes, follows and acknowledges.

Knows the order of the steps and what each failure means; `docs/decisions/0004-versions-over-replicas.md` gives the reasons.
Does not know how a generation is built, nor which engine keeps the bundles.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from gateway.clock import Clock
from gateway.config.bundle_store import BundleStore, Published
from gateway.config.files import Files
from gateway.config.models import ReplicaConfig
from gateway.config.standing import Standing
from gateway.config.versions import Close, HasVersion, Versioned
from gateway.errors import ConfigError, GatewayError, NotFound, Problem, StoreUnavailable
from gateway.ids import new_trace_id

_log = structlog.stdlib.get_logger("gateway.config")

# Seconds a replica may take to prove a bundle before it gives its lease up, so that no reload waits longer for it.
PROVE_S: Final = 120.0
# Replicas that publish at the same moment: how often each begins again.
_ATTEMPTS: Final = 10
# Seconds between two looks at who has acknowledged, and before a store that failed is asked again.
_LOOK_S: Final = 0.02
_AGAIN_S: Final = 0.25
# Seconds that following may take to end.
_CLOSE_S: Final = 5.0

T = TypeVar("T", bound=HasVersion)


@dataclass(frozen=True, slots=True)
class Draft(Generic[T]):
    """A generation that was built and proved, and what it was built from.

    Attributes:
        value: the generation itself.
        files: its files as written.
        config: the `config` section it holds.
        failing: whether its encoder could not read the utterances.
    """

    value: T
    files: Files
    config: ReplicaConfig
    failing: bool


# Builds and proves a generation under a number, from the given files or from those on disk (None). With a current value
# and files from disk, answering that value says that nothing has changed.
MakeDraft = Callable[[int, T | None, Files | None], Awaitable[Draft[T]]]


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
        self.name = new_trace_id()[:16]
        self.standing = Standing(clock, alone=alone)
        self.count = 1 if alone else 0
        self._draft = draft
        self._dismiss = dismiss
        self._revision = revision
        self._store = store
        self._clock = clock
        self._alone = alone
        self._held: Published | None = None
        self._config = ReplicaConfig()
        self._seen = 0
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
            draft = await self._first()
        except StoreUnavailable as error:
            draft = await self._unpublished(error)
        except ConfigError as error:
            if self._seen == 0:
                raise
            draft = await self._unpublished(error)
        return draft.value

    async def _first(self) -> Draft[T]:
        for _ in range(_ATTEMPTS):
            active = await self._active()
            if active is not None and not self._is_newer(active):
                return await self._proved(active)
            draft = await self._draft(self._seen + 1, None, None)
            if await self._publish(draft, active):
                return draft
            await self._dismiss(draft.value)
        raise _crowded()

    def _is_newer(self, active: Published) -> bool:
        """Whether the own files have a higher revision than anything published."""
        return self._revision is not None and (active.revision is None or self._revision > active.revision)

    async def _unpublished(self, error: GatewayError) -> Draft[T]:
        self._note(error)
        draft = await self._draft(0, None, None)
        self._take(draft, None)
        return draft

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
        return await self._publish_files(None, current)

    async def reload(self) -> T:
        """Publish the files on disk; done when every replica with a live lease serves them.

        Raises:
            GatewayError: as `build`; or they are published and it is not known that everybody serves them.
        """
        value = await self.versions.reload()
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
        earlier = await self._earlier(generation)
        value = await self.versions.change(lambda current: self._publish_files(earlier.files, current))
        await self._confirm()
        return value

    async def _earlier(self, generation: int | None) -> Published:
        kept = await self._store.generations()
        active = await self._active()
        wanted = reversed(kept[:-1]) if generation is None else (generation,)
        for each in wanted:
            found = await self._store.earlier(each)
            if found is not None and (generation is not None or active is None or found.digest != active.digest):
                return found
        there = f"{kept[0]} to {kept[-1]} are kept" if kept else "none is kept"
        raise NotFound(
            "There is no earlier version to go back to." if generation is None else f"Of generations, {there}."
        )

    # --- Publishing --------------------------------------------------------------------------------------------------

    async def _publish_files(self, files: Files | None, current: T) -> T:
        for _ in range(_ATTEMPTS):
            active = await self._active()
            if files is None and active is not None and not self._holds(active):
                # Others were quicker. Where the own files say the same, theirs is taken instead of a copy of it.
                theirs = await self._taken_over(active)
                if theirs is not None:
                    return theirs
            same = current if active is not None and self._holds(active) else None
            draft = await self._draft(self._seen + 1, same, files)
            if draft.value is current:
                return current
            if await self._publish(draft, active):
                return draft.value
            await self._dismiss(draft.value)
        raise _crowded()

    async def _taken_over(self, active: Published) -> T | None:
        """The active bundle, where it is what the files on disk say."""
        own = await self._draft(active.generation, None, None)
        if own.value.version.digest != active.digest or own.failing != active.failing:
            await self._dismiss(own.value)
            return None
        self._take(own, active)
        return own.value

    async def _publish(self, draft: Draft[T], active: Published | None) -> bool:
        """Whether this draft is active now. To be called with nobody else swapping."""
        version = draft.value.version
        revisions = [r for r in (draft.config.revision, active.revision if active else None) if r is not None]
        bundle = Published(
            version.generation,
            version.digest,
            max(revisions, default=None),
            draft.files,
            draft.failing,
            self._clock.now(),
            self.name,
        )
        try:
            published = await self._store.publish(bundle, active.generation if active else 0)
        except BaseException:
            await self._dismiss(draft.value)
            raise
        if published:
            self._take(draft, bundle)
        return published

    def _take(self, draft: Draft[T], bundle: Published | None) -> None:
        # Whoever calls this hands the draft to `Versioned` without another wait in between, so no renewal can
        # acknowledge a generation that does not decide yet.
        self._held = bundle
        self._config = draft.config
        self.standing.on_loss = draft.config.on_lease_loss
        if bundle is not None:
            self._seen = max(self._seen, bundle.generation)
            self._refused = None

    async def _active(self) -> Published | None:
        active = await self._store.active()
        if active is not None:
            self._seen = max(self._seen, active.generation)
        return active

    def _holds(self, active: Published) -> bool:
        held = self._held
        return held is not None and (held.generation, held.digest) == (active.generation, active.digest)

    # --- Waiting for the others --------------------------------------------------------------------------------------

    async def _confirm(self) -> None:
        """Acknowledge, then wait until every live lease has, or has lapsed."""
        if self._alone or self._held is None:
            return
        generation = self._held.generation
        await self._renew()
        try:
            async with asyncio.timeout(PROVE_S + 2 * self._config.lease_s):
                while True:
                    leases = await self._store.leases()
                    self.count = len(leases.acknowledged)
                    behind = [name for name, at in leases.acknowledged.items() if at < generation]
                    # A store that lost its memory does not know yet whom to wait for.
                    if not behind and leases.age_s >= self._config.lease_s:
                        return
                    await asyncio.sleep(_LOOK_S)
        except (TimeoutError, StoreUnavailable) as error:
            raise StoreUnavailable(
                f"Generation {generation} is published; that all replicas serve it could not be seen in time."
            ) from error

    # --- Following ---------------------------------------------------------------------------------------------------

    async def _keep_renewing(self) -> None:
        while not self._closed:
            await asyncio.sleep(self._config.lease_s / 3 if await self._renew() else _AGAIN_S)

    async def _renew(self) -> bool:
        """Renew the lease and acknowledge what decides here; whether the store answered."""
        async with self._renewing:
            held = self._held
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
        asked_at, lease_s = self._clock.monotonic(), self._config.lease_s
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
                    await self._store.changed(self._seen, self._config.lease_s / 3)
                elif self._held is not None:
                    await self._store.changed(self._held.generation, self._config.lease_s / 3)
                await self._settle()
            except StoreUnavailable as error:
                self.standing.troubled(_reason(error))
                self._tell()
                await asyncio.sleep(_AGAIN_S)
            except Exception:  # noqa: BLE001 - the task ends nowhere else; others must not wait for who follows no more
                _log.exception("following the other replicas failed")
                await self._give_up(ConfigError((Problem("active", 0, "a defect of the gateway; the log has it"),)))
                await asyncio.sleep(self._config.lease_s / 3)

    async def _settle(self) -> None:
        """Hold what is active, whatever it takes."""
        held = self._held
        active = await self._active()
        if active is not None and self._holds(active):
            if self.standing.stale:
                await self._renew()
            return
        try:
            async with asyncio.timeout(PROVE_S):
                if held is None:
                    await self.versions.swap_in(lambda _: self._join())
                elif active is None or active.generation <= held.generation:
                    # The store was emptied, or went back to an older state. The number goes on from the highest seen.
                    await self.versions.swap_in(lambda current: self._publish_again(held, current))
                else:
                    await self.versions.swap_in(self._adopt)
        except TimeoutError:
            await self._give_up(ConfigError((Problem("reload", 0, f"proving it took more than {PROVE_S:g} s"),)))
        except StoreUnavailable:
            raise
        except GatewayError as error:
            await self._give_up(error)
        else:
            await self._renew()

    async def _join(self) -> T:
        return (await self._first()).value

    async def _adopt(self, current: T) -> T:
        # What is active is asked again: a reload of this replica may have gone before.
        active = await self._active()
        if active is None or self._holds(active):
            return current
        return (await self._proved(active)).value

    async def _publish_again(self, held: Published, current: T) -> T:
        # Asked again under the lock: a reload of this replica may have gone before.
        active = await self._active()
        if self._held is not held:
            return current
        if active is not None and (self._holds(active) or active.generation > held.generation):
            return current
        _log.warning("the shared store has lost the active version; publishing it again", version=str(current.version))
        draft = await self._draft(self._seen + 1, None, held.files)
        if await self._publish(draft, active):
            return draft.value
        await self._dismiss(draft.value)
        return current

    async def _proved(self, active: Published) -> Draft[T]:
        """The active bundle, built here.

        Raises:
            ConfigError: it cannot be built here, or decides otherwise here than where it was published.
        """
        draft = await self._draft(active.generation, None, active.files)
        if draft.value.version.digest != active.digest:
            await self._dismiss(draft.value)
            text = "plugins or environment differ from those of the replica that published it"
        elif draft.failing != active.failing:
            await self._dismiss(draft.value)
            text = "the encoder works on only one of this replica and the one that published it"
        else:
            self._take(draft, active)
            return draft
        raise ConfigError((Problem("active", 0, f"generation {active.generation} cannot be proved: {text}"),))

    async def _give_up(self, error: GatewayError) -> None:
        """Without proof the lease goes back at once: nobody has to wait for what this replica cannot do."""
        # Behind a renewal that is under way, whose answer would count as a lease that the store no longer knows.
        async with self._renewing:
            self._note(error)
            self._tell()
            with contextlib.suppress(StoreUnavailable):
                await self._store.release(self.name)

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


def _crowded() -> StoreUnavailable:
    return StoreUnavailable("Other replicas publish all the time; try again.")
