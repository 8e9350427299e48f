"""A local model's server process, played by a small program: starting, dying, ending. The real one is `tests/real`'s."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.factory import make_backend
from gateway.backends.llamacpp import LlamaCppBackend
from gateway.backends.llamacpp_process import LlamaProcess
from gateway.config.models import BackendConfig
from gateway.errors import ConfigError, UpstreamTimeout, UpstreamUnavailable
from tests.backends.contract import model_call, read_stream
from tests.upstream import DONE, ScriptedUpstream, answer, f, stream, words

# Reads what it is to load, says where it is (an upstream of the test's), writes its number down and waits for the end.
SERVER = """
import json, os, pathlib, sys
asked = json.loads(sys.stdin.readline())
with open({folder!r} + "/lives", "a") as lives:
    lives.write(f"{{os.getpid()}}\\n")
gate = pathlib.Path({folder!r}) / "hold"
import time
while gate.exists():
    time.sleep(0.01)
print({said}, flush=True)
sys.stdin.read()
"""


def process(folder: Path, said: dict[str, Any]) -> LlamaProcess:
    source = SERVER.format(folder=str(folder), said=f"json.dumps({said!r})")
    return LlamaProcess("local", {"path": "x.gguf"}, [sys.executable, "-I", "-c", source])


def config(**more: Any) -> BackendConfig:
    return BackendConfig.model_validate({"provider": "llamacpp", "path": "tiny-model.gguf", **more})


def lives(folder: Path) -> list[int]:
    file = folder / "lives"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def until(condition: Any, timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def local(folder: Path, upstream: ScriptedUpstream, **more: Any) -> AsyncIterator[LlamaCppBackend]:
    served = process(folder, {"url": upstream.base_url.removesuffix("/v1")})
    backend = LlamaCppBackend("local", config(**more), served)
    try:
        yield backend
    finally:
        await backend.close()


async def test_server_is_started_once_asked_with_its_own_key_and_ended(tmp_path: Path) -> None:
    replies = [answer("one"), stream(*words("two three"), f("stop"), DONE)]
    async with ScriptedUpstream(*replies) as upstream:
        async with local(tmp_path, upstream) as backend:
            assert lives(tmp_path) == []
            backend.prepare()
            backend.prepare()
            assert (await backend.complete(model_call("hi"))).message.text == "one"
            assert (await read_stream(backend, model_call("hi"))).text == "two three"
            (pid,) = lives(tmp_path)
            assert alive(pid)
        assert not alive(pid)
        keys = {request.headers["authorization"] for request in upstream.requests}
        assert len(keys) == 1
        assert len(keys.pop()) > 30
        assert upstream.requests[0].json["model"] == "tiny-model"


async def test_call_waits_while_the_model_loads_but_not_longer_than_it_may(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    async with ScriptedUpstream(then=answer("ok")) as upstream, local(tmp_path, upstream) as backend:
        with pytest.raises(UpstreamTimeout):
            await backend.complete(model_call("hi", timeout_s=0.2))
        waiting = asyncio.create_task(backend.complete(model_call("hi", timeout_s=30)))
        await until(lambda: lives(tmp_path))
        (tmp_path / "hold").unlink()
        assert (await waiting).message.text == "ok"
        assert len(lives(tmp_path)) == 1


async def test_server_that_dies_is_started_again_under_another_key(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("ok")) as upstream, local(tmp_path, upstream) as backend:
        await backend.complete(model_call("hi"))
        os.kill(lives(tmp_path)[0], 9)
        await until(lambda: not alive(lives(tmp_path)[0]))
        await until(lambda: len(lives(tmp_path)) == 2)
        assert (await backend.complete(model_call("hi"))).message.text == "ok"
        assert len({request.headers["authorization"] for request in upstream.requests}) == 2


async def test_server_that_cannot_load_says_why_at_once(tmp_path: Path) -> None:
    backend = LlamaCppBackend("local", config(), process(tmp_path, {"error": "no such tensor"}))
    try:
        with pytest.raises(UpstreamUnavailable, match="no such tensor"):
            await backend.complete(model_call("hi", timeout_s=30))
        refused = await _refused(backend)
        assert (refused.status, refused.retry_after_s is not None) == (503, True)
    finally:
        await backend.close()
    with pytest.raises(UpstreamUnavailable, match="does not run"):
        await backend.complete(model_call("hi"))


async def _refused(backend: LlamaCppBackend) -> UpstreamUnavailable:
    with pytest.raises(UpstreamUnavailable) as caught:
        await backend.complete(model_call("hi", timeout_s=30))
    return caught.value


async def test_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    served = LlamaProcess("local", {}, [str(tmp_path / "nothing")])
    try:
        with pytest.raises(UpstreamUnavailable, match="cannot be started"):
            async with asyncio.timeout(30):
                await served.address()
    finally:
        await served.close()


async def test_server_ends_when_the_gateway_is_killed(tmp_path: Path) -> None:
    """Its input ends with the process that holds the other end, however that one ended."""
    source = SERVER.format(folder=str(tmp_path), said="json.dumps({'url': 'http://127.0.0.1:1'})")
    holder = f"""
import asyncio, os, sys
from gateway.backends.llamacpp_process import LlamaProcess
async def main():
    served = LlamaProcess("local", {{}}, [sys.executable, "-I", "-c", {source!r}])
    await served.address()
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", holder)
    async with asyncio.timeout(60):
        await killed.wait()
    (pid,) = lives(tmp_path)
    await until(lambda: not alive(pid))


def test_missing_file_is_a_mistake_in_the_configuration() -> None:
    pytest.importorskip("xllamacpp")
    with pytest.raises(ConfigError, match="GGUF"):
        make_backend("local", config(path="/nowhere/model.gguf"))


def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"hermes-gateway\[local\]"):
        make_backend("local", config())


@pytest.mark.parametrize(
    ("more", "word"),
    [({"path": None}, "needs `path`"), ({"base_url": "http://x"}, "base_url"), ({"api_key": "k"}, "api_key")],
)
def test_configuration_is_held_to_what_a_local_model_has(more: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        config(**more)
    with pytest.raises(ValueError, match="llamacpp"):
        BackendConfig.model_validate({"provider": "demo", "path": "x.gguf"})
