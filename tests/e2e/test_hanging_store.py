"""A store that does not answer: no request waits for it longer than it may take."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.serving import NOW, Served, native_config, serving
from tests.upstream import ScriptedUpstream, answer

GOES_ON = [
    {"role": "user", "content": "my name is Ada Lovelace"},
    {"role": "assistant", "content": "hello Ada"},
    {"role": "user", "content": "what is my name?"},
]


def hanging(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing that turns read before they begin is answered."""

    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    turns, store = gateway.gateway.turns, gateway.gateway.store
    monkeypatch.setattr(turns.continuity._store, "find", never)
    monkeypatch.setattr(type(store.memories), "of", never)


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
@pytest.mark.parametrize(
    ("limit", "headers"),
    [({"turn_timeout_s": 0.3}, {}), ({}, {"x_gateway_deadline_ms": "300"})],
    ids=["turn_timeout_s", "deadline"],
)
@pytest.mark.parametrize("what", ["hidden rounds", "memories"])
async def test_request_takes_no_longer_than_it_may(
    tmp_path: Path,
    what: str,
    limit: dict[str, Any],
    headers: dict[str, str],
    streamed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more: dict[str, Any] = {"server": limit}
    if what == "hidden rounds":
        more["models"] = {"m": {"backends": ["b1"], "retries": 0, "tools": ["now"]}}
    else:
        more["context"] = {"memory": {"enabled": True}}
    async with ScriptedUpstream(then=answer("hi")) as upstream:
        config = native_config(upstream.base_url, **more)
        async with serving(tmp_path, config, plugins={"now": NOW}) as gateway:
            hanging(gateway, monkeypatch)
            messages = GOES_ON if what == "hidden rounds" else GOES_ON[:1]
            started = time.monotonic()
            body = {"model": "m", "messages": messages, "stream": streamed}
            async with asyncio.timeout(10):
                status, _, told = await gateway.post("/v1/chat/completions", body, **headers)
            assert (status, told["error"]["code"]) == (503, "store_unavailable")
            assert "0.3 s" in told["error"]["message"]
            assert time.monotonic() - started < 5
            assert gateway.gateway.turns.running == {}
    assert upstream.requests == []
