"""The backend that answers without a model: what a newcomer, a test and a tutorial meet first.

Knows Chat Completions' whole protocol and the delay between two words. What it answers is decided in `planning.py`; it
holds no state, opens no connection, and the same conversation always gets the same words.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from gateway.backends.backend import ModelCall
from gateway.backends.demo.pieces import count_tokens, cut
from gateway.backends.demo.planning import make_plan
from gateway.backends.demo.request import DemoRequest, read_request
from gateway.backends.demo.wire import Envelope, Reply, call_arguments, encode_answer, encode_chunks
from gateway.chat.answer import Answer
from gateway.chat.blocks import Text, ToolCall, ToolResult
from gateway.chat.chunk import Chunk
from gateway.chat.usage import Usage
from gateway.clock import Clock, SystemClock
from gateway.config.models import BackendConfig
from gateway.errors import ConfigError, Problem, UpstreamTimeout
from gateway.ids import new_call_id, new_trace_id

DEFAULT_MODEL = "demo-1"
# What a message costs beside its text, as OpenAI's own counting has it.
_TOKENS_A_MESSAGE = 4


class DemoBackend:
    """Rules instead of a model. `params.delay_ms` (milliseconds, from 0) is waited before each word.

    Raises:
        ConfigError: the model's name does not start with `demo-`, or a parameter is unknown or wrong.
    """

    def __init__(self, name: str, config: BackendConfig, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._model = config.model or DEFAULT_MODEL
        delay_ms = config.params.get("delay_ms", 0)
        problems = []
        if not self._model.startswith("demo-"):
            problems.append(f"the model of a demo backend has to start with `demo-`, not {self._model!r}")
        if isinstance(delay_ms, bool) or not isinstance(delay_ms, (int, float)) or not 0 <= delay_ms <= 60_000:
            problems.append(f"`params.delay_ms` is {delay_ms!r}; expected milliseconds from 0 to 60000")
        problems += [f"a demo backend has no parameter {key!r}" for key in config.params if key != "delay_ms"]
        if problems:
            raise ConfigError(tuple(Problem(f"backends.{name}", 0, problem) for problem in problems))
        self._delay_s = float(delay_ms) / 1000

    @property
    def name(self) -> str:
        """The backend's name in the configuration."""
        return self._name

    async def complete(self, call: ModelCall) -> Answer:
        """The whole answer, after one delay.

        Raises:
            InvalidRequest: the request asks for something this backend cannot do.
            UpstreamTimeout: the delay is longer than the call may take.
        """
        if self._delay_s > call.timeout_s:
            await self._clock.sleep(call.timeout_s)
            raise self._too_slow(call)
        if self._delay_s:
            await self._clock.sleep(self._delay_s)
        replies, usage = self._answer(call)
        return encode_answer(self._envelope(), replies, usage)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        """The answer word by word, a delay before each.

        Raises:
            InvalidRequest: the request asks for something this backend cannot do.
            UpstreamTimeout: the whole takes longer than the call may.
        """
        deadline = self._clock.monotonic() + call.timeout_s
        replies, usage = self._answer(call)
        for chunk in encode_chunks(self._envelope(), replies, usage):
            if self._delay_s:
                left = deadline - self._clock.monotonic()
                await self._clock.sleep(max(0.0, min(self._delay_s, left)))
                if self._delay_s > left:
                    raise self._too_slow(call)
            yield (chunk,)

    async def close(self) -> None:
        """Nothing to close."""

    def _too_slow(self, call: ModelCall) -> UpstreamTimeout:
        return UpstreamTimeout(
            f"The demo backend's delay takes longer than the {call.timeout_s:g} s this call may take."
        )

    def _answer(self, call: ModelCall) -> tuple[tuple[Reply, ...], Usage]:
        request = read_request(call)
        replies = tuple(self._reply(request) for _ in range(request.choices))
        produced = sum(
            reply.cut.tokens + sum(count_tokens(item.name) + count_tokens(item.arguments) for item in reply.calls)
            for reply in replies
        )
        return replies, Usage(prompt_tokens=_prompt_tokens(call), completion_tokens=produced)

    def _reply(self, request: DemoRequest) -> Reply:
        plan = make_plan(request, self._model)
        calls = tuple(ToolCall(new_call_id(), wanted.tool, call_arguments(wanted.arguments)) for wanted in plan.calls)
        return Reply(calls, cut(plan.text, request.stop, request.max_tokens))

    def _envelope(self) -> Envelope:
        return Envelope(f"chatcmpl-{new_trace_id()}", int(self._clock.now()), self._model)


def _prompt_tokens(call: ModelCall) -> int:
    tokens = 0
    for message in call.messages:
        tokens += _TOKENS_A_MESSAGE
        for block in message.blocks:
            if isinstance(block, (Text, ToolResult)):
                tokens += count_tokens(block.text)
            elif isinstance(block, ToolCall):
                tokens += count_tokens(block.name) + count_tokens(block.arguments)
    return tokens + len(bytes(call.fields.get("tools", b""))) // 4
