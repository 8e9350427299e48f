"""Example utterances: which route a text is most like.

Knows when an encoder may be asked, how long it may take and what its failing means. Does not know how likeness is
computed (`index.py`, which needs numpy and is imported once there is something to compare).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cachetools import LRUCache

from gateway.config.calibration import CalibrationFile, EncoderCalibration
from gateway.config.models import RouteConfig, SemanticConfig
from gateway.errors import Problem
from gateway.routing.cache import Key, cache_key
from gateway.routing.calibrated import calibrated
from gateway.routing.encoder import Encoder
from gateway.routing.encoders.auto import AutoEncoder
from gateway.routing.fits import Fits
from gateway.routing.likeness import Outcome
from gateway.routing.normalise import normalise
from gateway.routing.utterances import Utterances, utterances_by_encoder

if TYPE_CHECKING:
    from gateway.routing.calibration import Calibration
    from gateway.routing.index import Index, Vectors
    from gateway.routing.strays import Stray

_log = logging.getLogger(__name__)

# Reasons that may be gone a moment later: a decision made for one of them is not kept.
NOT_KEPT = frozenset({"encoder_loading", "encoder_timeout", "encoder_failed"})

# Texts that may be in the encoder's hands at one time. Each lasts milliseconds, so more of them could not be answered
# within any useful timeout; refusing them at once keeps a burst from piling up work nobody waits for.
_MAX_IN_FLIGHT = 256
# Vectors of recent texts: one that came too late for its own request is there for the next, and explaining costs nothing.
_KEPT_VECTORS = 512
# Up to this many utterances a comparison takes less than a millisecond, and handing it to a thread takes longer.
_QUICK = 5000


class Semantic:
    """The utterances of one version.

    Attributes:
        routes: names of the routes that have utterances.
        problems: thresholds that belong to another encoder.
        failure: why likeness cannot be asked although it should, or None.
        calibration: where thresholds come from.
    """

    def __init__(
        self,
        routes: Sequence[RouteConfig],
        config: SemanticConfig,
        encoder: Encoder | None,
        files: Mapping[str, str] | None = None,
        fits: Fits | None = None,
        calibration: CalibrationFile | None = None,
    ) -> None:
        """Nothing is loaded before `prepare`."""
        self._fits = fits if fits is not None else Fits()
        self._config = config
        self._examples = sorted((route for route in routes if route.utterances), key=lambda route: route.route)
        self.routes = tuple(route.route for route in self._examples)
        self.failure: str | None = None
        self._encoder_name = encoder.name if encoder else ""
        self._spaces: tuple[Encoder, ...] = ()
        if encoder is not None:
            self._spaces = encoder.spaces if isinstance(encoder, AutoEncoder) else (encoder,)
        self.enabled = bool(self._spaces and self._examples)
        self.problems = _foreign_thresholds(self._examples, encoder, self._spaces, files or {})
        self._utterances = utterances_by_encoder(self._examples, self._spaces, config.none)
        self.calibration = calibrated(
            calibration, {name: known.key for name, known in self._utterances.items() if known.texts}
        )
        self._indexes: dict[str, Index] = {}
        self._failed: set[str] = set()
        self._vectors: LRUCache[Key, Vectors] = LRUCache(_KEPT_VECTORS)
        self._encoding: dict[Key, asyncio.Task[Vectors | None]] = {}

    @property
    def settled(self) -> bool:
        """Whether every space is read or has failed, or there is nothing to read."""
        return not self.enabled or len(self._indexes) + len(self._failed) >= len(self._spaces)

    async def prepare(self) -> None:
        """Load each encoder and read the utterances in it; what fails is logged and kept in `failure`, not raised."""
        if not self.settled:
            await asyncio.gather(*(self._read(space) for space in self._spaces if space.name not in self._indexes))

    async def _read(self, space: Encoder) -> None:
        utterances = self._utterances[space.name]
        if not utterances.texts:
            # No text will ever be compared here: `_space` chooses another one.
            self._failed.add(space.name)
            if len(self._spaces) == 1:
                self.failure = f"encoder {space.name!r} reads none of the utterances"
            return
        try:
            await space.load()
            vectors = await space.encode(utterances.texts)
            # In a thread: the first import of numpy and the calibration hold the CPU for up to a second.
            self._indexes[space.name] = await asyncio.to_thread(self._build, space, utterances, vectors)
        except Exception as error:  # noqa: BLE001 - a foreign model may raise anything; routing falls through
            self._failed.add(space.name)
            self.failure = f"encoder {space.name!r}: {str(error) or type(error).__name__}"
            _log.warning("semantic routing is off: %s", self.failure)

    def _build(self, space: Encoder, utterances: Utterances, vectors: Vectors) -> Index:
        from gateway.routing.calibration import Calibration
        from gateway.routing.index import Index, checked

        given = self.calibration.used.get(space.name)
        own = {
            route.route: route.threshold.value
            for route in self._examples
            if route.threshold is not None and route.threshold.encoder in {space.name, self._encoder_name}
        }
        return Index(
            utterances.pairs,
            checked(vectors, len(utterances.texts), space.dimensions),
            encoder=space.name,
            fits=self._fits,
            calibration=None
            if given is None
            else Calibration(given.threshold, given.margin, given.thresholds, given.kept, utterances.key),
            threshold=None if self._config.threshold == "auto" else self._config.threshold,
            own_thresholds=own,
            margin=None if self._config.margin == "auto" else self._config.margin,
        )

    async def calibrate(self, lines: Sequence[tuple[str, str | None]]) -> dict[str, EncoderCalibration]:
        """What cross-validation and labelled lines find, by encoder.

        Args:
            lines: normalised texts that no rule decides, and the route each belongs to, or None for the default.

        Raises:
            EncoderFailed: an encoder cannot load or encode.
        """
        found = {}
        for space in self._spaces:
            utterances = self._utterances[space.name]
            if not utterances.texts:
                continue
            own = [(text, route) for text, route in lines if text and self._space(text) is space]
            await space.load()
            vectors = await space.encode(utterances.texts)
            others = await space.encode([text for text, _ in own]) if own else None
            fitted = await asyncio.to_thread(_calibrate, space, utterances, vectors, own, others)
            found[space.name] = EncoderCalibration(
                utterances=utterances.key,
                lines=len(own),
                kept=fitted.kept,
                threshold=fitted.threshold,
                margin=fitted.margin,
                thresholds=dict(fitted.thresholds),
            )
        return found

    async def strays(self) -> list[Stray]:
        """Utterances that would go to another route if they were not there, each in the space it is asked in."""
        from gateway.routing.strays import strays

        found = []
        for space in self._spaces:
            if (index := self._indexes.get(space.name)) is not None:
                every = await asyncio.to_thread(strays, index)
                found += [stray for stray in every if self._space(normalise(stray.utterance)) is space]
        return found

    def unread(self) -> list[tuple[str, str]]:
        """Routes and utterances that no encoder reads."""
        if not self.enabled:
            return []
        return [
            (route.route, text)
            for route in self._examples
            for text in route.utterances
            if normalise(text) and self._space(normalise(text)) is None
        ]

    async def read_ahead(self, texts: Sequence[str]) -> None:
        """Encode normalised texts together, so that `match` need not wait for each. Never raises, and takes its time."""
        for space in self._spaces:
            own = [text for text in texts if text and self._space(text) is space]
            new = [text for text in own if cache_key(space.name, text, ()) not in self._vectors]
            if new and space.name in self._indexes:
                await self._encode(space, new)

    async def match(self, text: str, barred: frozenset[str], *, views: bool = False) -> Outcome:
        """The route that a normalised, non-empty text is most like, among those not barred. Never raises.

        Takes `timeout_ms` at most. With `views`, every compared route is listed.
        """
        space = self._space(text)
        if space is None:
            return Outcome(reason="unreadable")
        if space.name in self._failed:
            return Outcome(reason="encoder_failed")
        index = self._indexes.get(space.name)
        if index is None:
            return Outcome(reason="encoder_loading")
        key = cache_key(space.name, text, ())
        vector = self._vectors.get(key)
        if vector is None:
            if key not in self._encoding and len(self._encoding) >= _MAX_IN_FLIGHT:
                return Outcome(reason="encoder_timeout")
            task = self._task(key, space, text)
            done, _ = await asyncio.wait({task}, timeout=self._config.timeout_ms / 1000)
            if not done:
                return Outcome(reason="encoder_timeout")
            vector = None if task.cancelled() else task.result()
            if vector is None:
                return Outcome(reason="encoder_failed")
        if len(index.utterances) > _QUICK:
            return await asyncio.to_thread(index.judge, text, vector, barred, views=views)
        return index.judge(text, vector, barred, views=views)

    def _task(self, key: Key, space: Encoder, text: str) -> asyncio.Task[Vectors | None]:
        """The one computation of this text's vector, which outlives whoever waits for it."""
        task = self._encoding.get(key)
        if task is None:
            task = asyncio.create_task(self._encode_one(key, space, text))
            self._encoding[key] = task
            task.add_done_callback(lambda _: self._encoding.pop(key, None))
        return task

    async def _encode_one(self, key: Key, space: Encoder, text: str) -> Vectors | None:
        await self._encode(space, [text])
        return self._vectors.get(key)

    async def _encode(self, space: Encoder, texts: Sequence[str]) -> None:
        """Keep the vectors of these texts, all of them or, where the encoder fails, none."""
        from gateway.routing.index import checked

        try:
            vectors = checked(await space.encode(texts), len(texts), space.dimensions)
        except Exception as error:  # noqa: BLE001 - a foreign model may raise anything; routing falls through
            # Its name alone: a foreign message may quote the text, which belongs to a user.
            size = sum(map(len, texts))
            _log.warning("encoder %r failed: %s on %d characters", space.name, type(error).__name__, size)
            return
        for text, vector in zip(texts, vectors, strict=True):
            self._vectors[cache_key(space.name, text, ())] = vector

    def _space(self, text: str) -> Encoder | None:
        """The space a text is compared in: a function of text and routes alone, never of what happens to be loaded."""
        reading = [space for space in self._spaces if space.reads(text)]
        complete = (space for space in reading if self._utterances[space.name].complete)
        return next(complete, reading[0] if reading else None)

    async def close(self) -> None:
        """Stop what still computes. The encoder stays open: it belongs to whoever made it."""
        tasks = list(self._encoding.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _calibrate(
    space: Encoder,
    utterances: Utterances,
    vectors: Vectors,
    lines: Sequence[tuple[str, str | None]],
    others: Vectors | None,
) -> Calibration:
    """Blocks, for seconds."""
    from gateway.routing.calibration import Lines
    from gateway.routing.index import Index, checked

    labelled = None
    if others is not None:
        others = checked(others, len(lines), space.dimensions)
        labelled = Lines([text for text, _ in lines], others, [route for _, route in lines])
    vectors = checked(vectors, len(utterances.texts), space.dimensions)
    return Index(utterances.pairs, vectors, encoder=space.name, lines=labelled).calibration


def _foreign_thresholds(
    examples: Sequence[RouteConfig], encoder: Encoder | None, spaces: Sequence[Encoder], files: Mapping[str, str]
) -> list[Problem]:
    if encoder is None:
        return []
    known = sorted({encoder.name, *(space.name for space in spaces)})
    return [
        Problem(
            files.get(route.route, f"routes/{route.route}.yaml"),
            0,
            f"`threshold` was chosen for encoder {route.threshold.encoder!r}, but `router.semantic.encoder` is "
            f"{encoder.name!r} ({', '.join(known)}): scores of different encoders are not comparable",
        )
        for route in examples
        if route.threshold is not None and route.threshold.encoder not in known
    ]
