"""Every provider that does not speak the OpenAI protocol, through the litellm SDK.

The only module that imports litellm, in a thread and on first use: the import takes seconds and 150 MB. Knows how to hand
it a call and how to take its answer; does not know retries (litellm's own are off) or other backends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import aiohttp
import msgspec
from yarl import URL

from gateway.backends.backend import ModelCall
from gateway.backends.litellm_errors import translate
from gateway.backends.wire import Secrets
from gateway.chat.answer import Answer
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.codecs.chat_completions import encode_message
from gateway.chat.normalise import NotAnAnswer, StreamNormaliser, normalise_answer
from gateway.config.models import BackendConfig
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout
from gateway.ids import new_call_id

# Fields of a request that litellm knows as OpenAI's own. Everything else a client sends goes into the provider's body and
# nowhere near litellm's other arguments: `api_base`, `mock_response` or `model_list` are none of a client's business.
_OPENAI_FIELDS = frozenset(
    "temperature top_p n stop max_tokens max_completion_tokens modalities prediction audio presence_penalty frequency_penalty "
    "logit_bias user response_format seed tools tool_choice parallel_tool_calls logprobs top_logprobs reasoning_effort verbosity "
    "safety_identifier service_tier store prompt_cache_key prompt_cache_retention thinking web_search_options functions "
    "function_call".split()
)
# Read by litellm while it is imported: no download of price lists and the like, and `.env` is ours to read.
_ENVIRONMENT = {
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
}
_CLOSE_TIMEOUT_S = 5.0

_encode = msgspec.json.Encoder().encode


def _import_litellm() -> Any:
    os.environ.update(_ENVIRONMENT)
    import litellm

    litellm.suppress_debug_info = True
    # Nobody is told of a call but its provider.
    for name in ("callbacks", "input_callback", "success_callback", "failure_callback", "service_callback"):
        setattr(litellm, name, [])
    return litellm


class LitellmBackend:
    """A backend that litellm translates for.

    Args:
        name: the backend's name in the configuration.
        config: `provider` is litellm's name of it; `params` are litellm arguments, for example `api_version`.
    """

    # litellm keeps its connections in a cache of the whole process, so whoever closes last has to know that he is last.
    _open: ClassVar[set[int]] = set()

    def __init__(self, name: str, config: BackendConfig) -> None:
        self._name = name
        self._config = config
        self._dropped = frozenset(config.drop_params)
        host = URL(config.base_url).authority if config.base_url else ""
        self._secrets = Secrets([config.api_key or "", *config.headers.values(), config.base_url or "", host])
        self._litellm: Any = None

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._name

    async def complete(self, call: ModelCall) -> Answer:
        """Ask for the whole answer.

        Raises:
            UpstreamError: or one of its children, or `ContextTooLong`.
        """
        limit_s = min(call.timeout_s, self._config.timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                litellm = await self._load()
                response = await litellm.acompletion(**self._arguments(call, limit_s))
            body = _encode(response.model_dump(mode="json", warnings=False))
            return normalise_answer(body, new_call_id)
        except TimeoutError as error:
            raise UpstreamTimeout(f"`{call.model}` did not answer within {limit_s:g} s.") from error
        except (msgspec.DecodeError, NotAnAnswer) as error:
            raise UpstreamBroken(f"The answer of `{call.model}` is not a chat completion.") from error
        except self._foreign() as error:
            raise self._translated(error, call) from error

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        """Ask for the answer piece by piece. See `Backend.stream`."""
        normaliser = StreamNormaliser(new_call_id)
        finished = False
        source = self._chunks(call)
        try:
            async for chunk in source:
                finished = finished or any(choice.finish_reason for choice in chunk.choices)
                yield (normaliser.feed(chunk),)
        finally:
            await source.aclose()
        if not finished:
            raise UpstreamBroken(f"The answer of `{call.model}` was cut off.")

    async def close(self) -> None:
        """Close litellm's connections, once no other backend uses them."""
        self._open.discard(id(self))
        if self._litellm is None or self._open:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._litellm.close_litellm_async_clients()
        self._litellm.in_memory_llm_clients_cache.flush_cache()
        self._litellm = None

    async def _chunks(self, call: ModelCall) -> AsyncGenerator[Chunk, None]:
        wait_s = call.timeout_s
        stream: Any = None
        try:
            async with asyncio.timeout(wait_s):
                litellm = await self._load()
            wait_s = min(self._config.first_token_timeout_s, call.timeout_s)
            async with asyncio.timeout(wait_s):
                stream = await litellm.acompletion(
                    **self._arguments(call, call.timeout_s), stream=True, stream_options={"include_usage": True}
                )
            pieces: AsyncIterator[Any] = aiter(stream)
            while True:
                async with asyncio.timeout(wait_s):
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                chunk = decode_chunk(_encode(piece.model_dump(mode="json", warnings=False)))
                ends = any(choice.finish_reason for choice in chunk.choices)
                if ends and getattr(stream, "received_finish_reason", "") is None:
                    # litellm makes up an end where the provider sent none.
                    raise UpstreamBroken(f"The answer of `{call.model}` was cut off.")
                yield chunk
                wait_s = self._config.idle_timeout_s
        except TimeoutError as error:
            raise UpstreamTimeout(f"`{call.model}` sent nothing for {wait_s:g} s.") from error
        except msgspec.DecodeError as error:
            raise UpstreamBroken(f"`{call.model}` sent a chunk that is not a chat completion chunk.") from error
        except self._foreign() as error:
            raise self._translated(error, call) from error
        finally:
            if stream is not None:
                await stream.aclose()

    def _arguments(self, call: ModelCall, timeout_s: float) -> dict[str, Any]:
        fields = {name: msgspec.json.decode(raw) for name, raw in call.fields.items() if name not in self._dropped}
        known = {name: value for name, value in fields.items() if name in _OPENAI_FIELDS}
        other = {name: value for name, value in fields.items() if name not in _OPENAI_FIELDS}
        config = self._config
        arguments: dict[str, Any] = {
            **{name: value for name, value in config.params.items() if name not in fields},
            **known,
            "model": f"{config.provider}/{config.model}",
            "messages": [msgspec.json.decode(encode_message(message)) for message in call.messages],
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

    async def _load(self) -> Any:
        if self._litellm is None:
            self._litellm = await asyncio.to_thread(_import_litellm)
        self._open.add(id(self))
        return self._litellm

    def _foreign(self) -> tuple[type[Exception], ...]:
        """What litellm lets out: its own errors, its HTTP libraries', and what its translators stumble over."""
        if self._litellm is None:
            return ()
        library = self._litellm.exceptions
        stumbles = (ValueError, TypeError, LookupError, AttributeError)
        return (library.openai.OpenAIError, library.httpx.HTTPError, aiohttp.ClientError, OSError, *stumbles)

    def _translated(self, error: Exception, call: ModelCall) -> GatewayError:
        return translate(error, model=call.model, secrets=self._secrets)
