"""OpenAI-protocol servers: OpenAI itself, vLLM, Ollama, llama.cpp, LM Studio and everything alike.

Knows HTTP, the two dialects and what a cut answer looks like. Does not know retries or other backends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

import msgspec
from yarl import URL

from gateway.backends.backend import ModelCall
from gateway.backends.http1 import CutOff, Disconnected, Http1, HttpFailed, HungUp, NotHttp, Response
from gateway.backends.reading import (
    ANSWER_BYTES,
    NO_STREAM,
    AnswerTooLarge,
    Reader,
    Said,
    UnknownEncoding,
    read_refusal,
    read_whole,
    reader_of,
)
from gateway.backends.secrets import Secrets
from gateway.backends.stream_reading import StreamReading
from gateway.backends.tap import Tap, Tapped
from gateway.backends.wire import error_from_frame, error_from_status, text_of
from gateway.chat.answer import Answer
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.codecs.chat_completions import joined_messages
from gateway.chat.gathering import gathered
from gateway.chat.mending import mended
from gateway.chat.normalise import answer_as_chunk, failure_of, normalise_answer, read_answer
from gateway.chat.normalise_stream import StreamNormaliser
from gateway.chat.parameters import renamed, with_defaults
from gateway.chat.reasoning import REASONING_CONTENT, encode_with_reasoning, misses_reasoning
from gateway.chat.sse import ErrorEvent, EventTooLarge
from gateway.chat.surrogates import SurrogateJoiner
from gateway.config.models import BackendConfig
from gateway.errors import (
    ConfigError,
    GatewayError,
    Problem,
    UpstreamBroken,
    UpstreamError,
    UpstreamHungUp,
    UpstreamTimeout,
)
from gateway.ids import new_call_id

# Providers that differ only by where they are, and by how exactly they speak.
NATIVE_PROVIDERS: Final[dict[str, tuple[str | None, str]]] = {
    "openai": ("https://api.openai.com/v1", "openai"),
    "ollama": ("http://127.0.0.1:11434/v1", "compatible"),
    "vllm": ("http://127.0.0.1:8000/v1", "compatible"),
    "lmstudio": ("http://127.0.0.1:1234/v1", "compatible"),
}

# Fields a provider ignores without a word under the one name, and heeds under the other.
_RENAMED: Final[dict[str, dict[str, str]]] = {"ollama": {"max_completion_tokens": "max_tokens"}}

# A stream says everything around each token anew.
_STREAM_BYTES = 2 * ANSWER_BYTES
# After the finish reason only usage and the end mark are to come; not every server sends them.
_AFTER_FINISH_S = 5.0
# After the end mark only the body's own end is to come: worth a moment, because the connection can then be used again.
_AFTER_DONE_S = 0.05
# Events without a word in them, which some servers send to be heard from, and an end mark that is not quite one.
_NOTHING = frozenset({b"", b"null", b"[DONE]"})
_USAGE_WORDS = (b"stream_options", b"include_usage")
# How a stream begins, whatever its content type says.
_EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")

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
        self._timeout_s = config.timeout_s
        self._exact = (config.dialect or default_dialect) == "openai"
        # How each request begins; None where its model has to be put in the place of a wildcard.
        self._opening = None if config.model and "*" in config.model else _opening(config.model)
        self._dropped = frozenset(config.drop_params)
        self._names = {**_RENAMED.get(config.provider, {}), **config.map_params}
        params = {name: msgspec.Raw(_encode(value)) for name, value in config.params.items()}
        self._params = renamed(params, (), self._names)
        self._changes_fields = bool(self._dropped or self._names or self._params)
        # The field for thoughts; None where they are not sent.
        self._reasoning = None if config.send_reasoning in ("auto", "off") else config.send_reasoning
        own_headers = {name.lower(): value.strip() for name, value in config.headers.items()}
        headers = {"content-type": "application/json", "accept-encoding": "identity", **own_headers}
        if config.api_key:
            headers.setdefault("authorization", f"Bearer {config.api_key.strip()}")
        url = URL(base)
        hidden = (config.api_key or "", *own_headers.values(), url.password or "", *url.query.values())
        self._secrets = Secrets((*hidden, base, str(url.origin())))
        self._asks_usage = "stream_options" not in self._dropped
        try:
            self._server = Http1(_chat_url(base), headers)
        except ValueError as error:
            raise ConfigError((Problem(f"backends.{name}.headers", 0, str(error)),)) from error

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._name

    async def complete(self, call: ModelCall) -> Answer:
        """Ask for the whole answer.

        Raises:
            UpstreamError: or one of its children, or `ContextTooLong`.
        """
        server, idle, reasoning = self._server, self._server.idle, self._reasoning
        limit_s = min(call.timeout_s, self._timeout_s)
        # To ask for the running loop is a system call on Python 3.11; a connection knows it.
        loop = idle[-1].loop if idle else asyncio.get_running_loop()
        until = loop.time() + limit_s
        head, asked = self._request(call, stream=False)
        try:
            connection = idle.pop() if idle else await server.connected(until)
            response = connection.ask(head, asked)
            try:
                await connection.wait(response, until)
                if response.status >= 300:
                    response = await self._again(response, call, until, reasoning, stream=False)
                body = response.at_once()
                if body is None:
                    body = await self._whole(response, call, until)
            finally:
                response.connection.done(response)
        except TimeoutError as error:
            raise UpstreamTimeout(f"`{call.model}` did not answer within {limit_s:g} s.") from error
        except (HttpFailed, OSError) as error:
            raise self._unreachable(call, error) from error
        try:
            return self._answer(body, call)
        except UpstreamBroken as error:
            raise UpstreamBroken(self._secrets.scrub(error.message)) from error
        except (msgspec.DecodeError, ValueError, EventTooLarge) as error:
            said = self._disguised(body)
            raise said or self._no_answer(f"The answer of `{call.model}` is not a chat completion", body) from error

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        """Ask for the answer piece by piece. See `Backend.stream`."""
        request = self._request(call, stream=True)
        idle = self._server.idle
        # At once where a connection is kept: what is made for the answer is made while the request is on its way.
        response = idle.pop().ask(*request) if idle else None
        try:
            reading = StreamReading(None if self._exact else StreamNormaliser(new_call_id), _wanted(call))
            now = (response.connection.loop if response is not None else asyncio.get_running_loop()).time
            idle_s = self._config.idle_timeout_s
            tap = Tap(reading.runs, now, idle_s=idle_s, most_s=call.timeout_s, most_bytes=_STREAM_BYTES)
            until = first_by = tap.heard + min(self._config.first_token_timeout_s, call.timeout_s)
            tapped = False
            try:
                response = await self._begin_stream(call, request, response, first_by)
                content = await self._stream_of(response, call, first_by)
                while True:
                    tapped = tap.is_open and content is response and reading.parser.between and not reading.finished
                    data = await (response.readany(until, tap.ready()) if tapped else content.readany(until))
                    tap.left_bytes -= len(data)
                    if tap.left_bytes < 0:
                        raise UpstreamBroken(f"`{call.model}` sent a stream of more than {_STREAM_BYTES} bytes.")
                    batch = Tapped()
                    failure = self._read(data, reading, batch, call)
                    if batch:
                        batch.tap = None if reading.finished else tap
                        yield batch
                    if failure is not None:
                        raise failure
                    if reading.over:
                        break
                    more_by = tap.hear()
                    until = more_by if reading.said else first_by  # comments are no first token
                    if reading.finished:
                        until = min(until, tap.heard + _AFTER_FINISH_S)
                await _read_end(content)
            except EventTooLarge as error:
                raise UpstreamBroken(f"`{call.model}` sent {error}.") from error
            except (HttpFailed, OSError) as error:
                if reading.finished:
                    return  # all that is missing is the end mark
                if isinstance(error, TimeoutError):
                    until = tap.until if tapped else until
                    waited_s = max(0.0, until - tap.heard)
                    raise UpstreamTimeout(f"`{call.model}` sent nothing for {waited_s:g} s.") from error
                raise self._unreachable(call, error) from error
        finally:
            if response is not None:
                response.give_back()

    async def close(self) -> None:
        """Close every connection."""
        await self._server.close()

    def _read(self, data: bytes, reading: StreamReading, batch: list[Chunk], call: ModelCall) -> GatewayError | None:
        """Put what was read into the batch, up to a failure: what came before it still counts. No data is the end."""
        payloads = reading.parser.feed(data) if data else reading.parser.close()
        done = b"[DONE]" in payloads
        if done:
            payloads = payloads[: payloads.index(b"[DONE]")]
        failure: GatewayError | None = None
        if payloads:
            reading.said = True
            failure = self._take_all(payloads, reading, batch, call)
        reading.over = done or not data
        if failure is None and reading.over and not reading.finished:
            if done and reading.begun:
                # The end mark says that it is whole; whoever holds something back waits for a reason.
                return self._take_all(reading.missing_end(), reading, batch, call)
            words = "was cut off" if reading.begun else "is empty"
            failure = UpstreamBroken(f"The answer of `{call.model}` {words}.")
        return failure

    def _take_all(
        self, payloads: Sequence[bytes], reading: StreamReading, batch: list[Chunk], call: ModelCall
    ) -> GatewayError | None:
        """Put events' chunks into the batch, up to a failure."""
        if reading.normaliser is None and (chunks := reading.exact(payloads)):
            batch += chunks
            return None
        behind = 0
        for position, payload in enumerate(payloads):
            if position < behind:
                continue
            if reading.normaliser is not None and (run := reading.runs.scan(payloads, position)) is not None:
                chunk, behind = run
                batch.append(chunk)
                continue
            failure: GatewayError | None = None
            try:
                for part in _parts(payload):
                    failure = self._take(part, reading, batch, call)
                    if failure is not None:
                        break
            except UpstreamBroken as error:
                failure = UpstreamBroken(self._secrets.scrub(error.message))
                failure.__cause__ = error
            if failure is not None and not reading.finished:  # behind the end nothing is missing
                return failure
        return None

    def _take(self, payload: bytes, reading: StreamReading, batch: list[Chunk], call: ModelCall) -> GatewayError | None:
        """Put one event's chunk into the batch; the error that it is instead.

        Raises:
            UpstreamBroken: it is neither.
        """
        if isinstance(payload, ErrorEvent):
            return error_from_frame(payload, secrets=self._secrets)
        if (blank := payload.strip()) in _NOTHING:
            reading.finished = reading.finished or (blank == b"[DONE]" and reading.begun)
            return None
        chunk = self._chunk(payload, reading.joiner, call)
        if chunk.fields.failed:
            return error_from_frame(chunk.data, secrets=self._secrets)
        if reading.normaliser is not None:
            chunk = reading.normaliser.feed(chunk)
        elif (failed := _failure_in(chunk)) is not None:
            raise failed
        batch.append(chunk)
        reading.note(chunk)
        return None

    async def _whole(self, response: Response, call: ModelCall, until: float) -> bytes:
        """The body of an answer, which is not larger than what a gateway can hold of many at once."""
        try:
            return await read_whole(self._reader(response, call), until)
        except AnswerTooLarge as error:
            raise UpstreamBroken(f"`{call.model}` sent {error}.") from error

    async def _begin_stream(
        self, call: ModelCall, request: tuple[bytes, bytes], sent: Response | None, until: float
    ) -> Response:
        """Ask for a stream, where that is not `sent` yet; the response, once it is clear that it is no refusal."""
        asked, reasoning = self._asks_usage, self._reasoning
        if sent is None:
            sent = (await self._server.connected(until)).ask(*request)
        response = await self._server.begun(sent, until)
        if response.status >= 300:
            response = await self._again(response, call, until, reasoning, stream=True, asked=asked)
        return response

    async def _again(
        self,
        response: Response,
        call: ModelCall,
        until: float,
        reasoning: str | None,
        *,
        stream: bool,
        asked: bool = False,
    ) -> Response:
        """Ask anew, where that mends what the request was refused for; the response that is no refusal.

        Args:
            response: the refusal, which is given back.
            call: what is asked.
            until: when to give up, by the loop's time.
            reasoning: the field for thoughts when it was sent.
            stream: whether a stream is wanted.
            asked: whether it was asked for usage.

        Raises:
            GatewayError: it is refused.
        """
        while response.status >= 300:
            try:
                body = await read_refusal(response, until)
                own = "stream_options" in call.fields  # then it may be the client's options that it refuses
                auto = self._config.send_reasoning == "auto"
                if response.status in (400, 422) and asked and not own and any(word in body for word in _USAGE_WORDS):
                    # It does not know how to be asked for usage; it is not asked again.
                    self._asks_usage = False
                elif response.status in (400, 422) and auto and reasoning is None and misses_reasoning(body):
                    # It wants the thoughts behind each call back; it gets them from now on.
                    self._reasoning = REASONING_CONTENT
                else:
                    raise self._refused(response, body, call)
            finally:
                response.give_back()
            asked, reasoning = stream and self._asks_usage, self._reasoning
            response = await self._server.post(*self._request(call, stream=stream), until)
        return response

    async def _stream_of(self, response: Response, call: ModelCall, until: float) -> Reader:
        """What is read of a stream; of a server that does not stream, its whole answer written as one."""
        if response.content_type not in NO_STREAM:
            return self._reader(response, call)
        body = await self._whole(response, call, until)
        if body.lstrip().startswith(_EVENTS):
            return Said(body)
        chunk = self._as_chunk(body, call)
        return Said(b"data: " + chunk + b"\n\ndata: [DONE]\n\n")

    def _as_chunk(self, body: bytes, call: ModelCall) -> bytes:
        """A whole answer of a server that does not stream, as the one chunk of a stream.

        Raises:
            UpstreamError: it is an error in disguise, or something else.
        """
        try:
            return answer_as_chunk(body if self._exact else self._answer(body, call).body)
        except UpstreamBroken as error:
            raise UpstreamBroken(self._secrets.scrub(error.message)) from error
        except (msgspec.DecodeError, ValueError) as error:
            said = self._disguised(body)
            words = f"`{call.model}` was asked for a stream and answered with something else"
            raise said or self._no_answer(words, body) from error

    def _answer(self, body: bytes, call: ModelCall) -> Answer:
        try:
            if self._exact:
                return read_answer(body, new_call_id)
            return normalise_answer(body, new_call_id)
        except msgspec.MsgspecError:
            if body.lstrip().startswith(_EVENTS):
                return self._gathered(body, call)
            if not self._exact:
                return normalise_answer(mended(body), new_call_id)
            if b"\\ud" not in body.lower():
                raise
            return read_answer(SurrogateJoiner().mend(body), new_call_id)

    def _gathered(self, body: bytes, call: ModelCall) -> Answer:
        """The answer of a server that streams though nobody asked it to."""
        reading, batch = StreamReading(StreamNormaliser(new_call_id), _wanted(call)), list[Chunk]()
        payloads = [*reading.parser.feed(body), *reading.parser.close()]
        done = b"[DONE]" in payloads
        payloads = payloads[: payloads.index(b"[DONE]")] if done else payloads
        failure = self._take_all(payloads, reading, batch, call)
        if failure is not None:
            raise failure
        if not reading.begun or not (reading.finished or done):
            raise UpstreamBroken(f"The answer of `{call.model}` was cut off.")
        return gathered(batch, new_call_id)

    def _disguised(self, body: bytes) -> GatewayError | None:
        """The error that a body with a status of success holds, if it holds one."""
        try:
            failed = decode_chunk(body).fields.failed
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return error_from_frame(body, secrets=self._secrets) if failed else None

    def _no_answer(self, what: str, body: bytes) -> UpstreamBroken:
        """The error for something that cannot be read, with its own words: they may say why."""
        text = text_of(body, self._secrets)
        return UpstreamBroken(f"{what}: {text}" if text else f"{what}.")

    def _reader(self, response: Response, call: ModelCall) -> Reader:
        try:
            return reader_of(response)
        except UnknownEncoding as error:
            raise UpstreamBroken(f"`{call.model}` answered with {error}, which nobody asked for.") from error

    def _chunk(self, payload: bytes, joiner: SurrogateJoiner, call: ModelCall) -> Chunk:
        if b"\n" in payload:
            payload = payload.replace(b"\n", b" ")  # between JSON's tokens only: a string cannot hold a raw line break
        try:
            try:
                return decode_chunk(payload)
            except msgspec.DecodeError:
                if b"\\ud" in payload.lower():
                    return decode_chunk(joiner.mend(payload))
                if self._exact:
                    raise
                return decode_chunk(mended(payload))
        except (msgspec.DecodeError, ValueError) as error:
            words = f"`{call.model}` sent a chunk that is not a chat completion chunk"
            raise self._no_answer(words, payload) from error

    def _request(self, call: ModelCall, *, stream: bool) -> tuple[bytes, bytes]:
        """What is sent: the headers that are this call's own, and the body."""
        opening = self._opening or _opening((self._config.model or "").replace("*", call.wanted))
        if (field := self._reasoning) is None:
            messages = joined_messages(call.messages)
        else:
            messages = b",".join([encode_with_reasoning(message, field) for message in call.messages])
        fields = call.fields
        if self._changes_fields:
            fields = with_defaults(renamed(fields, self._dropped, self._names), self._params)
        if stream:
            body = b"".join((opening, messages, *self._stream_fields(fields)))
        elif fields:
            body = b"".join((opening, messages, b"],", _encode(fields)[1:]))
        else:
            body = b"".join((opening, messages, b"]}"))
        trace_id = call.trace_id
        return f"traceparent: 00-{trace_id}-{trace_id[:16]}-01\r\n".encode(), body

    def _stream_fields(self, fields: Mapping[str, msgspec.Raw]) -> tuple[bytes, ...]:
        """What stands behind the messages where a stream is asked for."""
        asks = b',"stream":true}'
        if self._asks_usage and "stream_options" not in fields:
            asks = b',"stream":true,"stream_options":{"include_usage":true}}'
        elif self._asks_usage:
            options = bytes(fields["stream_options"]).strip()[1:-1].strip()
            fields = {name: raw for name, raw in fields.items() if name != "stream_options"}
            more = b"," if options else b""
            asks = b',"stream":true,"stream_options":{"include_usage":true%b%b}}' % (more, options)
        return (b"],", _encode(fields)[1:-1], asks) if fields else (b"]", asks)

    def _refused(self, response: Response, body: bytes, call: ModelCall) -> GatewayError:
        headers = {str(name, "latin-1"): value.decode("utf-8", "replace") for name, value in response.headers.items()}
        return error_from_status(response.status, headers, body, model=call.model, secrets=self._secrets)

    def _unreachable(self, call: ModelCall, error: Exception) -> UpstreamError:
        if isinstance(error, CutOff):
            return UpstreamBroken(f"The answer of `{call.model}` was cut off.")
        if isinstance(error, NotHttp):
            return UpstreamBroken(f"The upstream of `{call.model}` answered with something that is not HTTP.")
        if isinstance(error, Disconnected):
            failed = UpstreamHungUp if isinstance(error, HungUp) else UpstreamError
            return failed(f"The upstream of `{call.model}` closed the connection without an answer.")
        return UpstreamError(f"The upstream of `{call.model}` cannot be reached.")


async def _read_end(content: Reader) -> None:
    if not content.at_eof():
        with contextlib.suppress(TimeoutError):
            await content.readany(asyncio.get_running_loop().time() + _AFTER_DONE_S)


def _wanted(call: ModelCall) -> int:
    """How many choices the answer is to have."""
    raw = call.fields.get("n")
    try:
        return 1 if raw is None else max(1, int(bytes(raw)))
    except ValueError:
        return 1


def _parts(payload: bytes) -> Sequence[bytes]:
    """The events in one payload: some servers end an event by one line break, where two belong."""
    if b"\n" not in payload or isinstance(payload, ErrorEvent):
        return (payload,)
    lines = [line for line in payload.split(b"\n") if line.strip()]
    return lines if all(line.strip() in _NOTHING or _is_object(line) for line in lines) else (payload,)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _failure_in(chunk: Chunk) -> UpstreamBroken | None:
    """The failure that a choice of an exact chunk tells of."""
    for choice in msgspec.json.decode(chunk.data).get("choices") or ():
        failed = failure_of(choice.get("finish_reason"), choice) if isinstance(choice, dict) else None
        if failed is not None:
            return failed
    return None


def _opening(model: str | None) -> bytes:
    """How a request begins, up to its messages."""
    return b'{"model":%b,"messages":[' % _encode(model)


def _chat_url(base: str) -> URL:
    url = URL(base)
    return url.with_path(url.path.rstrip("/") + "/chat/completions").with_query(url.query)
