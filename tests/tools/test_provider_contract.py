"""What every ToolProvider promises, held against the Python provider and the fake that other tests use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.tools import ToolFatal, ToolRetry
from gateway.tools.provider import HOOK_NAMES, ToolProvider
from gateway.tools.providers.python import PythonProvider
from gateway.tools.spec import TOOL_NAME_PATTERN
from gateway.tools.validate import ArgumentValidator
from tests.tools.recording_provider import RecordingProvider, spec
from tests.tools.workshop import context, write_plugin

PLUGIN = """
import asyncio

@tool
async def answer() -> int:
    "Answer."
    return 42

@tool
async def again() -> None:
    "Ask again."
    raise ToolRetry("again")

@tool
async def fatal() -> None:
    "End."
    raise ToolFatal("over")

@tool
async def wait() -> None:
    "Wait."
    await asyncio.Event().wait()

def register(registry): registry.add(answer, again, fatal, wait)
"""


async def forever(arguments: object, ctx: object) -> None:
    await asyncio.Event().wait()


@pytest.fixture(params=["python", "recording"])
async def provider(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ToolProvider]:
    made: ToolProvider
    if request.param == "python":
        write_plugin(tmp_path, PLUGIN)
        made = PythonProvider([tmp_path])
    else:
        answers = {"answer": 42, "again": ToolRetry("again"), "fatal": ToolFatal("over"), "wait": forever}
        made = RecordingProvider([spec(name) for name in answers], answers)
    await made.open()
    yield made
    await made.close()


async def test_it_lists_the_same_complete_specs_each_time(provider: ToolProvider) -> None:
    listed = await provider.list()
    assert [each.name for each in listed] == ["answer", "again", "fatal", "wait"]
    assert list(listed) == list(await provider.list())
    for each in listed:
        assert TOOL_NAME_PATTERN.fullmatch(each.name)
        assert each.provider == provider.name
        assert json.loads(each.wire) == {
            "type": "function",
            "function": {"name": each.name, "description": each.description, "parameters": dict(each.parameters)},
        }
        assert len(each.spec_hash) == 64
        assert each.timeout_s > 0
        ArgumentValidator(each.parameters)
    assert len({each.spec_hash for each in listed}) == len(listed)


async def test_a_call_returns_what_the_tool_returns(provider: ToolProvider) -> None:
    assert await provider.call("answer", {}, context()) == 42


async def test_a_tools_own_word_passes_through(provider: ToolProvider) -> None:
    with pytest.raises(ToolRetry, match="again"):
        await provider.call("again", {}, context())
    with pytest.raises(ToolFatal, match="over"):
        await provider.call("fatal", {}, context())


async def test_cancelling_reaches_the_call(provider: ToolProvider) -> None:
    task = asyncio.create_task(provider.call("wait", {}, context()))
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=1)
    assert task in done
    assert task.cancelled()


async def test_its_hooks_have_known_names(provider: ToolProvider) -> None:
    assert set(provider.hooks) <= set(HOOK_NAMES)


async def test_its_checks_pass_and_closing_twice_is_fine(provider: ToolProvider) -> None:
    assert await provider.check() == ()
    await provider.close()
    await provider.close()
