"""`python -m bench.privacy`: what masking costs where nothing is found, where something is, and for each chunk of a stream.

In this process, without sockets: best of many, in microseconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import msgspec

from gateway.backends.backend import ModelCall
from gateway.backends.veil import Veil, masked_call
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.codecs.chat_completions import decode_request
from gateway.security.masking.detector import Detector
from gateway.security.masking.masking import Masking
from gateway.security.masking.messages import Conversation
from gateway.security.masking.placeholders import Mint

KINDS = ("phone", "id_number", "bank_card", "email")
PLAIN = "Please tell me about order 20240318, placed at 10:30 on 2024-03-18 by the team, thank you. 你好，请问订单什么时候到？"
PRIVATE = "My number is 13812345678, write to sam@example.org. "


def request_of(text: str, size_bytes: int) -> ModelCall:
    """A call of four messages, which are some `size_bytes` together."""
    whole = (text * (size_bytes // len(text.encode()) + 1)).encode()[:size_bytes].decode(errors="ignore")
    half = len(whole) // 2
    messages = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": whole[:half]},
        {"role": "assistant", "content": "Sure."},
        {"role": "user", "content": whole[half:]},
    ]
    body = {"model": "m", "messages": messages, "temperature": 0.1, "user": "u1"}
    request = decode_request(json.dumps(body, ensure_ascii=False).encode())
    return ModelCall(request.messages, request.fields, "trace", 10.0)


def masking_us(detector: Detector, call: ModelCall, times: int = 300) -> float:
    """Masking one call of a turn of its own."""

    def once() -> None:
        private = Conversation(Masking(detector, Mint(b"key")))
        masked_call(msgspec.structs.replace(call, private=private), private)

    return best_us(once, times)


def chunk_us(values: dict[str, str], times: int = 100) -> float:
    """One chunk of a stream with these values to put back, and none of their placeholders in it."""
    chunks = [_chunk(word) for word in (PLAIN * 20).split(" ")]

    def once() -> None:
        veil = Veil(values)
        for chunk in chunks:
            veil.feed((chunk,))

    return best_us(once, times) / len(chunks)


def best_us(once: Callable[[], None], times: int) -> float:
    """The shortest of several times, in microseconds."""
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        once()
        best = min(best, time.perf_counter() - started)
    return best * 1e6


def _chunk(word: str) -> Chunk:
    choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return decode_chunk(json.dumps(body).encode())


def measured() -> Sequence[tuple[str, float]]:
    """What is measured, and what it takes."""
    detector = Detector(KINDS, {})
    return [
        ("a request of 2 KB, nothing found", masking_us(detector, request_of(PLAIN, 2048))),
        (
            "a request of 2 KB with one number and one address",
            masking_us(detector, request_of(PRIVATE + PLAIN * 40, 2048)),
        ),
        ("a request of 100 KB, nothing found", masking_us(detector, request_of(PLAIN, 102_400), 50)),
        ("a chunk of a stream with values to put back", chunk_us({"[[phone:bcdfghjklmn]]": "13812345678"})),
    ]


def main() -> None:
    """Print the table."""
    for name, microseconds in measured():
        print(f"{name:55} {microseconds:9.2f} us")


if __name__ == "__main__":
    main()
