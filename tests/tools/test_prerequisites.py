from __future__ import annotations

from typing import Any

import pytest

from gateway.chat.blocks import Message, Text, ToolCall, ToolResult
from gateway.config.models import ToolsConfig
from gateway.errors import ConfigError
from gateway.tools.prerequisites import succeeded
from gateway.tools.registry import Registry
from gateway.tools.spec import make_spec
from tests.tools.recording_provider import EMPTY, RecordingProvider


def needing(name: str, *required: str) -> Any:
    return make_spec(
        name=name,
        description="Act.",
        parameters=EMPTY,
        provider="recording",
        origin="made.py:3",
        timeout_s=5,
        requires=required,
    )


async def built(*specs: Any) -> Registry:
    return await Registry.build([RecordingProvider(specs)], ToolsConfig())


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([needing("a", "nowhere")], "`requires` names `nowhere`, and there is no such tool"),
        ([needing("a", "a")], "leads back to itself"),
        ([needing("a", "b"), needing("b", "c"), needing("c", "a")], "leads back to itself"),
    ],
)
async def test_a_tool_that_could_never_be_offered_is_refused_at_load(specs: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await built(*specs)
    assert words in str(caught.value.problems[0])
    assert str(caught.value.problems[0]).startswith("made.py:3: tool `a`: ")


async def test_a_chain_of_tools_is_fine() -> None:
    registry = await built(needing("a", "b", "c"), needing("b", "c"), needing("c"))
    assert registry.required(registry.specs["a"]) == {"b", "c"}


async def test_what_succeeded_is_read_from_results() -> None:
    registry = await built(needing("a"), needing("b"))

    def round_of(name: str, text: str) -> list[Message]:
        return [
            Message("assistant", (ToolCall(f"c_{name}", name, "{}"),)),
            Message("tool", (ToolResult(f"c_{name}", text),)),
        ]

    messages = [
        *round_of("a", '{"ok":true,"result":1}'),
        *round_of("b", '{"ok":false,"error":"no"}'),
        *round_of("foreign", '{"ok":true,"result":1}'),
        Message("tool", (ToolResult("c_nobody", '{"ok":true}'),)),
        Message("user", (Text('{"ok":true}'),)),
    ]
    assert succeeded(messages, registry.find) == {"a"}
    assert succeeded(round_of("gateway__a", '{"ok":true,"result":1}'), registry.find) == {"a"}
    assert succeeded(round_of("a", "done"), registry.find) == frozenset()
