"""Long-term memory over real sockets: what is remembered, whose it is, and what is never kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.scribe.memory import told, worth_remembering
from gateway.store.memory_records import MemoryRow
from gateway.turn.remembering import _scores
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream, answer

PATH = "/v1/chat/completions"


def remembering(base_url: str, **more: Any) -> dict[str, Any]:
    return native_config(base_url, **{"context": {"memory": {"enabled": True}}, **more})


async def ask(on: Served, text: str, **headers: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    status, _, got = await on.post(PATH, body, **headers)
    assert status == 200, got
    remember = on.gateway.turns._scribe._remembering
    assert remember is not None
    await remember.settled()


async def test_what_a_user_wants_to_last_is_told_in_the_next_conversation(tmp_path: Path) -> None:
    keys = {"a": {"key": "sk-a"}, "b": {"key": "sk-b"}}
    config: dict[str, Any] = {"keys": {"auth": "required", "static": keys}}
    a, b = {"authorization": "Bearer sk-a"}, {"authorization": "Bearer sk-b"}
    replies = answer("The cause was a broken scale. I wrote it down.")
    async with (
        ScriptedUpstream(replies, then=answer("ok")) as up,
        serving(tmp_path, remembering(up.base_url, **config)) as on,
    ):
        await ask(on, "From now on answer in French. Why was the scale wrong?", **a)
        _, _, listed = await on.get("/v1/memories", **a)
        kinds = {each["text"]: each["kind"] for each in listed["data"]}
        assert kinds == {"From now on answer in French.": "preference", "The cause was a broken scale.": "conclusion"}
        await ask(on, "What was wrong with the broken scale?", **a)
        last = up.requests[-1].messages[-1]["content"]
        assert "- From now on answer in French. (trace " in last
        assert "- The cause was a broken scale. (trace " in last
        assert last.endswith("What was wrong with the broken scale?")
        # Of another owner's nothing is seen, nor can it be reached.
        await ask(on, "What was wrong with the broken scale?", **b)
        assert up.requests[-1].messages == [{"role": "user", "content": "What was wrong with the broken scale?"}]
        memory_id = listed["data"][0]["id"]
        for method in ("GET", "DELETE"):
            assert (await on.ask(method, f"/v1/memories/{memory_id}", None, **b))[0] == 404
        # It is not said twice, can be corrected, and forgotten.
        await ask(on, "From now on answer in French.", **a)
        assert len((await on.get("/v1/memories", **a))[2]["data"]) == 2
        async with on.http.patch(
            f"{on.url}/v1/memories/{memory_id}", json={"text": "Answer in German, always."}, headers=a
        ) as response:
            assert (response.status, (await response.json())["text"]) == (200, "Answer in German, always.")
        _, _, page = await on.get("/v1/memories?limit=1", **a)
        assert page["has_more"]
        _, _, rest = await on.get(f"/v1/memories?limit=1&after={page['last_id']}", **a)
        assert {page["data"][0]["id"], rest["data"][0]["id"]} == {each["id"] for each in listed["data"]}
        for each in listed["data"]:
            assert (await on.ask("DELETE", f"/v1/memories/{each['id']}", None, **a))[0] == 200
        await ask(on, "What was wrong with the broken scale?", **a)
        assert len(up.requests[-1].messages[-1]["content"]) < 60


async def test_nothing_is_remembered_unless_it_is_wanted_and_nothing_private_ever(tmp_path: Path) -> None:
    (tmp_path / "off").mkdir()
    (tmp_path / "on").mkdir()
    async with ScriptedUpstream(then=answer("ok")) as up:
        async with serving(tmp_path / "off", native_config(up.base_url)) as on:
            await ask(on, "Always answer in French.")
            assert (await on.get("/v1/memories"))[2]["data"] == []
        private = remembering(up.base_url, privacy={"mode": "mask"})
        async with serving(tmp_path / "on", private) as on:
            await ask(on, "Always write to anna@example.com about it. Always be brief, please.")
            _, _, listed = await on.get("/v1/memories")
            assert [each["text"] for each in listed["data"]] == ["Always be brief, please."]
            where = f"{on.url}/v1/memories/{listed['data'][0]['id']}"
            async with on.http.patch(where, json={"text": "Write to anna@example.com."}) as response:
                assert (response.status, (await response.json())["error"]["param"]) == (400, "text")
            assert b"anna@example.com" not in (tmp_path / "on" / "hermes.db").read_bytes()


def test_alike_vectors_are_found_and_others_are_not() -> None:
    def row(text: str, vector: list[float], space: str = "s", kind: str = "fact") -> MemoryRow:
        packed = np.array(vector, dtype="<f4").tobytes()
        return MemoryRow(
            id=text,
            owner="me",
            kind=kind,
            text=text,
            source="t",
            space=space,
            vector=packed,
            created_at=1,
            updated_at=1,
        )

    rows = [
        row("near", [1, 0]),
        row("far", [0, 1]),
        row("other space", [1, 0], "x"),
        row("wish", [0, 1], kind="preference"),
    ]
    scores = _scores(rows, "question", "s", np.array([1, 0], dtype="float32"))
    assert scores[0] == pytest.approx(1.0)
    assert scores[1:3] == [0.0, 0.0]
    assert 0 < scores[3] < 0.1


def test_sentences_worth_remembering() -> None:
    found = worth_remembering(
        "我叫王小明。以后请用中文回答。What is it? Do I always have to ask? My desk is Berlin.",
        "Hello. 因此选择方案二。",
    )
    assert [(each.kind, each.text) for each in found] == [
        ("fact", "我叫王小明。"),
        ("preference", "以后请用中文回答。"),
        ("fact", "My desk is Berlin."),
        ("conclusion", "因此选择方案二。"),
    ]


def test_lines_are_told_as_long_as_there_is_room() -> None:
    memories = [("Be brief.", "trace 1", 0.0), ("word " * 200, "trace 2", 0.0)]
    assert told(memories, 60) == ("- Be brief. (trace 1, 1970-01-01)",)
    assert json.dumps(told(memories, 0)) == "[]"


async def test_what_is_said_of_something_later_takes_the_place_of_what_was_said_of_it(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("ok")) as up, serving(tmp_path, remembering(up.base_url)) as on:
        for text in ("My desk is Berlin.", "Our codename is Kestrel.", "My desk is Rome now."):
            await ask(on, text)
        _, _, listed = await on.get("/v1/memories")
        assert [each["text"] for each in listed["data"]] == ["Our codename is Kestrel.", "My desk is Rome now."]
        await ask(on, "Which desk and which codename do I have?")
        told_then = up.requests[-1].messages[-1]["content"]
        assert told_then.index("Kestrel") < told_then.index("Rome")
