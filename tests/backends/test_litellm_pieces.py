from __future__ import annotations

from typing import Any

from gateway.backends.litellm_pieces import Joined


def piece(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": None, "role": None, **delta}, "finish_reason": reason}
    return {"id": "i", "created": 7, "model": "served", "choices": [choice], "usage": None, **more}


def generic(text: str = "", **more: Any) -> dict[str, Any]:
    return {
        "text": text,
        "is_finished": False,
        "finish_reason": "",
        "usage": None,
        "index": 0,
        "tool_use": None,
        **more,
    }


def said(joined: Joined, *pieces: dict[str, Any]) -> list[dict[str, Any]]:
    return [chunk for each in pieces if (chunk := joined.take(each)) is not None]


def test_pieces_without_a_word_are_left_out_and_the_first_says_the_role() -> None:
    chunks = said(Joined("m"), piece({"content": ""}), piece({"content": "a"}), piece({}), piece({"content": "b"}))
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["a", "b"]
    assert [chunk["choices"][0]["delta"]["role"] for chunk in chunks] == ["assistant", None]
    assert {chunk["model"] for chunk in chunks} == {"m"}


def test_the_reason_and_the_usage_come_last_and_once() -> None:
    joined = Joined("m")
    early = {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    late = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "prompt_tokens_details": None}
    chunks = said(joined, piece({}, usage=early), piece({"content": "a"}, "length"), piece({}, usage=late))
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None]
    end, usage = joined.end()
    assert end["choices"][0]["finish_reason"] == "length"
    assert (end["id"], end["created"], usage["choices"]) == ("i", 7, [])
    assert usage["usage"] == {**early, "completion_tokens": 5, "total_tokens": 8}


def test_old_pieces_count_too_and_the_mark_behind_the_end_changes_no_reason() -> None:
    joined = Joined("m")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0}
    chunks = said(
        joined,
        generic("a"),
        generic(tool_use=call),
        piece({}, "tool_calls"),
        generic(is_finished=True, finish_reason="stop"),
    )
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["a", ""]
    assert chunks[1]["choices"][0]["delta"]["tool_calls"] == [call]
    assert joined.reason == "tool_calls"


def test_thoughts_that_are_not_counted_are_known() -> None:
    joined = Joined("m")
    said(joined, piece({"reasoning_content": "h"}), piece({"reasoning_content": "m"}))
    assert not joined.counted
    said(joined, piece({}, "stop", usage={"prompt_tokens": 1, "completion_tokens": 4}))
    assert (joined.counted, joined.uncounted_thoughts) == (True, "hm")
    joined.count_thoughts(9)
    assert joined.usage["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert not joined.uncounted_thoughts
