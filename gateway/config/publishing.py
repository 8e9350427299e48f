"""What a replica publishes and takes over: from files or a bundle to a proved generation, and back.

Knows the order of building, comparing and publishing, each time beginning with what is active now. Does not know leases, nor
when any of it is called for: that is `replica.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from gateway.clock import Clock
from gateway.config.bundle_store import BundleStore, Published
from gateway.config.files import Files
from gateway.config.models import ReplicaConfig
from gateway.config.versions import Close, HasVersion
from gateway.errors import ConfigError, NotFound, Problem, StoreUnavailable

_log = structlog.stdlib.get_logger("gateway.config")

# Replicas that publish at the same moment: how often each begins again.
_ATTEMPTS: Final = 10

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


# Builds and proves a generation under a number, from the given files or from those on disk (None). With a current value,
# answering that value says that nothing has changed.
MakeDraft = Callable[[int, T | None, Files | None], Awaitable[Draft[T]]]


class Publisher(Generic[T]):
    """Makes generations, and holds what decides here as it was published.

    Every method that answers a generation is called under the lock of `Versioned`, which makes that generation the active
    one without another wait. So what is `held` decides, whenever somebody looks.

    Attributes:
        held: the bundle that decides here; None before the first one.
        config: the `config` section of what decides here.
        seen: the highest generation ever seen.
    """

    def __init__(
        self,
        draft: MakeDraft[T],
        dismiss: Close[T],
        revision: int | None,
        store: BundleStore,
        clock: Clock,
        name: str,
        took: Callable[[], None],
    ) -> None:
        """Nothing is built yet.

        Args:
            draft: builds a generation.
            dismiss: closes one that was not used after all.
            revision: `config.revision` of the own files.
            store: where bundles are.
            clock: time.
            name: the replica's.
            took: told whenever `held` and `config` have changed.
        """
        self.held: Published | None = None
        self.config = ReplicaConfig()
        self.seen = 0
        self._draft = draft
        self._dismiss = dismiss
        self._revision = revision
        self._store = store
        self._clock = clock
        self._name = name
        self._took = took

    async def unpublished(self) -> T:
        """The own files as generation 0, which nobody else knows.

        Raises:
            ConfigError: they are wrong.
        """
        draft = await self._draft(0, None, None)
        self._take(draft, None)
        return draft.value

    async def first(self) -> T:
        """The active bundle, or the own files, published, where nothing is active or their revision is higher.

        Raises:
            ConfigError: the own files are wrong, or the active bundle cannot be proved.
            StoreUnavailable: the store is away.
        """
        for _ in range(_ATTEMPTS):
            active = await self.active()
            if active is not None and not self._is_newer(active):
                return (await self._proved(active)).value
            draft = await self._draft(self.seen + 1, None, None)
            if await self._publish(draft, active):
                return draft.value
            await self._dismiss(draft.value)
        raise _crowded()

    def _is_newer(self, active: Published) -> bool:
        """Whether the own files have a higher revision than anything published."""
        return self._revision is not None and (active.revision is None or self._revision > active.revision)

    async def publish_files(self, files: Files | None, current: T) -> T:
        """These files, or those on disk (None), as the next generation; `current` where they are what decides already.

        Raises:
            ConfigError: they are wrong, with every problem.
            StoreUnavailable: nothing could be published.
        """
        for _ in range(_ATTEMPTS):
            active = await self.active()
            if files is None and active is not None and not self.holds(active):
                # Others were quicker. Where the own files say the same, theirs is taken instead of a copy of it.
                theirs = await self._taken_over(active)
                if theirs is not None:
                    return theirs
            same = current if active is not None and self.holds(active) else None
            draft = await self._draft(self.seen + 1, same, files)
            if draft.value is current:
                return current
            if await self._publish(draft, active):
                return draft.value
            await self._dismiss(draft.value)
        raise _crowded()

    async def publish_anew(self, current: T) -> T:
        """What is active, as it is built now, as the next generation; `current` where it is that already.

        For what decides beside the files, such as the tools a server offers: files that were edited meanwhile are not read.

        Raises:
            ConfigError: it is not proved any more, with every problem.
            StoreUnavailable: nothing could be published.
        """
        for _ in range(_ATTEMPTS):
            active = await self.active()
            base = active or self.held
            if base is None:
                return current
            same = current if active is not None and self.holds(active) else None
            draft = await self._draft(self.seen + 1, same, base.files)
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
        # The store may have lost what this replica still holds.
        known = (draft.config.revision, *(bundle.revision for bundle in (active, self.held) if bundle is not None))
        revisions = [revision for revision in known if revision is not None]
        bundle = Published(
            version.generation,
            version.digest,
            max(revisions, default=None),
            draft.files,
            draft.failing,
            self._clock.now(),
            self._name,
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
        self.held = bundle
        self.config = draft.config
        if bundle is not None:
            self.seen = max(self.seen, bundle.generation)
        self._took()

    async def active(self) -> Published | None:
        """The active bundle, and remember its number."""
        active = await self._store.active()
        if active is not None:
            self.seen = max(self.seen, active.generation)
        return active

    def holds(self, active: Published) -> bool:
        """Whether this bundle decides here."""
        held = self.held
        return held is not None and (held.generation, held.digest) == (active.generation, active.digest)

    async def adopt(self, current: T) -> T:
        """What is active, proved here; `current` where that decides already.

        Raises:
            ConfigError: it cannot be proved.
        """
        # What is active is asked again: a reload of this replica may have gone before.
        active = await self.active()
        if active is None or self.holds(active):
            return current
        return (await self._proved(active)).value

    async def publish_again(self, held: Published, current: T) -> T:
        """What decides here under a higher generation, where the store has lost it."""
        # Asked again under the lock: a reload of this replica may have gone before.
        active = await self.active()
        if self.held is not held:
            return current
        if active is not None and (self.holds(active) or active.generation > held.generation):
            return current
        _log.warning("the shared store has lost the active version; publishing it again", version=str(current.version))
        draft = await self._draft(self.seen + 1, None, held.files)
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

    async def earlier(self, generation: int | None) -> Published:
        """A bundle to go back to: this generation's, or (None) the last one that differs from the active one.

        Raises:
            NotFound: it is not kept any more, or there is none.
        """
        kept = await self._store.generations()
        active = await self.active()
        wanted = reversed(kept[:-1]) if generation is None else (generation,)
        for each in wanted:
            found = await self._store.earlier(each)
            if found is not None and (generation is not None or active is None or found.digest != active.digest):
                return found
        there = f"{kept[0]} to {kept[-1]} are kept" if kept else "none is kept"
        raise NotFound(
            "There is no earlier version to go back to." if generation is None else f"Of generations, {there}."
        )


def _crowded() -> StoreUnavailable:
    return StoreUnavailable("Other replicas publish all the time; try again.")
