"""OpenAI-protocol servers over aiohttp: OpenAI itself, vLLM, Ollama, llama.cpp, LM Studio and everything alike.

Knows HTTP, the two dialects and what a cut answer looks like. Does not know retries or other backends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import aiohttp
import msgspec
from yarl import URL

from gateway.backends.backend import ModelCall
from gateway.backends.wire import Secrets, error_from_frame, error_from_status
from gateway.chat.answer import Answer
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.codecs.chat_completions import encode_message
from gateway.chat.normalise import NotAnAnswer, StreamNormaliser, normalise_answer, read_answer
from gateway.chat.sse import EventTooLarge, SseParser
from gateway.config.models import BackendConfig
from gateway.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from gateway.ids import new_call_id

# Providers that differ only by where they are, and by how exactly they speak.
NATIVE_PROVIDERS: dict[str, tuple[str | None, str]] = {
    "openai": ("https://api.openai.com/v1", "openai"),
    "ollama": ("http://127.0.0.1:11434/v1", "compatible"),
    "vllm": ("http://127.0.0.1:8000/v1", "compatible"),
    "lmstudio": ("http://127.0.0.1:1234/v1", "compatible"),
}

_CONNECT_TIMEOUT_S = 10.0
_ERROR_BODY_BYTES = 64 * 1024
_AFTER_FINISH_S = 5.0

_encode = msgspec.json.Encoder().encode


class NativeBackend:
    """A backend that speaks Chat Completions itself.

    Args:
        name: the backend's name in the configuration.
        config: where it is and how it speaks.
    """

    def __init__(self, name: str, config: BackendConfig) -> None:
        self._name = name
        self._config = config
        default_url, default_dialect = NATIVE_PROVIDERS.get(config.provider, (None, "compatible"))
        base = config.base_url or default_url
        if base is None:
            raise ValueError(f"backend {name!r} needs `base_url`")
        if config.base_url is not None and config.provider == "openai":
            default_dialect = "compatible"  # OpenAI's protocol at another address: only its owner can vouch for it
        self._exact = (config.dialect or default_dialect) == "openai"
        self._url = _chat_url(base)
        self._model = _encode(config.model)
        self._params = {name: _encode(value) for name, value in config.params.items()}
        self._dropped = frozenset(config.drop_params)
        self._headers = {"content-type": "application/json", "accept-encoding": "identity", **config.headers}
        if config.api_key:
            self._headers.setdefault("authorization", f"Bearer {config.api_key}")
        self._secrets = Secrets([config.api_key or "", *config.headers.values(), base, *URL(base).query.values()])
        self._session: aiohttp.ClientSession | None = None

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
            async with (
                asyncio.timeout(limit_s),
                self._open().post(self._url, data=self._body(call, stream=False), headers=self._for(call)) as response,
            ):
                if response.status >= 400:
                    raise await self._refusal(response, call)
                body = await response.read()
        except TimeoutError as error:
            raise UpstreamTimeout(f"`{call.model}` did not answer within {limit_s:g} s.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(call, error) from error
        try:
            return (read_answer if self._exact else normalise_answer)(body, new_call_id)
        except (msgspec.DecodeError, UnicodeDecodeError, NotAnAnswer) as error:
            raise UpstreamBroken(f"The answer of `{call.model}` is not a chat completion.") from error

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        """Ask for the answer piece by piece. See `Backend.stream`."""
        normaliser = None if self._exact else StreamNormaliser(new_call_id)
        finished = False
        async with aclosing(self._events(call)) as events:
            async for payloads, last in events:
                batch: list[Chunk] = []
                for payload in payloads:
                    chunk = self._chunk(payload, call)
                    if chunk.fields.error is not None:
                        raise error_from_frame(chunk.fields.error, secrets=self._secrets)
                    if normaliser is not None:
                        chunk = normaliser.feed(chunk)
                    batch.append(chunk)
                    finished = finished or any(choice.finish_reason for choice in chunk.choices)
                if batch:
                    yield batch
                if last == "done":
                    return
                if last == "eof" and not finished:
                    raise UpstreamBroken(f"The answer of `{call.model}` was cut off.")

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _events(self, call: ModelCall) -> AsyncGenerator[tuple[list[bytes], str], None]:
        """Payloads that arrived together, and `more`, `done` (the end mark came) or `eof`."""
        parser = SseParser()
        wait_s = min(self._config.first_token_timeout_s, call.timeout_s)
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(wait_s):
                response = await self._open().post(
                    self._url, data=self._body(call, stream=True), headers=self._for(call)
                )
                if response.status >= 400:
                    raise await self._refusal(response, call)
            content = response.content
            while True:
                async with asyncio.timeout(wait_s):
                    data = await content.readany()
                payloads = parser.feed(data) if data else parser.close()
                done = b"[DONE]" in payloads
                if done:
                    payloads = payloads[: payloads.index(b"[DONE]")]
                yield payloads, "done" if done else "more" if data else "eof"
                if done:
                    # What follows the end mark is the end of the body; read it, so that the connection can be used again.
                    async with asyncio.timeout(_AFTER_FINISH_S):
                        await content.readany()
                if done or not data:
                    return
                wait_s = self._config.idle_timeout_s
        except TimeoutError as error:
            raise UpstreamTimeout(f"`{call.model}` sent nothing for {wait_s:g} s.") from error
        except EventTooLarge as error:
            raise UpstreamBroken(f"`{call.model}` sent {error}.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(call, error, begun=response is not None) from error
        finally:
            if response is not None:
                if response.content.at_eof():
                    response.release()
                else:
                    response.close()

    def _chunk(self, payload: bytes, call: ModelCall) -> Chunk:
        if b"\n" in payload:
            payload = payload.replace(b"\n", b" ")  # between JSON's tokens only: a string cannot hold a raw line break
        try:
            return decode_chunk(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamBroken(f"`{call.model}` sent a chunk that is not a chat completion chunk.") from error

    def _body(self, call: ModelCall, *, stream: bool) -> bytes:
        parts = [b'{"model":', self._model, b',"messages":[', b",".join(map(encode_message, call.messages)), b"]"]
        for name, raw in call.fields.items():
            if name not in self._dropped:
                parts += (b",", _encode(name), b":", bytes(raw))
        for name, value in self._params.items():
            if name not in call.fields:
                parts += (b",", _encode(name), b":", value)
        parts.append(b',"stream":true,"stream_options":{"include_usage":true}}' if stream else b"}")
        return b"".join(parts)

    def _for(self, call: ModelCall) -> dict[str, str]:
        return {**self._headers, "traceparent": f"00-{call.trace_id}-{call.trace_id[:16]}-01"}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30, enable_cleanup_closed=False),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
                skip_auto_headers=("accept", "user-agent"),
                read_bufsize=256 * 1024,
            )
        return self._session

    async def _refusal(self, response: aiohttp.ClientResponse, call: ModelCall) -> Exception:
        body = await response.content.read(_ERROR_BODY_BYTES)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return error_from_status(response.status, headers, body, model=call.model, secrets=self._secrets)

    def _unreachable(self, call: ModelCall, error: Exception, *, begun: bool = False) -> UpstreamError:
        if begun or isinstance(error, aiohttp.ClientPayloadError):
            return UpstreamBroken(f"The answer of `{call.model}` was cut off.")
        return UpstreamError(f"The upstream of `{call.model}` cannot be reached.")


def _chat_url(base: str) -> URL:
    url = URL(base)
    return url.with_path(url.path.rstrip("/") + "/chat/completions").with_query(url.query)
