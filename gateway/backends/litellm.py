"""Every provider that does not speak the OpenAI protocol, through the litellm SDK.

The only module that imports litellm, in a thread and on first use: the import takes seconds and 150 MB. Knows how to hand
it a call and how to take its answer; does not know retries (litellm's own are off) or other backends.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec
from yarl import URL

from gateway.backends.backend import ModelCall
from gateway.backends.http1 import CutOff, HttpFailed, HungUp
from gateway.backends.litellm_direct import Direct
from gateway.backends.litellm_errors import InStream, translate
from gateway.backends.litellm_exchange import NotSent
from gateway.backends.litellm_losses import refuse_losses, said_as_text
from gateway.backends.litellm_pieces import Pieces, Plain, delta_in
from gateway.backends.litellm_setup import ENVIRONMENT, set_up
from gateway.backends.litellm_thoughts import Heard, Thoughts
from gateway.backends.secrets import Secrets
from gateway.chat.answer import Answer
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.codecs.chat_completions import encode_message
from gateway.chat.normalise import NotAnAnswer, normalise_answer
from gateway.chat.normalise_stream import StreamNormaliser
from gateway.chat.parameters import renamed, with_defaults
from gateway.chat.reasoning import REASONING_CONTENT, encode_with_reasoning
from gateway.chat.sse import EventTooLarge
from gateway.config.models import BackendConfig
from gateway.errors import GatewayError, UpstreamBroken, UpstreamError, UpstreamHungUp, UpstreamTimeout
from gateway.ids import new_call_id

# Fields of a request that litellm knows as OpenAI's own. Everything else a client sends goes into the provider's body and
# nowhere near litellm's other arguments: `api_base`, `mock_response` or `model_list` are none of a client's business.
_OPENAI_FIELDS = frozenset(
    "temperature top_p n stop max_tokens max_completion_tokens modalities prediction audio presence_penalty frequency_penalty "
    "logit_bias user response_format seed tools tool_choice parallel_tool_calls logprobs top_logprobs reasoning_effort verbosity "
    "safety_identifier service_tier store prompt_cache_key prompt_cache_retention thinking web_search_options functions "
    "function_call stream_options".split()
)
# Providers that want the thoughts behind a call back with its result, in plain words.
_WANT_REASONING = frozenset({"deepseek", "moonshot"})
_CLOSE_TIMEOUT_S = 5.0
_SECRET_NAME = re.compile(r"key|secret|token|password|credential", re.IGNORECASE)

_encode = msgspec.json.Encoder().encode


def _import_litellm() -> Any:
    os.environ.update(ENVIRONMENT)
    # Looking for garbage among a million new objects is what stops everything else for most of a second.
    collecting = gc.isenabled()
    gc.disable()
    try:
        import litellm
    finally:
        # They stay as long as the process: looking through them all takes a third of a second, in which nothing else runs.
        gc.freeze()
        if collecting:
            gc.enable()
    set_up(litellm)
    return litellm


def _secret_params(params: Mapping[str, Any]) -> Iterator[str]:
    """Values of litellm's arguments that are credentials by their name; a key file's fields one by one."""
    for name, value in params.items():
        if not _SECRET_NAME.search(name):
            continue
        fields: Any = value
        with suppress(msgspec.DecodeError):
            fields = msgspec.json.decode(value) if isinstance(value, str) else value
        for field in (value, *(fields.values() if isinstance(fields, dict) else ())):
            if isinstance(field, str):
                yield field


class LitellmBackend:
    """A backend that litellm translates for.

    Args:
        name: the backend's name in the configuration.
        config: `provider` is litellm's name of it; `params` are litellm arguments, for example `api_version`.
    """

    # litellm keeps its connections in a cache of the whole process, so whoever closes last has to know that he is last.
    _open_backends: ClassVar[set[int]] = set()
    # One import for all of them: others would wait for it, each in a thread that somebody else needs.
    _importing: ClassVar[asyncio.Task[Any] | None] = None

    def __init__(self, name: str, config: BackendConfig) -> None:
        self._name = name
        self._config = config
        self._dropped = frozenset(config.drop_params)
        wanted = REASONING_CONTENT if config.provider in _WANT_REASONING else "off"
        reasoning = wanted if config.send_reasoning == "auto" else config.send_reasoning
        self._reasoning = None if reasoning == "off" else reasoning
        host = URL(config.base_url).authority if config.base_url else ""
        self._secrets = Secrets(
            [
                config.api_key or "",
                *config.headers.values(),
                config.base_url or "",
                host,
                *_secret_params(config.params),
            ]
        )
        self._thoughts = Thoughts()
        self._litellm: Any = None
        self._direct: Direct | None = None

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._name

    def prepare(self) -> None:
        """Begin the import, without waiting for it. More than once is once."""
        _ = self._import()

    async def complete(self, call: ModelCall) -> Answer:
        """Ask for the whole answer.

        Raises:
            UpstreamError: or one of its children, or `ContextTooLong`.
        """
        limit_s = min(call.timeout_s, self._config.timeout_s)
        until = asyncio.get_running_loop().time() + limit_s
        try:
            await self._load(until)
            response = await self._ask(call, limit_s, until)
            whole = response.model_dump(mode="json", warnings=False)
            self._keep_thoughts(call, whole)
            return normalise_answer(_encode(whole), new_call_id)
        except TimeoutError as error:
            raise UpstreamTimeout(f"`{call.model}` did not answer within {limit_s:g} s.") from error
        except (msgspec.DecodeError, NotAnAnswer) as error:
            raise UpstreamBroken(f"The answer of `{call.model}` is not a chat completion.") from error
        except self._foreign() as error:
            raise self._translated(error, call) from error

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        """Ask for the answer piece by piece. See `Backend.stream`."""
        normaliser = StreamNormaliser(new_call_id)
        heard = Heard()
        finished = False
        now = asyncio.get_running_loop().time
        wait_s = call.timeout_s
        pieces: Pieces | None = None
        try:
            await self._load(now() + wait_s)
            wait_s = min(self._config.first_token_timeout_s, call.timeout_s)
            pieces = await self._open(call, now() + wait_s)
            while (piece := await pieces.next(wait_s)) is not None:
                wait_s = self._config.idle_timeout_s
                # Most pieces only bring more text, and look like the one before.
                if (run := normaliser.runs.scan((piece,), 0)) is not None:
                    yield (run[0],)
                    continue
                heard.take(delta_in(piece))
                chunk = normaliser.feed(decode_chunk(piece))
                finished = finished or any(choice.finish_reason for choice in chunk.choices)
                yield (chunk,)
            self._thoughts.keep(call.trace_id, heard)
        except TimeoutError as error:
            raise UpstreamTimeout(f"`{call.model}` sent nothing for {wait_s:g} s.") from error
        except msgspec.DecodeError as error:
            raise UpstreamBroken(f"`{call.model}` sent a chunk that is not a chat completion chunk.") from error
        except EventTooLarge as error:
            raise UpstreamBroken(f"`{call.model}` sent {error}.") from error
        except self._foreign() as error:
            raise self._translated(error, call) from error
        finally:
            if pieces is not None:
                await pieces.close()
        if not finished:
            raise UpstreamBroken(f"The answer of `{call.model}` was cut off.")

    async def close(self) -> None:
        """Close litellm's connections, once no other backend uses them."""
        self._open_backends.discard(id(self))
        if self._direct is not None:
            await self._direct.close()
            self._direct = None
        if self._open_backends:
            return
        if self._importing is not None and self._importing.get_loop() is asyncio.get_running_loop():
            self._importing.cancel()  # which changes nothing once it is done
        if self._litellm is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._litellm.close_litellm_async_clients()
                # Its task would outlive everything, though it has nobody to tell.
                await self._litellm.litellm_core_utils.logging_worker.GLOBAL_LOGGING_WORKER.stop()
        self._litellm.in_memory_llm_clients_cache.flush_cache()
        self._litellm = None

    async def _ask(self, call: ModelCall, limit_s: float, until: float) -> Any:
        """Litellm's answer, over our own connection where that is the same."""
        if self._direct is not None:
            exchange = self._direct.exchange(until)
            try:
                return await self._direct.ask(self._arguments(call, limit_s), exchange)
            except NotSent:
                pass
            finally:
                exchange.close()
        async with asyncio.timeout_at(until):
            return await self._litellm.acompletion(**self._arguments(call, limit_s))

    async def _open(self, call: ModelCall, until: float) -> Pieces:
        """Litellm's stream, over our own connection where that is the same."""
        arguments = self._streamed(call)
        if self._direct is not None and arguments.get("n") in (None, 1):
            exchange = self._direct.exchange(until)
            try:
                return await self._direct.open(arguments, exchange)
            except BaseException as error:
                exchange.close()
                if not isinstance(error, NotSent):
                    raise
            arguments = self._streamed(call)  # litellm may have had its way with the first
        async with asyncio.timeout_at(until):
            return Plain(await self._litellm.acompletion(**arguments))

    def _streamed(self, call: ModelCall) -> dict[str, Any]:
        arguments = self._arguments(call, call.timeout_s)
        options = {**arguments.pop("stream_options", {}), "include_usage": True}
        return {**arguments, "stream": True, "stream_options": options}

    def _arguments(self, call: ModelCall, timeout_s: float) -> dict[str, Any]:
        asked = renamed(call.fields, self._dropped, self._config.map_params)
        fields = {name: msgspec.json.decode(raw) for name, raw in asked.items()}
        known = {name: value for name, value in fields.items() if name in _OPENAI_FIELDS}
        other = {name: value for name, value in fields.items() if name not in _OPENAI_FIELDS}
        config = self._config
        field = self._reasoning
        messages = [
            msgspec.json.decode(encode_with_reasoning(message, field) if field else encode_message(message))
            for message in call.messages
        ]
        said_as_text(config.provider, messages)
        refuse_losses(config.provider, call.model, fields, messages)
        self._thoughts.put_back(call.trace_id, messages)
        arguments: dict[str, Any] = {
            # Not by its other fields: what the operator said of the way to the provider is no client's to take away.
            **with_defaults(known, config.params),
            "model": f"{config.provider}/{config.model}".replace("*", call.wanted or "*"),
            "messages": messages,
            "timeout": timeout_s,
            "num_retries": 0,
            "max_retries": 0,
            "extra_headers": {**config.headers, "traceparent": f"00-{call.trace_id}-{call.trace_id[:16]}-01"},
        }
        if other:
            arguments["extra_body"] = {**arguments.get("extra_body", {}), **other}
        if config.base_url:
            arguments["api_base"] = config.base_url
        if config.api_key:
            arguments["api_key"] = config.api_key
        return arguments

    def _keep_thoughts(self, call: ModelCall, whole: dict[str, Any]) -> None:
        heard = Heard()
        for choice in (whole.get("choices") or ())[:1]:
            heard.take(choice.get("message") or {})
        self._thoughts.keep(call.trace_id, heard)

    async def _load(self, until: float) -> None:
        self._open_backends.add(id(self))
        if self._litellm is None:
            async with asyncio.timeout_at(until):
                # A call that is given up must not take the import from the others.
                self._litellm = await asyncio.shield(self._import())
            self._direct = Direct.of(self._litellm, self._config)

    @classmethod
    def _import(cls) -> asyncio.Task[Any]:
        task, loop = cls._importing, asyncio.get_running_loop()
        failed = task is not None and task.done() and (task.cancelled() or task.exception() is not None)
        if task is None or failed or task.get_loop() is not loop:
            task = loop.create_task(asyncio.to_thread(_import_litellm), name="litellm")
            cls._importing = task
        return task

    def _foreign(self) -> tuple[type[Exception], ...]:
        """What litellm lets out: its own errors, its HTTP libraries', and what its translators stumble over."""
        if self._litellm is None:
            return ()
        # Here already: litellm itself goes by it.
        import aiohttp

        library = self._litellm.exceptions
        own = [kind for kind in vars(library).values() if isinstance(kind, type) and issubclass(kind, Exception)]
        stumbles = (ValueError, TypeError, LookupError, AttributeError)
        return (
            *(library.openai.OpenAIError, library.httpx.HTTPError, aiohttp.ClientError, OSError, HttpFailed, InStream),
            *own,
            *stumbles,
        )

    def _translated(self, error: Exception, call: ModelCall) -> GatewayError:
        if isinstance(error, CutOff):
            return UpstreamBroken(f"The answer of `{call.model}` was cut off.")
        if isinstance(error, HttpFailed):
            failed = UpstreamHungUp if isinstance(error, HungUp) else UpstreamError
            return failed(f"The connection to the upstream of `{call.model}` failed.")
        return translate(error, model=call.model, secrets=self._secrets)
