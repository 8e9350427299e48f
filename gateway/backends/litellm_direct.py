"""litellm's translation over connections of our own: what it writes is sent, and what comes back is read, without its logs,
prices, threads and HTTP client, which together are two thirds of what a call costs and nine tenths of a streamed piece.

Knows litellm's `completion` below its decorators, the place where it takes an HTTP client, and its maps of errors. Whatever is
not as the tests know it (another version, a provider that no test compares, a proxy, a setting of litellm's own) is left to
the plain call before a byte is sent. Imports nothing of litellm.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, ClassVar, Final

import msgspec

from gateway.backends.http1 import CutOff
from gateway.backends.litellm_errors import InStream
from gateway.backends.litellm_exchange import Exchange, NotSent, Servers
from gateway.backends.litellm_pieces import Joined
from gateway.chat.sse import EventTooLarge
from gateway.config.models import BackendConfig

# Where the tests compare both ways, byte for byte on the wire and chunk for chunk.
VERSIONS: Final = frozenset({"1.110.2"})
PROVIDERS: Final = frozenset({"anthropic", "deepseek", "gemini", "groq", "hosted_vllm", "mistral", "xai"})
# litellm's own arguments that its translation reads; any other of them changes what stands around it.
_TRANSLATED: Final = frozenset({"additional_drop_params", "allowed_openai_params", "api_version", "drop_params"})
# Behind the reason only usage and the end mark are to come.
_AFTER_END_S: Final = 5.0

_encode = msgspec.json.Encoder().encode


class Direct:
    """One backend's connections, and how litellm is asked to use them.

    Args:
        litellm: the imported library.
        provider: litellm's name of it.

    Raises:
        AttributeError: litellm has no such place.
    """

    def __init__(self, litellm: Any, provider: str) -> None:
        handler = litellm.llms.custom_httpx.http_handler
        self._litellm = litellm
        self._provider = provider
        self._complete = inspect.unwrap(litellm.main.completion)
        self._map_error = litellm.litellm_core_utils.exception_mapping_utils.exception_type
        self._client = type("Exchange", (Exchange, handler.AsyncHTTPHandler), {})
        self.servers = Servers(litellm)

    @classmethod
    def of(cls, litellm: Any, config: BackendConfig) -> Direct | None:
        """The direct way to this backend; None where the plain call is the only one."""
        if config.provider not in PROVIDERS or version("litellm") not in VERSIONS:
            return None
        try:
            own = set(litellm.types.utils.all_litellm_params) - _TRANSLATED
            return None if own & config.params.keys() else cls(litellm, config.provider)
        except AttributeError:
            return None

    def exchange(self, until: float) -> Exchange:
        """What litellm sends one request with. Close it."""
        exchange: Exchange = self._client(self.servers, until)
        return exchange

    async def ask(self, arguments: Mapping[str, Any], exchange: Exchange) -> Any:
        """Litellm's answer, or its wrapped stream.

        Raises:
            NotSent: ask the plain way.
            TimeoutError, OSError, HttpFailed, EventTooLarge: of the connection.
            Exception: as litellm's `acompletion`.
        """
        silent = Silent(arguments)
        try:
            made = self._complete(**arguments, acompletion=True, client=exchange, litellm_logging_obj=silent)
            answer = await made if isinstance(made, Awaitable) else made
            if arguments.get("stream") and answer.completion_stream is None:
                await answer.fetch_stream()  # some ask only once they are read
            return answer
        except Exception as error:
            if exchange.failed is not None:
                raise exchange.failed from error
            if not exchange.asked:
                raise NotSent from error
            raise self.mapped(error, arguments) from error

    async def open(self, arguments: Mapping[str, Any], exchange: Exchange) -> DirectPieces:
        """Begin a streamed answer. Close it, or the exchange where there is none.

        Raises:
            as `ask`.
        """
        stream = await self.ask(arguments, exchange)
        return DirectPieces(self, exchange, stream, arguments)

    def mapped(self, error: Exception, arguments: Mapping[str, Any]) -> Exception:
        """What litellm would make of an error of its translators."""
        try:
            found: Exception = self._map_error(
                model=arguments["model"], custom_llm_provider=self._provider, original_exception=error
            )
        except Exception as mapped:  # noqa: BLE001 - it raises what it has made
            found = mapped
        if found is not error and found.__cause__ is None:
            found.__cause__ = error
        return found

    def usage_of(self, pieces: list[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The usage that litellm gives a stream whose provider gave none; empty where it cannot. Takes long."""
        try:
            built = self._litellm.stream_chunk_builder(pieces, messages=arguments["messages"])
        except self._litellm.exceptions.APIError:
            return {}  # all of the answer was heard: it does not fail for want of a number
        usage: dict[str, Any] = {} if built is None else built.model_dump(mode="json", warnings=False)["usage"]
        return usage

    def tokens_of(self, text: str) -> int:
        """How many tokens litellm takes an answer's text for. Takes long."""
        tokens: int = self._litellm.token_counter(text=text, count_response_tokens=True)
        return tokens

    async def close(self) -> None:
        """Close every connection."""
        await self.servers.close()


class DirectPieces:
    """A streamed answer as the provider's translator makes it."""

    def __init__(self, direct: Direct, exchange: Exchange, stream: Any, arguments: Mapping[str, Any]) -> None:
        self._direct = direct
        self._exchange = exchange
        self._arguments = arguments
        # What the provider's own translator reads, without the wrapper that makes ten objects of each of its pieces.
        self._pieces = aiter(stream.completion_stream)
        self._joined = Joined(stream.model)
        # Until usage is said it may never be, and has to be estimated from everything.
        self._uncounted: list[Any] = []
        self._last: Iterator[bytes] | None = None

    async def next(self, wait_s: float) -> bytes | None:
        """The JSON of the next chunk with something in it; None behind the last.

        Raises:
            TimeoutError: none came for so long.
            CutOff: the answer ends without a reason.
            InStream: the provider says that it failed, or something else than its protocol allows.
        """
        if self._last is not None:
            return next(self._last, None)
        joined = self._joined
        now = asyncio.get_running_loop().time()
        self._exchange.until = now + (wait_s if joined.reason is None else min(wait_s, _AFTER_END_S))
        while (piece := await self._next()) is not None:
            ended = joined.reason is not None
            chunk = joined.take(piece if isinstance(piece, dict) else piece.model_dump(mode="json", warnings=False))
            if joined.counted:
                self._uncounted.clear()
            else:
                self._uncounted.append(piece)
            if joined.reason is not None and not ended:
                self._exchange.until = asyncio.get_running_loop().time() + min(wait_s, _AFTER_END_S)
            if chunk is not None:
                return _encode(chunk)
        if joined.reason is None:
            raise CutOff("the stream ends without a reason")
        await self._estimate()
        self._last = map(_encode, joined.end())
        return next(self._last)

    async def close(self) -> None:
        """Give the connection back."""
        self._exchange.close()

    async def _next(self) -> Any:
        """What the translator makes of the next line; None behind the last."""
        try:
            return await anext(self._pieces, None)
        except Exception as error:
            failed = self._exchange.failed
            if failed is None:
                raise InStream(self._direct.mapped(error, self._arguments)) from error
            if self._joined.reason is None or isinstance(failed, EventTooLarge):
                raise failed from error
            return None  # all that is missing is the end mark

    async def _estimate(self) -> None:
        """Count what the provider has not counted, as litellm does."""
        joined, direct = self._joined, self._direct
        if not joined.counted:
            joined.usage = await asyncio.to_thread(direct.usage_of, self._uncounted, self._arguments)
        elif thoughts := joined.uncounted_thoughts:
            joined.count_thoughts(await asyncio.to_thread(direct.tokens_of, thoughts))


def _nothing(*_: Any, **__: Any) -> None:
    """Whatever it is told."""


class Silent:
    """Stands where litellm would keep its records of a call: nothing is kept, whatever it is told."""

    call_type = "acompletion"
    completion_start_time = None
    dynamic_success_callbacks = None
    litellm_call_id = ""
    stream_options: ClassVar[Mapping[str, Any]] = {"include_usage": True}
    pre_call = post_call = update_environment_variables = staticmethod(_nothing)
    record_applied_timeout = set_per_call_pricing = get_router_model_id = staticmethod(_nothing)

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.messages = arguments["messages"]
        self.model_call_details: dict[str, Any] = {}
        self.litellm_params: dict[str, Any] = {}
        self.optional_params: dict[str, Any] = {}
