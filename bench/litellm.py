"""`python -m bench.litellm`: CPU of a call and of a chunk through litellm, bare and through our lane.

Each way in a process of its own, asked in turn, one call at a time, before one mock on loopback. Bare is `litellm.acompletion` as a
program would call it; chunks are what both hand out, and their CPU is a stream's less a plain call's. Of the rounds the best.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Literal

import uvloop

from bench import mock
from bench.subjects import free_port
from gateway.backends.backend import ModelCall
from gateway.backends.litellm import LitellmBackend
from gateway.backends.litellm_setup import ENVIRONMENT
from gateway.chat.codecs.chat_completions import decode_request
from gateway.config.models import BackendConfig

# Over our own connections the first two, by the plain call the last.
PROVIDERS: Final = {
    "anthropic": ("claude-sonnet-4-5", ""),
    "deepseek": ("deepseek-chat", "/v1"),
    "perplexity": ("sonar", "/v1"),
}
Way = Literal["bare", "lane"]
CALLS: Final = 20
STREAMS: Final = 5
_TEXT: Final = ("Please compare the two plans below and say which one is cheaper for a team of nine. " * 22)[:1800]
_BODY: Final = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are a careful assistant."},
        {"role": "user", "content": _TEXT},
    ],
    "temperature": 0.2,
    "max_tokens": 512,
}


def _events() -> list[bytes]:
    """A stream of Anthropic's with as many pieces of text as the mock's own."""
    usage = {"input_tokens": 420, "output_tokens": 1}
    message: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": []}
    said: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    for event in mock.events()[1:-3]:
        text = json.loads(event[6:])["choices"][0]["delta"]["content"]
        said.append({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    said += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 50}},
        {"type": "message_stop"},
    ]
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in said]


def _whole() -> bytes:
    text = json.loads(mock.JSON.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"]
    message = {"id": "m", "type": "message", "role": "assistant", "model": "c", "stop_sequence": None}
    usage = {"input_tokens": 420, "output_tokens": 300}
    content = [{"type": "text", "text": text}]
    body = json.dumps({**message, "content": content, "stop_reason": "end_turn", "usage": usage}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class _Upstream(mock.Mock):
    """The mock, which here speaks Anthropic's protocol too."""

    whole = _whole()
    streamed = mock.STREAM_HEAD + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in _events()) + b"0\r\n\r\n"

    def _answer(self, head: bytes, request: bytes) -> None:
        if not head.startswith(b"post /v1/messages"):
            super()._answer(head, request)
        elif b'"stream": true' in request or b'"stream":true' in request:
            self._transport.write(self.streamed)
        else:
            self._transport.write(self.whole)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Upstream, "127.0.0.1", port)
    await server.serve_forever()


async def _bare(provider: str, port: int) -> tuple[Callable[[], Awaitable[int]], Callable[[], Awaitable[int]]]:
    os.environ.update(ENVIRONMENT)
    import litellm

    litellm.suppress_debug_info = True
    model, path = PROVIDERS[provider]
    given = {**_BODY, "model": f"{provider}/{model}", "api_key": "k", "api_base": f"http://127.0.0.1:{port}{path}"}

    async def call() -> int:
        await litellm.acompletion(**given)
        return 0

    async def stream() -> int:
        chunks = 0
        answer = await litellm.acompletion(**given, stream=True, stream_options={"include_usage": True})
        async for _ in answer:
            chunks += 1
        return chunks

    return call, stream


async def _lane(provider: str, port: int) -> tuple[Callable[[], Awaitable[int]], Callable[[], Awaitable[int]]]:
    model, path = PROVIDERS[provider]
    config = BackendConfig(provider=provider, model=model, api_key="k", base_url=f"http://127.0.0.1:{port}{path}")
    backend = LitellmBackend("b", config)
    request = decode_request(json.dumps(_BODY).encode())
    asked = ModelCall(request.messages, request.fields, "0af7651916cd43dd8448eb211c80319c", 60.0, "m")

    async def call() -> int:
        await backend.complete(asked)
        return 0

    async def stream() -> int:
        chunks = 0
        async for batch in backend.stream(asked):
            chunks += len(batch)
        return chunks

    return call, stream


async def _work(way: Way, provider: str, port: int) -> None:
    """Do what is asked for on stdin, one kind and number a line, and say what it took."""
    call, stream = await (_bare if way == "bare" else _lane)(provider, port)
    for _ in range(5):
        await call()
        await stream()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while line := await asyncio.to_thread(sys.stdin.readline):
        kind, times = line.split()
        chunks = 0
        began = time.process_time()
        for _ in range(int(times)):
            chunks += await (call if kind == "call" else stream)()
        spent = (time.process_time() - began) * 1000 / int(times)
        sys.stdout.write(f"{spent} {chunks / int(times)}\n")
        sys.stdout.flush()


class _Worker:
    """A process that calls one way."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("a worker did not begin")

    def ask(self, kind: str, times: int) -> tuple[float, float]:
        """CPU in milliseconds, and chunks, of one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {times}\n")
        self._process.stdin.flush()
        spent, chunks = self._process.stdout.readline().split()
        return float(spent), float(chunks)


@contextmanager
def _started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.litellm", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def measured(provider: str, port: int, rounds: int) -> dict[str, dict[str, float]]:
    """CPU in milliseconds of a call, and of a chunk, by way."""
    with ExitStack() as stack:
        workers: dict[Way, _Worker] = {}
        for way in ("bare", "lane"):
            given = ("--way", way, "--provider", provider, "--port", str(port))
            workers[way] = _Worker(stack.enter_context(_started(*given)))
        for worker in workers.values():
            worker.ready()
        calls: dict[Way, list[float]] = {way: [] for way in workers}
        streams: dict[Way, list[float]] = {way: [] for way in workers}
        chunks: dict[Way, float] = {}
        for _ in range(rounds):
            for way, worker in workers.items():
                calls[way].append(worker.ask("call", CALLS)[0])
                stream, chunks[way] = worker.ask("stream", STREAMS)
                streams[way].append(stream)
    # The least of many: what disturbs a run only makes it longer.
    return {
        "call": {way: min(calls[way]) for way in workers},
        "chunk": {way: (min(streams[way]) - min(calls[way])) / chunks[way] for way in workers},
    }


def main() -> None:
    """Print the table; or be one of the processes that it is measured with."""
    parser = argparse.ArgumentParser(prog="python -m bench.litellm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--way", choices=("bare", "lane", "mock"), help=argparse.SUPPRESS)
    parser.add_argument("--provider", choices=PROVIDERS, help="this one alone")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way == "mock":
        uvloop.run(_serve(given.port))
    elif given.way is not None:
        uvloop.run(_work(given.way, given.provider, given.port))
    else:
        port = free_port()
        with _started("--way", "mock", "--port", str(port)):
            print(f"{'provider':12} {'of a':6} {'bare ms':>9} {'lane ms':>9} {'lane / bare':>12}")
            for provider in [given.provider] if given.provider else PROVIDERS:
                for kind, spent in measured(provider, port, given.rounds).items():
                    ratio = spent["lane"] / spent["bare"]
                    print(f"{provider:12} {kind:6} {spent['bare']:9.3f} {spent['lane']:9.3f} {ratio:12.2f}")


if __name__ == "__main__":
    main()
