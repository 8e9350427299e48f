"""A model from the user's own file: llama.cpp's server behind the native backend.

Knows what to load and that the server may move. How it speaks is `native.py`'s, how it lives `llamacpp_process.py`'s.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec

from gateway.backends.backend import ModelCall
from gateway.backends.llamacpp_process import Address, LlamaProcess
from gateway.backends.native import NativeBackend
from gateway.chat.answer import Answer
from gateway.chat.chunk import Chunk
from gateway.clock import Clock, SystemClock
from gateway.config.models import BackendConfig
from gateway.errors import ConfigError, Problem, UpstreamTimeout

# Where the configuration does not say: the memory for more is taken whether it is used or not.
_CONTEXT_TOKENS: Final = 4096
_SLOTS: Final = 2


class LlamaCppBackend:
    """A backend with a server process of its own. It is started by `prepare` or by the first call.

    Args:
        name: the backend's name in the configuration.
        config: what to load, and how it is asked.
        process: the server; one for the configured file by default.
        clock: time.

    Raises:
        ConfigError: the file is not there, or llama.cpp is not installed.
    """

    def __init__(
        self, name: str, config: BackendConfig, process: LlamaProcess | None = None, clock: Clock | None = None
    ) -> None:
        assert config.path is not None, "the configuration demands it"
        self._name = name
        self._config = config
        self._clock = clock or SystemClock()
        self._model = config.model or Path(config.path).stem
        if process is None:
            _refuse_missing(name, Path(config.path))
            process = LlamaProcess(name, _asked(config, self._model))
        self._process = process
        self._native: tuple[Address, NativeBackend] | None = None

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._name

    def prepare(self) -> None:
        """Begin to load the model, without waiting for it."""
        self._process.start()

    async def complete(self, call: ModelCall) -> Answer:
        """Ask for the whole answer; the time it takes to load the model counts.

        Raises:
            UpstreamError: or one of its children, or `ContextTooLong`.
        """
        began = self._clock.monotonic()
        native = await self._loaded(call, min(call.timeout_s, self._config.timeout_s))
        return await native.complete(self._left(call, began))

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        """Ask for the answer piece by piece. See `Backend.stream`."""
        began = self._clock.monotonic()
        native = await self._loaded(call, min(call.timeout_s, self._config.first_token_timeout_s))
        async with aclosing(native.stream(self._left(call, began))) as batches:
            async for batch in batches:
                yield batch

    async def close(self) -> None:
        """End the server. Calls under way fail."""
        if self._native is not None:
            await self._native[1].close()
            self._native = None
        await self._process.close()

    async def _loaded(self, call: ModelCall, limit_s: float) -> NativeBackend:
        try:
            async with asyncio.timeout(limit_s):
                address = await self._process.address()
        except TimeoutError as error:
            raise UpstreamTimeout(f"`{call.model}` was not loaded within {limit_s:g} s.") from error
        if self._native is None or self._native[0] != address:
            old, native = self._native, NativeBackend(self._name, self._at(address))
            self._native = address, native
            if old is not None:  # its server is gone, and every connection with it
                await old[1].close()
            return native
        return self._native[1]

    def _at(self, address: Address) -> BackendConfig:
        update = {"base_url": f"{address.url}/v1", "api_key": address.key, "model": self._model}
        return self._config.model_copy(update=update)

    def _left(self, call: ModelCall, began: float) -> ModelCall:
        left_s = max(0.001, call.timeout_s - (self._clock.monotonic() - began))
        return msgspec.structs.replace(call, timeout_s=left_s)


def _refuse_missing(name: str, path: Path) -> None:
    problem = None
    if importlib.util.find_spec("xllamacpp") is None:
        problem = "`provider: llamacpp` needs llama.cpp: pip install 'hermes-gateway[local]'"
    elif not path.is_file():
        problem = f"there is no file {str(path)!r}; `path` has to name a GGUF file"
    if problem is not None:
        raise ConfigError((Problem(f"backends.{name}", 0, problem),))


def _asked(config: BackendConfig, model: str) -> dict[str, object]:
    return {
        "path": str(Path(str(config.path)).resolve()),
        "model": model,
        "slots": config.max_concurrency or _SLOTS,
        "context_tokens": config.context_tokens or _CONTEXT_TOKENS,
        # Threads that share a core wait for each other: half of them leaves room for the gateway.
        "threads": config.threads or max(1, (os.cpu_count() or 2) // 2),
    }
