"""One turn, asked for whole and streamed: the client gets the same, however the stream was cut."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import RecordingProvider, ScriptedBackend, spec
from tests.frames import Frame, d, f, tc, u
from tests.turn.stage import Seen, stage

TOOLS = [{"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}]


@st.composite
def rounds(draw: st.DrawFn) -> list[Frame]:
    """Text, and calls of either side, cut anywhere; an end that may be wrong."""
    frames: list[Frame] = []
    if draw(st.booleans()):
        frames.append(d({"role": "assistant", "content": ""}))
    frames += [d({"content": text}) for text in draw(st.lists(st.text("xy é", max_size=5), max_size=3))]
    names = draw(st.lists(st.sampled_from(["mine", "ours", "unknown"]), max_size=3))
    for index, name in enumerate(names):
        frames.append(tc(index, id=f"c{index}", name=name, arguments=""))
        arguments = json.dumps({"n": draw(st.integers(0, 2))})
        place = draw(st.integers(0, len(arguments)))
        frames += [tc(index, arguments=arguments[:place]), tc(index, arguments=arguments[place:])]
    frames.append(f(draw(st.sampled_from(["stop", "tool_calls", "length", "content_filter", "end_turn"]))))
    if draw(st.booleans()):
        frames.append(u(draw(st.integers(0, 50)), draw(st.integers(0, 50))))
    return frames


async def seen(script: list[list[Frame]], together: int, *, streamed: bool, offered: bool) -> tuple[Seen, Any, int]:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    provider = RecordingProvider([spec("ours", parameters=schema)] if offered else [], {"ours": 1})
    backend = ScriptedBackend(*script, then=[d({"content": "end"}), f("stop"), u(1, 1)], together=together)
    async with stage(backend, provider, route={"max_rounds": 3}) as on:
        answer = await on.answer(streamed=streamed, tools=TOOLS)
        return answer, on.ran(), len(backend.calls)


@settings(max_examples=30, deadline=None)
@given(st.lists(rounds(), max_size=4), st.integers(1, 5), st.booleans())
async def test_whole_answer_equals_the_joined_stream(script: list[list[Frame]], together: int, offered: bool) -> None:
    whole = await seen(script, 1, streamed=False, offered=offered)
    assert await seen(script, together, streamed=True, offered=offered) == whole
    if offered:
        assert all(name == "mine" for name, _ in whole[0].calls)
