from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.backend import Backend, ModelCall
from gateway.backends.plugin import PluginBackend
from gateway.config.models import BackendConfig
from gateway.errors import ConfigError, UpstreamBroken, UpstreamError, UpstreamTimeout
from tests.backends.contract import CALCULATOR, QUESTION, BackendContract, model_call, parsed, read_stream
from tests.backends.openai_schemas import check_answer, check_chunk

ECHO = Path(__file__).parents[2] / "docs" / "examples" / "echo_backend.py"
CALLING = """
CALL = {"id": "call_9", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "12+30"}'}}

async def chat(request):
    assert request["tools"][0]["function"]["name"] == "calculator"
    return {"tool_calls": [CALL], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}
"""


@asynccontextmanager
async def loaded(path: Path, source: str | None = None, **settings: Any) -> AsyncIterator[PluginBackend]:
    if source is not None:
        await asyncio.to_thread(path.write_text, source)
    backend = PluginBackend("mine", BackendConfig(provider="plugin", module=str(path), **settings))
    try:
        yield backend
    finally:
        await backend.close()


class TestPluginMeetsTheContract(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @asynccontextmanager
    async def texting(self) -> AsyncIterator[Backend]:
        async with loaded(ECHO) as backend:
            yield backend

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[Backend]:
        async with loaded(self.folder / "calling.py", CALLING) as backend:
            yield backend

    @asynccontextmanager
    async def failing(self) -> AsyncIterator[tuple[Backend, ModelCall]]:
        source = "async def chat(request):\n    raise RuntimeError('see http://127.0.0.1/secret')\n"
        async with loaded(self.folder / "failing.py", source) as backend:
            yield backend, model_call(QUESTION)


FORMS = {
    "text": "async def chat(request):\n    return 'one two'\n",
    "message": "async def chat(request):\n    return {'role': 'assistant', 'content': 'one two'}\n",
    "answer": "async def chat(request):\n    return {'choices': [{'message': {'content': 'one two'}, 'finish_reason': 'stop'}]}\n",
    "texts": "async def chat(request):\n    yield 'one '\n    yield 'two'\n",
    "deltas": "async def chat(request):\n    yield {'content': 'one '}\n    yield {'content': 'two'}\n",
    "chunks": "async def chat(request):\n"
    "    yield {'choices': [{'index': 0, 'delta': {'role': 'assistant', 'content': 'one '}}]}\n"
    "    yield {'choices': [{'index': 0, 'delta': {'content': 'two'}, 'finish_reason': 'stop'}]}\n",
    "generator returned": "async def parts():\n    yield 'one '\n    yield 'two'\n\nasync def chat(request):\n    return parts()\n",
    "plain function": "def chat(request):\n    return 'one two'\n",
}


@pytest.mark.parametrize("form", FORMS)
async def test_every_form_of_answer_serves_whole_and_streamed(form: str, tmp_path: Path) -> None:
    async with loaded(tmp_path / "plug.py", FORMS[form]) as backend:
        whole = await backend.complete(model_call(QUESTION))
        read = await read_stream(backend, model_call(QUESTION))
    assert check_answer(whole.body)["choices"][0]["message"]["content"] == "one two"
    assert read.text == "one two"
    assert read.finish_reasons == ["stop"]
    for chunk in read.chunks:
        check_chunk(chunk.data)


async def test_streamed_calls_are_put_together_for_a_whole_answer(tmp_path: Path) -> None:
    source = (
        "async def chat(request):\n"
        "    yield {'tool_calls': [{'index': 0, 'id': 'c1', 'function': {'name': 'calculator', 'arguments': ''}}]}\n"
        "    yield {'tool_calls': [{'index': 0, 'function': {'arguments': '{\"expression\": \"1+1\"}'}}]}\n"
    )
    async with loaded(tmp_path / "plug.py", source) as backend:
        whole = await backend.complete(model_call(QUESTION, tools=[CALCULATOR]))
        read = await read_stream(backend, model_call(QUESTION, tools=[CALCULATOR]))
    assert parsed(whole.message.tool_calls) == parsed(read.calls) == [("calculator", {"expression": "1+1"})]
    assert whole.finish_reason == "tool_calls"
    assert read.finish_reasons == ["tool_calls"]


async def test_request_is_the_whole_request(tmp_path: Path) -> None:
    source = "import json\n\nasync def chat(request):\n    return json.dumps(request)\n"
    settings: dict[str, Any] = {"params": {"top_p": 0.5, "temperature": 1}, "drop_params": ("seed",), "model": "own-1"}
    async with loaded(tmp_path / "plug.py", source, **settings) as backend:
        answer = await backend.complete(model_call("hi", temperature=0, seed=4, unknown={"a": [1]}))
    assert json.loads(answer.message.text) == {
        "model": "own-1",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0,
        "top_p": 0.5,
        "unknown": {"a": [1]},
        "stream": False,
    }


async def test_module_is_loaded_once_and_closed(tmp_path: Path) -> None:
    source = (
        "import time\nfrom pathlib import Path\n"
        "time.sleep(0.05)\n"  # whoever else would load it has the time to
        "LOG = Path(__file__).with_suffix('.log')\n"
        "LOG.open('a').write('loaded ') and None\n"
        "async def chat(request):\n    return 'ok'\n"
        "async def close():\n    LOG.open('a').write('closed ') and None\n"
    ).replace(
        "LOG.open('a').write(", "(lambda text: LOG.write_text((LOG.read_text() if LOG.exists() else '') + text))("
    )
    async with loaded(tmp_path / "plug.py", source) as backend:
        await asyncio.gather(*(backend.complete(model_call("hi")) for _ in range(5)))
    log = await asyncio.to_thread((tmp_path / "plug.log").read_text)
    assert log == "loaded closed "


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("this is no python", UpstreamError),
        ("import nothing_of_this_name\n", UpstreamError),
        ("x = 1\n", UpstreamError),
        ("async def chat(request):\n    return 7\n", UpstreamBroken),
        ("async def chat(request):\n    return {'choices': []}\n", UpstreamBroken),
        ("async def chat(request):\n    return {'content': object()}\n", UpstreamBroken),
        ("async def chat(request):\n    yield 7\n", UpstreamBroken),
        ("async def chat(request):\n    yield {'choices': [7]}\n", UpstreamBroken),
        ("async def chat(request):\n    yield {'content': {1: 2}}\n", UpstreamBroken),
    ],
)
async def test_what_is_no_backend_is_told_without_its_inside(
    source: str, kind: type[UpstreamError], tmp_path: Path
) -> None:
    async with loaded(tmp_path / "plug.py", source) as backend:
        with pytest.raises(kind) as whole:
            await backend.complete(model_call("hi"))
        with pytest.raises(UpstreamError):
            await read_stream(backend, model_call("hi"))
    assert "plug.py" not in whole.value.message


async def test_slow_plugin_times_out_in_both_forms(tmp_path: Path) -> None:
    source = "import asyncio\n\nasync def chat(request):\n    await asyncio.Event().wait()\n"
    async with loaded(tmp_path / "plug.py", source, first_token_timeout_s=0.2) as backend:
        with pytest.raises(UpstreamTimeout):
            await backend.complete(model_call("hi", timeout_s=0.2))
        with pytest.raises(UpstreamTimeout):
            await read_stream(backend, model_call("hi"))


async def test_closing_the_stream_closes_the_generator(tmp_path: Path) -> None:
    source = (
        "closed = []\n"
        "async def chat(request):\n"
        "    try:\n        yield 'one'\n        yield 'two'\n"
        "    finally:\n        closed.append(True)\n"
    )
    async with loaded(tmp_path / "plug.py", source) as backend:
        batches = backend.stream(model_call("hi"))
        await anext(batches)
        await batches.aclose()
        assert backend._module is not None
        assert backend._module.closed == [True]


def test_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.py"):
        PluginBackend("mine", BackendConfig(provider="plugin", module=str(tmp_path / "absent.py")))


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
@pytest.mark.parametrize(
    "piece",
    ['{"choices": 5}', "5", "None", '{"choices": [{"delta": {"tool_calls": 5}}]}', '{"content": object()}'],
)
async def test_piece_that_is_none_is_a_broken_answer(tmp_path: Path, piece: str, streamed: bool) -> None:
    source = f"async def chat(request):\n    yield 'a'\n    yield {piece}\n    yield 'b'\n"
    async with loaded(tmp_path / "odd.py", source) as backend:
        with pytest.raises(UpstreamBroken):
            await read_stream(backend, model_call("hi")) if streamed else await backend.complete(model_call("hi"))


@pytest.mark.parametrize("message", ["5", "[5]", "'text'"])
async def test_whole_answer_with_an_odd_message_is_a_broken_stream(tmp_path: Path, message: str) -> None:
    source = f"async def chat(request):\n    return {{'choices': [{{'message': {message}}}]}}\n"
    async with loaded(tmp_path / "odd.py", source) as backend:
        with pytest.raises(UpstreamBroken):
            await read_stream(backend, model_call("hi"))


CLOSING = """
import asyncio

class Pieces:
    def __init__(self):
        self._said = iter(["a", "b"])

    def __aiter__(self):
        return self

    async def __anext__(self):
        for piece in self._said:
            return piece
        if FAILS:
            raise RuntimeError("gone")
        raise StopAsyncIteration

    async def aclose(self):
        CLOSE

async def chat(request):
    return Pieces()
"""


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
@pytest.mark.parametrize(
    "close",
    ["await asyncio.Event().wait()", "raise TimeoutError", "raise RuntimeError('cannot close')"],
    ids=["hangs", "is late", "fails"],
)
async def test_plugin_that_cannot_close_its_pieces_has_said_them(
    tmp_path: Path, close: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backends.plugin._CLOSE_S", 0.05)
    source = CLOSING.replace("CLOSE", close)
    async with loaded(tmp_path / "whole.py", f"FAILS = False\n{source}") as backend, asyncio.timeout(5):
        if streamed:
            assert (await read_stream(backend, model_call("hi"))).text == "ab"
        else:
            assert (await backend.complete(model_call("hi"))).message.text == "ab"
    async with loaded(tmp_path / "failing.py", f"FAILS = True\n{source}") as backend, asyncio.timeout(5):
        with pytest.raises(UpstreamError, match="RuntimeError"):
            await read_stream(backend, model_call("hi")) if streamed else await backend.complete(model_call("hi"))
