"""Who is in a session: a client that leaves while it is let in holds it no longer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.chat.codecs.chat_completions import decode_request
from gateway.clock import SystemClock
from gateway.config.context import SessionsConfig
from gateway.observe.events import Recorder
from gateway.security.principal import Principal
from gateway.store.sql import SqlStore
from gateway.turn.prepare import Wishes
from gateway.turn.session import SessionKeeper
from tests.cancelling import Cancel, at_once, just_as_it_goes_on, stepped

_MOST = 200
REQUEST = decode_request(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')


@pytest.mark.parametrize("cancel", [at_once, just_as_it_goes_on])
async def test_client_that_leaves_while_it_is_let_in_leaves_the_session_free(tmp_path: Path, cancel: Cancel) -> None:
    clock = SystemClock()
    store = SqlStore(f"sqlite:///{tmp_path / 'sessions.db'}")
    await store.open()
    keeper = SessionKeeper(store.sessions, "here", lambda _: True, clock)
    try:
        for at in range(1, _MOST):
            name, record = f"session-{at}", Recorder(f"{at:032x}", "key", clock)
            entering = keeper.enter(REQUEST, Principal("key"), Wishes(session=name), SessionsConfig(), record, 300.0)
            task = asyncio.create_task(stepped(entering, at, cancel))
            await asyncio.wait([task], timeout=10)
            assert task.done(), at
            if not task.cancelled():
                assert not task.result(), at
                return
            await keeper.close()
            now = clock.now()
            found = await store.sessions.take("key", name, "there", until=now + 300, now=now, alive=lambda _: True)
            assert found is not None, at
        raise AssertionError("it never came to its end")
    finally:
        await keeper.close()
        await store.close()
