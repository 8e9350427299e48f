"""A process of its own that calls a provider through litellm, and reports what else it did. Run by `test_litellm.py`."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.backends.backend import ModelCall
from gateway.backends.litellm import LitellmBackend
from gateway.chat.blocks import Message, Text
from gateway.config.models import BackendConfig

_ELSEWHERE: list[str] = []
_HERE = ("127.0.0.1", "localhost", "::1")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in _HERE:
        _ELSEWHERE.append(f"connect {arguments[1]}")
    if event == "socket.getaddrinfo" and arguments[0] not in (*_HERE, None):
        _ELSEWHERE.append(f"resolve {arguments[0]}")


def _sockets() -> int:
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found += str(descriptor.readlink()).startswith("socket:")
    return found


async def _run(port: int) -> dict[str, Any]:
    sys.addaudithook(_watch)
    before = _sockets()
    config = BackendConfig(
        provider="anthropic",
        model="claude-sonnet-4-5",
        api_key="sk-ant",
        base_url=f"http://127.0.0.1:{port}",
        timeout_s=240,
    )
    backend = LitellmBackend("claude", config)
    call = ModelCall((Message("user", (Text("hello"),)),), {}, "0af7651916cd43dd8448eb211c80319c", 240, "m")
    longest, started = 0.0, time.monotonic()
    backend.prepare()
    assert LitellmBackend._importing is not None
    while not LitellmBackend._importing.done():
        at = time.monotonic()
        await asyncio.sleep(0.02)
        longest = max(longest, time.monotonic() - at)
    # What the import made is not looked through again: that would stop everything for a third of a second.
    prepared = "litellm" in sys.modules and gc.isenabled() and gc.get_freeze_count() > 100_000
    import_s = time.monotonic() - started
    first = asyncio.ensure_future(backend.complete(call))
    await first
    counts = []
    for _ in range(3):
        for _ in range(10):
            await backend.complete(call)
            async for _batch in backend.stream(call):
                pass
        counts.append((len(asyncio.all_tasks()), _sockets()))
    began = time.process_time()
    for _ in range(50):
        await backend.complete(call)
    cpu_ms = (time.process_time() - began) * 1000 / 50
    await backend.close()
    await asyncio.sleep(0.1)
    return {
        "elsewhere": _ELSEWHERE,
        "prepared": prepared,
        "text": first.result().message.text,
        "counts": counts,
        "tasks_left": [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()],
        "sockets_left": _sockets() - before,
        "first_s": import_s,
        "longest_pause_s": longest,
        "cpu_ms": cpu_ms,
    }


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        report = runner.run(_run(int(sys.argv[1])))
    sys.stdout.write(json.dumps(report))
