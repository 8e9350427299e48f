"""An encoder that is asked once for the texts that several requests bring at about the same time.

Wraps any `Encoder`. While one call runs, what arrives waits and goes together in the next; a lone text goes at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.routing.encoder import Encoder, EncoderFailed
from gateway.routing.encoders.wrapped import WrappedEncoder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Encoders take one text after the other, so that no vector depends on its company: who is in a batch waits for all of it.
_MOST = 8

_Asked = tuple[list[str], "asyncio.Future[NDArray[np.float32]]"]


class BatchingEncoder(WrappedEncoder):
    """The same vectors as the wrapped encoder, in fewer calls."""

    def __init__(self, inner: Encoder) -> None:
        super().__init__(inner)
        self._waiting: deque[_Asked] = deque()
        self._running: asyncio.Task[None] | None = None

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors, one row a text. Raises `EncoderFailed`, and whatever the wrapped encoder raises about these texts."""
        if len(texts) != 1:
            return await self._inner.encode(texts)
        answer: asyncio.Future[NDArray[np.float32]] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(texts), answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                count = min(_MOST, len(self._waiting))
                await self._answer([self._waiting.popleft() for _ in range(count)])
        finally:
            self._running = None
            self._refuse()

    async def _answer(self, asked: list[_Asked]) -> None:
        asked = [one for one in asked if not one[1].done()]
        if not asked:
            return
        try:
            vectors = await self._inner.encode([text for texts, _ in asked for text in texts])
            rows = [vectors[number : number + 1] for number in range(len(asked))]
            if len(asked) == 1:
                rows = [vectors]
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(asked))
            raise
        except Exception as error:  # noqa: BLE001 - a foreign model may raise anything; who asked is told
            if len(asked) > 1:
                # One text's fault is not the others'.
                for one in asked:
                    await self._answer([one])
            elif not asked[0][1].done():
                asked[0][1].set_exception(error)
            return
        for (_, answer), row in zip(asked, rows, strict=True):
            if not answer.done():
                answer.set_result(row)

    def _refuse(self) -> None:
        while self._waiting:
            _, answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(EncoderFailed(f"encoder {self.name!r} is closed"))

    async def close(self) -> None:
        """Refuse who still waits, and close the wrapped encoder."""
        running = self._running
        if running is not None:
            running.cancel()
            await asyncio.wait({running})
        await self._inner.close()
