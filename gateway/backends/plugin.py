"""A backend that its user wrote: a Python file with `async def chat(request)`.

Knows how to load the file and what it may return; does not know what it does. The file's own errors reach the log, not the
client.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
import structlog

from gateway.backends.backend import ModelCall
from gateway.backends.plugin_shapes import as_chunk, as_chunks, choice_of, is_stream
from gateway.chat.answer import Answer
from gateway.chat.blocks import ToolCall
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.codecs.chat_completions import encode_call, encode_message
from gateway.chat.deltas import CallTracker
from gateway.chat.normalise import normalise_answer
from gateway.chat.normalise_stream import StreamNormaliser
from gateway.chat.parameters import renamed, with_defaults
from gateway.clock import Clock, SystemClock
from gateway.config.models import BackendConfig
from gateway.errors import ConfigError, GatewayError, Problem, UpstreamBroken, UpstreamError, UpstreamTimeout
from gateway.ids import new_call_id, new_trace_id

# Seconds a plugin's generator may take to close.
_CLOSE_S = 5.0
# Behind the last piece: None would be a piece.
_ENDED: Final = object()

_encode = msgspec.json.Encoder().encode
_log: Any = structlog.get_logger("gateway.backends")


class PluginBackend:
    """Calls `chat(request)` of a user's module.

    `request` is the Chat Completions request as a dict, `stream` included. `chat` returns an answer's dict, a message's dict
    or a text; or, being an async generator or returning one, gives chunks, deltas or texts. Either serves both forms.

    Args:
        name: the backend's name in the configuration.
        config: `module` is a file ending in `.py` or a module's name.

    Raises:
        ConfigError: the file does not exist.
    """

    def __init__(self, name: str, config: BackendConfig, clock: Clock | None = None) -> None:
        assert config.module is not None, "the configuration's model sees to it"
        if config.module.endswith(".py") and not Path(config.module).is_file():
            raise ConfigError((Problem(f"backends.{name}.module", 0, f"there is no file {config.module!r}"),))
        self._name = name
        self._config = config
        self._clock = clock or SystemClock()
        self._model = config.model or name
        self._module: ModuleType | None = None
        self._loading = asyncio.Lock()

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._name

    async def complete(self, call: ModelCall) -> Answer:
        """The whole answer; chunks are put together.

        Raises:
            UpstreamError: the module cannot be loaded, failed, or returned what is no answer.
        """
        limit_s = min(call.timeout_s, self._config.timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                returned = await self._ask(call, stream=False)
                body = await self._collected(returned, call) if is_stream(returned) else self._body(returned, call)
            return normalise_answer(_encode(body), new_call_id)
        except TimeoutError as error:
            raise UpstreamTimeout(f"`{call.model}` did not answer within {limit_s:g} s.") from error
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise UpstreamBroken(f"The plugin of `{call.model}` did not return a chat completion.") from error

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        """The answer piece by piece; a whole one comes as a few chunks."""
        normaliser = StreamNormaliser(new_call_id)
        source = self._chunks(call)
        try:
            async for raw in source:
                yield (normaliser.feed(decode_chunk(_encode(raw))),)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise UpstreamBroken(f"The plugin of `{call.model}` gave what is no chunk.") from error
        finally:
            await source.aclose()

    async def close(self) -> None:
        """Call the module's own `close()`, if it was loaded and has one."""
        module, self._module = self._module, None
        close = getattr(module, "close", None)
        if close is not None:
            result = close()
            if inspect.isawaitable(result):
                await result

    async def _chunks(self, call: ModelCall) -> AsyncGenerator[dict[str, Any], None]:
        head = {
            "id": f"chatcmpl-{new_trace_id()}",
            "object": "chat.completion.chunk",
            "created": int(self._clock.now()),
            "model": self._model,
        }
        wait_s = min(self._config.first_token_timeout_s, call.timeout_s)
        pieces: AsyncIterator[Any] | None = None
        try:
            async with asyncio.timeout(wait_s):
                returned = await self._ask(call, stream=True)
            if not is_stream(returned):
                for chunk in as_chunks(self._body(returned, call)):
                    yield {**head, **chunk}
                return
            pieces = aiter(returned)
            ended, called, last = False, False, None
            while True:
                async with asyncio.timeout(wait_s):
                    piece = await self._guarded(anext(pieces, _ENDED), call)
                if piece is _ENDED:
                    break
                chunk = {**head, **as_chunk(piece), "id": head["id"]}
                wait_s = self._config.idle_timeout_s
                if not chunk["choices"]:
                    last = chunk  # the usage: it comes after the end
                    continue
                ended = ended or any(choice.get("finish_reason") for choice in chunk["choices"])
                called = called or any((choice.get("delta") or {}).get("tool_calls") for choice in chunk["choices"])
                yield chunk
            if not ended:
                # A generator that returns has said all it wanted to say.
                yield {**head, "choices": [choice_of({}, "tool_calls" if called else "stop")]}
            if last is not None:
                yield last
        except TimeoutError as error:
            raise UpstreamTimeout(f"`{call.model}` sent nothing for {wait_s:g} s.") from error
        finally:
            await self._closed(pieces)

    async def _ask(self, call: ModelCall, *, stream: bool) -> Any:
        chat = await self._function(call)
        fields = {name: msgspec.json.decode(raw) for name, raw in call.fields.items()}
        request = {
            **with_defaults(renamed(fields, self._config.drop_params, {}), self._config.params),
            "model": self._model,
            "messages": [msgspec.json.decode(encode_message(message)) for message in call.messages],
            "stream": stream,
        }

        async def asked() -> Any:
            returned = chat(request)
            return await returned if inspect.isawaitable(returned) else returned

        return await self._guarded(asked(), call)

    async def _function(self, call: ModelCall) -> Callable[[dict[str, Any]], Any]:
        async with self._loading:
            if self._module is None:
                self._module = await self._guarded(asyncio.to_thread(_load, str(self._config.module)), call)
        chat = getattr(self._module, "chat", None)
        if not callable(chat):
            raise UpstreamError(f"The plugin of `{call.model}` has no function `chat`.", retryable=False)
        function: Callable[[dict[str, Any]], Any] = chat
        return function

    async def _guarded(self, awaitable: Any, call: ModelCall) -> Any:
        try:
            return await awaitable
        except (GatewayError, TimeoutError):
            raise
        except Exception as error:  # the outermost handler of a user's code: anything may come out of it
            raise UpstreamError(
                f"The plugin of `{call.model}` failed: {type(error).__name__}.", retryable=False
            ) from error

    async def _closed(self, pieces: AsyncIterator[Any] | None) -> None:
        """Have a generator end, which has said what it had to say: whether it can is nobody's concern but its author's."""
        close = getattr(pieces, "aclose", None)
        if close is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_S):
                await close()
        except Exception as error:  # noqa: BLE001 - the outermost handler of a user's code: anything may come out of it
            _log.warning("a plugin could not close its stream", backend=self._name, error=type(error).__name__)

    def _body(self, returned: Any, call: ModelCall) -> dict[str, Any]:
        """What `chat` returned, as a Chat Completions body."""
        if isinstance(returned, str):
            returned = {"content": returned}
        if not isinstance(returned, Mapping):
            raise UpstreamBroken(
                f"The plugin of `{call.model}` returned a {type(returned).__name__}; expected an answer, a message or a text."
            )
        head = {"id": f"chatcmpl-{new_trace_id()}", "created": int(self._clock.now()), "model": self._model}
        if "choices" in returned:
            choices = returned["choices"]
            if not isinstance(choices, list) or not choices or not all(isinstance(c, Mapping) for c in choices):
                raise UpstreamBroken(f"The plugin of `{call.model}` returned an answer without choices.")
            return {**head, **returned}
        usage = {"usage": returned["usage"]} if "usage" in returned else {}
        message = {name: value for name, value in returned.items() if name != "usage"}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        return {**head, **usage, "choices": [{"index": 0, "message": message, "finish_reason": reason}]}

    async def _collected(self, pieces: Any, call: ModelCall) -> dict[str, Any]:
        """A generator's chunks as one body: its first choice."""
        text, tracker, reason, usage = "", CallTracker(new_call_id), "", None
        iterator = aiter(pieces)
        try:
            while (piece := await self._guarded(anext(iterator, _ENDED), call)) is not _ENDED:
                chunk = decode_chunk(_encode(as_chunk(piece)))
                usage = as_chunk(piece).get("usage") or usage
                for choice in chunk.choices:
                    if choice.delta is not None and not choice.index:
                        text += choice.delta.content if isinstance(choice.delta.content, str) else ""
                        for delta in choice.delta.tool_calls or ():
                            tracker.add(delta)
                        reason = choice.finish_reason or reason
        finally:
            await self._closed(iterator)
        calls: tuple[ToolCall, ...] = tracker.calls()
        message: dict[str, Any] = {"content": text or None if calls else text}
        if calls:
            message["tool_calls"] = [encode_call(made) for made in calls]
        body = self._body({**message, **({"usage": usage} if usage else {})}, call)
        if reason:
            body["choices"][0]["finish_reason"] = reason
        return body


def _load(module: str) -> ModuleType:
    """Import a module by its name, or run a file as one. Blocks: called in a thread."""
    if not module.endswith(".py"):
        return importlib.import_module(module)
    name = f"hermes_backend_{Path(module).stem}"
    spec = importlib.util.spec_from_file_location(name, module)
    if spec is None or spec.loader is None:
        raise ImportError(f"{module!r} is no Python file")
    loaded = importlib.util.module_from_spec(spec)
    # Dataclasses and the like look their module up while it runs.
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded
