"""What models write in the ReAct protocol: read as it was meant, however it is cut."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.react_calls import Tool, Tools
from gateway.chat.react_reader import ReactReader

TOOLS = Tools(
    [
        Tool("lookup", "", {"properties": {"what": {"type": "string"}}}),
        Tool(
            "convert",
            "",
            {"properties": {"amount": {"type": "integer"}, "to": {"type": "string"}}, "required": ["amount", "to"]},
        ),
        Tool("now", "", {}),
        Tool("empty", "", {}),
        Tool("sql", "", {}, custom=True),
    ]
)

Heard = tuple[str, str, list[tuple[str, Any]], bool]


def heard(*pieces: str, most_calls: int = 16) -> Heard:
    """Text, thoughts, calls (arguments parsed where they are JSON) and whether it went on alone."""
    numbers = count()
    reader = ReactReader(TOOLS, lambda: f"c{next(numbers)}", most_calls=most_calls)
    said = [each for piece in pieces for each in reader.feed(piece)]
    said += reader.close()
    calls = [(each.call.name, _parsed(each.call.arguments)) for each in said if each.call is not None]
    text, thought = ("".join(each.text for each in said if each.kind == kind) for kind in ("text", "thought"))
    return text, thought, calls, reader.ended_itself


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


X: Any = ("lookup", {"what": "x"})
JSON = '{"what": "x"}'
QUOTED = f"So:\n```\nThought: hm\nAction: lookup\nAction Input: {JSON}\n```\nDone."
NOTES = "Notes:\n- Observation: sales rose\n- Thought: good\n- Action: now\nEnd."
CASES: dict[str, tuple[str, tuple[str, str, list[Any]]]] = {
    "plain text is the answer": ("It is 42.\n\nReally.\n", ("It is 42.\n\nReally.\n", "", [])),
    "an answer": ("Thought: I know it.\nFinal Answer: It is 42.", ("It is 42.", "I know it.", [])),
    "an answer of several lines": ("Final Answer:\nOne\n\n- two\n", ("One\n\n- two", "", [])),
    "a call": (f"Thought: I need it.\nAction: lookup\nAction Input: {JSON}", ("", "I need it.", [X])),
    "full width": (f"思考：我要查一下\n行动：lookup\n行动输入：{JSON}", ("", "我要查一下", [X])),
    "full width colons behind English": (f"Thought：hm\nAction：lookup\nAction Input：{JSON}", ("", "hm", [X])),
    "a Chinese answer": ("思考：我知道了\n最终答案：四十二。", ("四十二。", "我知道了", [])),
    "bold": (f"**Thought:** hm\n**Action:** `lookup`\n**Action Input:** {JSON}", ("", "hm", [X])),
    "a bold answer": ("**Final Answer:** It is **42**.", ("It is **42**.", "", [])),
    "an answer that begins bold": ("Final Answer: **42**", ("**42**", "", [])),
    "headings and numbers": (f"### Action 1: lookup\n### Action Input 1: {JSON}", ("", "", [X])),
    "lower case": (f"thought: hm\naction: Lookup\naction input: {JSON}", ("", "hm", [X])),
    "a preamble": (f"Let me see.\n\nAction: lookup\nAction Input: {JSON}", ("Let me see.", "", [X])),
    "one line": (f"Thought: I need it. Action: lookup Action Input: {JSON}", ("", "I need it.", [X])),
    "an answer within a thought": ("Thought: I now know. Final Answer: 42", ("42", "I now know.", [])),
    "fenced": (f"```\nThought: hm\nAction: lookup\nAction Input: {JSON}\n```", ("", "hm", [X])),
    "a fenced answer": ("```\nFinal Answer: 42\n```", ("42", "", [])),
    "a fenced input": (f"Action: lookup\nAction Input:\n```json\n{JSON}\n```\nI wait.", ("", "", [X])),
    "an object": ('Action:\n```json\n{"action": "lookup", "action_input": {"what": "x"}}\n```', ("", "", [X])),
    "an object on the line": ('Action: {"name": "lookup", "arguments": {"what": "x"}}', ("", "", [X])),
    "an object that answers": ('Action: {"action": "Final Answer", "action_input": "It is 42."}', ("It is 42.", "", [])),
    "as a function": ('Action: lookup({"what": "x"})', ("", "", [X])),
    "named arguments": ('Action: lookup(what="x")', ("", "", [X])),
    "Python": ("Action: lookup\nAction Input: {'what': 'x'}", ("", "", [X])),
    "bare": ("Action: lookup\nAction Input: x", ("", "", [X])),
    "bare and quoted": ('Action: lookup\nAction Input: "x"', ("", "", [X])),
    "pairs": ("Action: convert\nAction Input: amount=5, to=EUR", ("", "", [("convert", {"amount": 5, "to": "EUR"})])),
    "lines": ("Action: convert\nAction Input:\namount: 5\nto: EUR", ("", "", [("convert", {"amount": 5, "to": "EUR"})])),
    "no input": ("Thought: the time\nAction: now", ("", "the time", [("now", {})])),
    "no input, said": ("Action: now\nAction Input: None", ("", "", [("now", {})])),
    "the name below": (f"Action:\nlookup\nAction Input: {JSON}", ("", "", [X])),
    "words around the name": (f"Action: use the lookup tool\nAction Input: {JSON}", ("", "", [X])),
    "free text": ("Action: sql\nAction Input: select 1\nfrom t", ("", "", [("sql", "select 1\nfrom t")])),
    "a name nobody offered": (f"Action: search\nAction Input: {JSON}", ("", "", [("search", {"what": "x"})])),
    "several": (
        f"Action: lookup\nAction Input: {JSON}\nAction: now\nAction Input: {{}}\n\nAction: lookup\nAction Input: {JSON}",
        ("", "", [X, ("now", {}), X]),
    ),
    "labels in an input": (
        'Action: lookup\nAction Input: {"what": "a\nAction: now\nObservation: b"}',
        ("", "", [("lookup", '{"what": "a\nAction: now\nObservation: b"}')]),
    ),
    "no action": ("Thought: hm\nAction: None\nFinal Answer: 42", ("42", "hm", [])),
    "no action and no input": ("Thought: hm\nAction: None\nAction Input: None\n\nFinal Answer: 42", ("42", "hm", [])),
    "no action and nothing seen": ("Action: N/A\nAction Input: {}\nObservation: N/A\nFinal Answer: 42", ("42", "", [])),
    "a tool that is named like none": ("Action: empty", ("", "", [("empty", {})])),
    "traditional characters": (f"思考：要查\n動作：lookup\n動作輸入：{JSON}", ("", "要查", [X])),
    "an answer in traditional characters": ("最終答案：四十二。", ("四十二。", "", [])),
    "an answer that quotes the protocol": (f"Final Answer: {QUOTED}", (QUOTED, "", [])),
    "an answer with a list of its own": (f"Final Answer: {NOTES}", (NOTES, "", [])),
    "text with a heading of its own": ("**Observation:** it is blue.\nEnd", ("**Observation:** it is blue.\nEnd", "", [])),
    "only a thought": ("Thought: Hello there!", ("Hello there!", "Hello there!", [])),
    "a thinking model": (f"<think>\nhm Action: now\n</think>\nAction: lookup\nAction Input: {JSON}", ("", "hm Action: now", [X])),
    "a thinking model's answer": ("<think>hm</think>\n\nIt is 42.", ("It is 42.", "hm", [])),
    "an action that is none": ("Plan\nAction: restart the router\nResult: fine", ("Plan\nAction: restart the router\nResult: fine", "", [])),
    "code": ("See:\n```python\nx = 1\n```\nDone", ("See:\n```python\nx = 1\n```\nDone", "", [])),
    "cut off": ('Action: lookup\nAction Input: {"what": "x', ("", "", [("lookup", '{"what": "x')])),
    "an action without a name": ("Action:", ("Action:", "", [])),
    "nothing": ("", ("", "", [])),
}  # fmt: skip
MADE_UP: dict[str, tuple[str, tuple[str, str, list[Any]]]] = {
    "an observation": (f"Action: lookup\nAction Input: {JSON}\nObservation: 7\nThought: so\nFinal Answer: 7", ("", "", [X])),
    "a Chinese one": (f"行动：lookup\n行动输入：{JSON}\n观察：7\n最终答案：7", ("", "", [X])),
    "behind bare arguments": ("Action: lookup\nAction Input: x\nObservation: 7", ("", "", [X])),
    "behind an action without input": ("Action: now\nObservation: noon\nFinal Answer: noon", ("", "", [("now", {})])),
    "behind an answer": ("Final Answer: 42\nObservation: ok\nAction: now", ("42", "", [])),
    "a thought behind an answer": ("Final Answer: 42\n\nThought: what else?\nAction: now", ("42", "", [])),
    "an action behind an answer": (f"Final Answer: 42\nAction: lookup\nAction Input: {JSON}", ("42", "", [])),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_model_wrote_is_read_as_it_was_meant(name: str) -> None:
    written, (text, thought, calls) = CASES[name]
    assert heard(written) == (text, thought, calls, False)


@pytest.mark.parametrize("name", MADE_UP)
def test_what_a_model_makes_up_behind_its_action_counts_for_nothing(name: str) -> None:
    written, (text, thought, calls) = MADE_UP[name]
    assert heard(written) == (text, thought, calls, True)


WORDS = [
    *(
        "Thought:",
        "Action:",
        "Action Input:",
        "Observation:",
        "Final Answer:",
        "思考：",
        "行动：",
        "行动输入：",
        "观察：",
    ),
    *("lookup", "now", "nothing", JSON, '{"what": "', "x", "\n", "\n\n", " ", "```", "```json", "**", "<think>"),
    *("- ", "Action: None", "</think>", "Act", "Final", "None", "(", ")", "{", "}", '"', "."),
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_however_an_answer_is_cut_the_same_is_read(data: st.DataObject) -> None:
    whole = data.draw(
        st.sampled_from([written for written, _ in (*CASES.values(), *MADE_UP.values())])
        | st.lists(st.sampled_from(WORDS), max_size=25).map("".join)
    )
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=12)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert heard(*pieces) == heard(whole)
    assert heard(*whole) == heard(whole)


def test_text_is_shown_as_it_comes_and_only_what_may_be_protocol_waits() -> None:
    reader = ReactReader(TOOLS, lambda: "c", most_calls=1)
    shown = [
        "".join(each.text for each in reader.feed(piece)) for piece in ("It ", "is 4", "2.\nAct", "ually", "\n", "A")
    ]
    assert shown == ["It", " is 4", "2.", "\nActually", "", ""]
    assert "".join(each.text for each in reader.close()) == "\nA"


def test_of_parallel_actions_as_many_count_as_are_asked_for() -> None:
    written = f"Action: lookup\nAction Input: {JSON}\nAction: now"
    assert heard(written, most_calls=1)[2] == [X]
    # Who must not call anything has what it thought for an answer.
    assert heard(f"Thought: hm\n{written}", most_calls=0)[:3] == ("hm", "hm", [])
