"""`python -m bench.context`: what a window costs in a conversation of 10,000 messages, and the memory it keeps.

Within one process and without sockets: the figures are those of the decision alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import tracemalloc

from gateway.backends.backend import ModelCall
from gateway.chat.blocks import Message
from gateway.chat.codecs.chat_completions import decode_message
from gateway.clock import SystemClock
from gateway.config.context import ContextConfig
from gateway.config.models import BackendConfig
from gateway.observe.events import Recorder
from gateway.scribe.conversations import Conversations
from gateway.scribe.pins import PinPatterns
from gateway.turn.windowing import TurnWindow, windowing

CONTEXT_TOKENS = 8192


def message(**fields: object) -> Message:
    """A message as it comes in a request."""
    return decode_message(json.dumps(fields).encode())


def conversation(messages: int) -> tuple[Message, ...]:
    """A conversation with a tool round in every turn, and a question at its end."""
    talk: list[Message] = []
    for turn in range(messages // 4):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "sales", "arguments": f'{{"turn": {turn}}}'}}
        talk += [
            message(role="user", content=f"Question {turn} about the report of East China, with some more words."),
            message(role="assistant", content=None, tool_calls=[call]),
            message(role="tool", tool_call_id=f"c{turn}", content="row " * 300),
            message(role="assistant", content="An answer of some words. " * 5),
        ]
    return (*talk, message(role="user", content="And the week before?"))


def decide(known: Conversations, patterns: PinPatterns, talk: tuple[Message, ...]) -> tuple[float, int]:
    """Milliseconds of one decision, and how many messages are sent."""
    backend = BackendConfig(provider="openai", base_url="http://x", model="m", context_tokens=CONTEXT_TOKENS)
    record = Recorder("0" * 32, "me", SystemClock())
    window = TurnWindow(known, patterns, windowing(ContextConfig(), None), "me", "s", record, kept=True)
    call = ModelCall(talk, {}, "t", 1.0, "m")
    started = time.perf_counter()
    fitted = window.fit(call, "b", backend, tighter=False)
    return (time.perf_counter() - started) * 1000, len(fitted.messages)


def measure(messages: int, turns: int) -> dict[str, float]:
    """What the first decision costs, those of the turns after it, and what is remembered."""
    known, patterns = Conversations(), PinPatterns([])
    talk = conversation(messages)
    tracemalloc.start()
    decide(known, patterns, talk)
    remembered, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    first, _ = decide(Conversations(), patterns, talk)
    later: list[float] = []
    sent = 0
    for turn in range(turns):
        talk = (*talk, message(role="assistant", content="Fine."), message(role="user", content=f"More, {turn}."))
        milliseconds, sent = decide(known, patterns, talk)
        later.append(milliseconds)
    return {
        "messages": len(talk),
        "sent": sent,
        "first_ms": round(first, 2),
        "median_ms": round(statistics.median(later), 3),
        "best_ms": round(min(later), 3),
        "worst_ms": round(max(later), 3),
        "remembered_kb": round(remembered / 1024, 1),
    }


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.context", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=50)
    given = parser.parse_args()
    for name, value in measure(given.messages, given.turns).items():
        sys.stdout.write(f"{name:>14}  {value}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
