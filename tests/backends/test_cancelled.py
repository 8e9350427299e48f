"""Calls that are cancelled wherever they wait: no connection, no place and no turn in a queue is left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from gateway.backends.attempts import Tier
from gateway.backends.choice import Member
from gateway.backends.native import NativeBackend
from gateway.backends.pool import Pool
from gateway.backends.watched import WatchedBackend
from gateway.clock import SystemClock
from gateway.config.models import BackendConfig
from gateway.observe.events import Recorder
from tests.backends.contract import model_call
from tests.cancelling import Cancel, at_once, just_as_it_goes_on, stepped
from tests.upstream import DONE, Reply, ScriptedUpstream, UpstreamRequest, answer, body, error, f, stream, u, words

_MOST: Final = 200
_STREAM: Final = stream(*words("hello big world"), f("stop"), u(1, 3), DONE).cut(40)
_WHOLE: Final = answer("hello big world").cut(40)
_REFUSED: Final = error(400, "Unrecognized request argument supplied: stream_options")
_DOWN: Final = error(503, headers={"retry-after": "0"})


def _script(kind: str) -> Callable[[UpstreamRequest], Reply]:
    first = True

    def reply(request: UpstreamRequest) -> Reply:
        nonlocal first
        good = _STREAM if request.json.get("stream") else _WHOLE
        was_first, first = first, False
        if kind == "asked anew" and "stream_options" in request.json:
            return _REFUSED
        if kind == "tried again" and was_first:
            return _DOWN
        if kind == "no stream":
            return body(_WHOLE.body).cut(40)
        return good

    return reply


@pytest.mark.parametrize("cancel", [at_once, just_as_it_goes_on])
@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
@pytest.mark.parametrize("kept", [False, True], ids=["new connection", "kept connection"])
@pytest.mark.parametrize("kind", ["plain", "asked anew", "tried again", "no stream", "queued"])
async def test_what_is_cancelled_leaves_nothing_behind(kind: str, kept: bool, streamed: bool, cancel: Cancel) -> None:
    for at in range(1, _MOST):
        async with ScriptedUpstream(then=answer("warm")) as upstream:
            config = BackendConfig(provider="openai", base_url=upstream.base_url, model="m", max_concurrency=1)
            adapter = NativeBackend("b1", config)
            only = WatchedBackend([adapter], config)
            pool = Pool("m", [Tier("m", (Member(only),), "ordered", 2)], SystemClock(), random.Random(7))
            record = Recorder("0" * 32, "key", SystemClock())
            if kept:
                await pool.complete(model_call("warm"), record)
            upstream._then = _script(kind)

            async def ask(pool: Pool = pool, record: Recorder = record) -> None:
                if not streamed:
                    await pool.complete(model_call("hi"), record)
                    return
                batches = pool.stream(model_call("hi"), record)
                try:
                    async for _ in batches:
                        pass
                finally:
                    await batches.aclose()

            if kind == "queued":
                assert only.places.take()
                asyncio.get_running_loop().call_later(0.002, only.places.release)
            task = asyncio.create_task(stepped(ask(), at, cancel))
            await asyncio.wait([task], timeout=10)
            assert task.done(), at
            if kind == "queued":
                await asyncio.sleep(0.004)
            server = adapter._server
            assert (only.places.busy, only.places.waiting) == (0, 0), at
            assert server._open == set(server.idle), at
            assert all(each._response is None for each in server.idle), at
            async with asyncio.timeout(5):
                await pool.complete(model_call("hi"), record)
            await adapter.close()
            assert not server._open
            if not task.cancelled():
                if task.exception() is None and not task.result():
                    return
                assert task.exception() is None, at
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("kept", [False, True], ids=["new connection", "kept connection"])
async def test_defect_while_a_request_is_on_its_way_leaves_no_connection(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedUpstream(then=_WHOLE) as upstream:
        adapter = NativeBackend("b1", BackendConfig(provider="openai", base_url=upstream.base_url, model="m"))
        if kept:
            await adapter.complete(model_call("warm"))

        def fail(*_: Any) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr("gateway.backends.native.StreamReading", fail)
        with pytest.raises(RuntimeError, match="a defect"):
            await anext(adapter.stream(model_call("hi")))
        assert adapter._server._open == set(adapter._server.idle)
        await adapter.close()


async def test_request_that_cannot_be_written_leaves_no_connection() -> None:
    async with ScriptedUpstream(then=_WHOLE) as upstream:
        adapter = NativeBackend("b1", BackendConfig(provider="openai", base_url=upstream.base_url, model="m"))
        await adapter.complete(model_call("warm"))
        [kept] = adapter._server.idle
        before = kept._transport

        class Refusing:
            def write(self, _: bytes) -> None:
                raise RuntimeError("the handler is closed")

            def abort(self) -> None:
                before.abort()

        kept._transport = Refusing()  # type: ignore[assignment]
        with pytest.raises(RuntimeError, match="closed"):
            await adapter.complete(model_call("hi"))
        assert (adapter._server._open, adapter._server.idle) == (set(), [])
        await adapter.close()
