"""The backend that answers without a model: what a newcomer, a test and a tutorial meet first.

Knows Chat Completions' whole protocol and the delay between two words. What it answers is decided in `planning.py`; it
holds no state, opens no connection, and the same conversation always gets the same words.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import msgspec

from gateway.backends.backend import ModelCall
from gateway.backends.demo.misbehaving import RETRY_AFTER_S, broken_json, endless
from gateway.backends.demo.pieces import count_tokens, cut
from gateway.backends.demo.planning import Plan, make_plan
from gateway.backends.demo.request import DemoRequest, read_request
from gateway.backends.demo.wire import Envelope, Reply, call_arguments, encode_answer, encode_chunks
from gateway.chat.answer import Answer
from gateway.chat.blocks import Text, ToolCall, ToolResult
from gateway.chat.chunk import Chunk
from gateway.chat.usage import Usage
from gateway.clock import Clock, SystemClock
from gateway.config.models import BackendConfig
from gateway.errors import ConfigError, GatewayError, Problem, UpstreamBroken, UpstreamTimeout, UpstreamUnavailable
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
        self._timeout_s, self._idle_timeout_s = config.timeout_s, config.idle_timeout_s

    @property
    def name(self) -> str:
        """The backend's name in the configuration."""
        return self._name

    async def complete(self, call: ModelCall) -> Answer:
        """The whole answer, after one delay.

        Raises:
            InvalidRequest: the request asks for something this backend cannot do.
            UpstreamError: the delay is longer than the call may take, or the request asks for a failure.
        """
        limit_s = min(call.timeout_s, self._timeout_s)
        if self._delay_s > limit_s:
            await self._clock.sleep(limit_s)
            raise self._too_slow(limit_s)
        if self._delay_s:
            await self._clock.sleep(self._delay_s)
        request = read_request(call)
        replies, usage = self._answer(request, call)
        if request.misbehaviour == "stall":
            await self._clock.sleep(max(0.0, limit_s - self._delay_s))
            raise UpstreamTimeout(f"`{call.model}` did not answer within {limit_s:g} s.")
        if request.misbehaviour == "cut":
            raise self._cut_off(call)
        return encode_answer(self._envelope(), replies, usage)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        """The answer word by word, a delay before each.

        Raises:
            InvalidRequest: the request asks for something this backend cannot do.
            UpstreamError: the whole takes longer than the call may, or the request asks for a failure.
        """
        deadline = self._clock.monotonic() + call.timeout_s
        request = read_request(call)
        replies, usage = self._answer(request, call)
        chunks = list(encode_chunks(self._envelope(), replies, usage))
        stops = request.misbehaviour in ("stall", "cut")
        for chunk in chunks[: len(chunks) // 2] if stops else chunks:
            if self._delay_s:
                left = deadline - self._clock.monotonic()
                await self._clock.sleep(max(0.0, min(self._delay_s, left)))
                if self._delay_s > left:
                    raise self._too_slow(call.timeout_s)
            yield (chunk,)
        if request.misbehaviour == "stall":
            wait_s = max(0.0, min(self._idle_timeout_s, deadline - self._clock.monotonic()))
            await self._clock.sleep(wait_s)
            raise UpstreamTimeout(f"`{call.model}` sent nothing for {wait_s:g} s.")
        if request.misbehaviour == "cut":
            raise self._cut_off(call)

    async def close(self) -> None:
        """Nothing to close."""

    @staticmethod
    def _too_slow(limit_s: float) -> UpstreamTimeout:
        return UpstreamTimeout(f"The demo backend's delay takes longer than the {limit_s:g} s this call may take.")

    @staticmethod
    def _cut_off(call: ModelCall) -> UpstreamBroken:
        return UpstreamBroken(f"The answer of `{call.model}` was cut off.")

    def _answer(self, request: DemoRequest, call: ModelCall) -> tuple[tuple[Reply, ...], Usage]:
        if (failure := _refusal(request, call)) is not None:
            raise failure
        replies = tuple(self._reply(request, call) for _ in range(request.choices))
        produced = sum(
            reply.cut.tokens + sum(count_tokens(item.name) + count_tokens(item.arguments) for item in reply.calls)
            for reply in replies
        )
        return replies, Usage(prompt_tokens=_prompt_tokens(call), completion_tokens=produced)

    def _reply(self, request: DemoRequest, call: ModelCall) -> Reply:
        plan, max_tokens = self._plan(request)
        calls = tuple(ToolCall(new_call_id(), wanted.tool, call_arguments(wanted.arguments)) for wanted in plan.calls)
        text = plan.text
        # Once it was told that it could not be read, it does better: what a test wants to see is both.
        if request.misbehaviour == "bad_json" and not request.done:
            calls = tuple(msgspec.structs.replace(item, arguments=broken_json(item.arguments)) for item in calls)
            if not calls and request.schema is None:
                raise UpstreamBroken(f"The answer of `{call.model}` is not JSON.")
            text = broken_json(text)
        return Reply(calls, cut(text, request.stop, max_tokens))

    def _plan(self, request: DemoRequest) -> tuple[Plan, int | None]:
        """What to do, and how long a text may get."""
        if request.misbehaviour != "loop":
            return make_plan(request, self._model), request.max_tokens
        if request.tools and request.mode != "none":
            # Whatever came of the call, it is made again.
            return make_plan(replace(request, done=(), mode="required"), self._model), request.max_tokens
        plan = make_plan(request, self._model)
        if request.done or request.schema is not None:
            return plan, request.max_tokens
        text, limit = endless(plan.text, request.max_tokens)
        return Plan(text=text), limit

    def _envelope(self) -> Envelope:
        return Envelope(f"chatcmpl-{new_trace_id()}", int(self._clock.now()), self._model)


def _refusal(request: DemoRequest, call: ModelCall) -> GatewayError | None:
    """The failure that comes in place of an answer, where one was asked for."""
    if request.misbehaviour == "rate_limit":
        return UpstreamUnavailable(
            f"`{call.model}` takes no more requests at the moment, as `metadata.demo` asks.",
            status=429,
            kind="requests",
            code="rate_limit_exceeded",
            retry_after_s=RETRY_AFTER_S,
        )
    if request.misbehaviour == "error":
        return UpstreamUnavailable(
            f"`{call.model}` had an error, as `metadata.demo` asks.", status=500, kind="server_error"
        )
    return None


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
