"""A model behind an OpenAI-protocol `/v1/embeddings` endpoint.

Knows how much of a text to send, when to ask again, and how to notice that the model behind the name is another one. Texts
leave this machine. No message of this module quotes a text, an address, or a word of the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import aiohttp
from yarl import URL

from gateway.clock import Clock
from gateway.config.models import RemoteEncoderConfig
from gateway.routing.encoder import EncoderFailed
from gateway.routing.encoders.embeddings_wire import read_vectors, request_body
from gateway.routing.encoders.window import ends_of_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Beginning and end of what is sent, in characters; a server that refuses it gets half, and half again.
_LONGEST: Final = 1000
_SHORTEST: Final = 100
_TOO_LONG: Final = frozenset({400, 413, 422})
_BATCH: Final = 64
_CONNECTIONS: Final = 8
_ANSWER_BYTES: Final = 64 * 1024 * 1024
# Seconds for a single text: whoever asks waits for `router.semantic.timeout_ms`, and a later request may use it.
_SINGLE_S: Final = 5.0
# Pauses before utterances are asked for again; queries are not.
_PAUSES_S: Final = (0.5, 1.0, 2.0)
_AGAIN: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
# After so many failures in a row nobody asks for some seconds.
_FAILURES: Final = 5
_AWAY_S: Final = 5.0
# Seconds after which a query also asks whether the model is still the same.
_PROBE_S: Final = 60.0
_PROBES: Final = ("where is my order?", "请问我的订单到哪里了，另外我想知道退货需要多久，以及怎样才能联系到人工客服。")
_SAME: Final = 0.999
_NOISE: Final = 1e-7


class RemoteEncoder:
    """Vectors from a server.

    Args:
        config: where it is.
        clock: time.
    """

    def __init__(self, config: RemoteEncoderConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        url = URL(config.base_url)
        self._url = url.with_path(url.path.rstrip("/") + "/embeddings").with_query(url.query)
        self._headers = {"content-type": "application/json", "accept-encoding": "identity"}
        self._headers.update({name.lower(): value for name, value in config.headers.items()})
        if config.api_key:
            self._headers.setdefault("authorization", f"Bearer {config.api_key}")
        self._session: aiohttp.ClientSession | None = None
        self._asking = asyncio.Semaphore(_CONNECTIONS)
        self._loading = asyncio.Lock()
        self._batch = _BATCH
        self._dimensions = config.dimensions or 0
        self._mark: NDArray[np.float32] | None = None
        self._changed = self._closed = False
        self._probed = 0.0
        self._failures = 0
        self._away_until = 0.0

    @property
    def name(self) -> str:
        """`remote:` and the model: what thresholds name. Its scores are not those of a local model of that name."""
        return f"remote:{self._config.model}"

    @property
    def dimensions(self) -> int:
        """Length of a vector, known once loaded."""
        return self._dimensions

    def reads(self, text: str) -> bool:  # noqa: ARG002 - the seam asks; of a foreign model nothing is known
        """Always: whoever names a model has chosen it for the scripts at hand."""
        return True

    async def load(self) -> None:
        """Ask for some known texts: is the server there, how long are its vectors, and are they those of the last time.

        Raises `EncoderFailed`.
        """
        async with self._loading:
            await self._load()

    async def _load(self) -> None:
        import numpy as np

        probe = _PROBES[:1]
        first = await self._patiently(probe)
        if self._mark is not None:
            self._compare(first[0])
            return
        again, together = await self._patiently(probe), await self._patiently(_PROBES)
        noise = float(np.abs(again[0] - first[0]).max())
        # A vector that depends on its company would differ between replicas. Where it differs by itself, nothing is gained.
        if float(np.abs(together[0] - first[0]).max()) > max(_NOISE, 2 * noise):
            self._batch = 1
        self._dimensions, self._mark, self._probed = first.shape[1], first[0], self._clock.monotonic()

    def _compare(self, mark: NDArray[np.float32]) -> None:
        known = self._mark
        if known is None or known.shape != mark.shape or float(known @ mark) < _SAME:
            self._changed = True
            raise EncoderFailed(self._of("gives other vectors than when this process started: restart the gateway"))
        self._changed, self._probed = False, self._clock.monotonic()

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, one row a text. Raises `EncoderFailed`, also before `load`."""
        import numpy as np

        if self._mark is None or self._changed:
            raise EncoderFailed(self._of("gives other vectors than before" if self._changed else "is not loaded"))
        if len(texts) == 1:
            if self._clock.monotonic() < self._away_until:
                raise EncoderFailed(self._of("is left alone for some seconds: it failed several times"))
            vectors = await self._counted(texts)
            if self._clock.monotonic() - self._probed > _PROBE_S:
                # Noted first: the requests that come meanwhile need not ask too.
                self._probed = self._clock.monotonic()
                self._compare((await self._counted(_PROBES[:1]))[0])
            return vectors
        if not texts:
            return np.empty((0, self._dimensions), np.float32)
        parts = [texts[begin : begin + self._batch] for begin in range(0, len(texts), self._batch)]
        found: list[NDArray[np.float32]] = []
        for begin in range(0, len(parts), _CONNECTIONS):
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._patiently(part)) for part in parts[begin : begin + _CONNECTIONS]]
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
            found += [task.result() for task in tasks]
        return np.concatenate(found)

    async def _counted(self, texts: Sequence[str]) -> NDArray[np.float32]:
        try:
            vectors = await self._fitting(texts, _SINGLE_S)
        except EncoderFailed:
            self._failures += 1
            if self._failures >= _FAILURES:
                self._failures, self._away_until = 0, self._clock.monotonic() + _AWAY_S
            raise
        self._failures = 0
        return vectors

    async def _patiently(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Ask, and ask again where that may help."""
        for pause_s in (*_PAUSES_S, None):
            try:
                return await self._fitting(texts, self._config.timeout_s)
            except _Unavailable:
                if pause_s is None:
                    raise
                await self._clock.sleep(pause_s)
        raise AssertionError  # pragma: no cover - the last pause is None

    async def _fitting(self, texts: Sequence[str], limit_s: float) -> NDArray[np.float32]:
        """Ask for these texts, shortened until the server takes them: what is sent depends on each text alone."""
        try:
            return await self._ask([ends_of_text(text, _LONGEST) for text in texts], limit_s)
        except _Refused:
            if len(texts) > 1:
                import numpy as np

                return np.concatenate([await self._fitting([text], limit_s) for text in texts])
            limit = min(len(texts[0]), _LONGEST) // 2
            while limit >= _SHORTEST:
                try:
                    return await self._ask([ends_of_text(texts[0], limit)], limit_s)
                except _Refused:
                    limit //= 2
            raise

    async def _ask(self, texts: Sequence[str], limit_s: float) -> NDArray[np.float32]:
        body = request_body(self._config.model, texts, self._config.dimensions)
        try:
            async with (
                asyncio.timeout(limit_s),
                self._asking,
                self._open().post(self._url, data=body, headers=self._headers, allow_redirects=False) as response,
            ):
                if response.status in _TOO_LONG:
                    raise _Refused(self._of(f"answered {response.status}"))
                if response.status in _AGAIN:
                    raise _Unavailable(self._of(f"answered {response.status}"))
                if response.status != 200:
                    raise EncoderFailed(self._of(f"answered {response.status}{_HINTS.get(response.status, '')}"))
                answer = await self._whole(response)
        except TimeoutError as error:
            raise _Unavailable(self._of(f"did not answer within {limit_s:g} s")) from error
        except (aiohttp.ClientError, OSError) as error:
            # The library's own words hold the address, and with it what may be a key.
            raise _Unavailable(self._of(f"cannot be reached ({type(error).__name__})")) from None
        try:
            return await asyncio.to_thread(read_vectors, answer, len(texts), self._dimensions or None)
        except EncoderFailed as error:
            raise EncoderFailed(self._of(f"cannot be used: {error}")) from error

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > _ANSWER_BYTES:
                raise EncoderFailed(self._of(f"answered more than {_ANSWER_BYTES >> 20} MB"))
            parts.append(part)
        return b"".join(parts)

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EncoderFailed(self._of("is closed"))
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30, enable_cleanup_closed=False),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_SINGLE_S),
                skip_auto_headers=("accept", "user-agent"),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _of(self, what: str) -> str:
        return f"the embeddings server of {self._config.model!r} {what}"

    async def close(self) -> None:
        """Close connections."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class _Refused(EncoderFailed):
    """The server does not take these texts; shorter ones, perhaps."""


class _Unavailable(EncoderFailed):
    """The server is away or busy: the same request may succeed a moment later."""


_HINTS: Final = {
    401: ": it refuses `api_key`",
    403: ": it refuses `api_key`",
    404: ": wrong `base_url`, or no such model",
}
