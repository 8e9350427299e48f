"""Upstreams that fail in every way at every place of an answer: who is asked again, and that nobody reads a word twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.replies import Step
from tests.serving import Served, native_config, serving
from tests.upstream import (
    DONE,
    Eof,
    Frame,
    Pause,
    Reply,
    Reset,
    ScriptedUpstream,
    UpstreamRequest,
    answer,
    body,
    d,
    error,
    f,
    hang_up,
    stream,
    tc,
    u,
)

ROLE = d({"role": "assistant"})
# What has come before it fails. Of the first ones nobody has seen anything.
UNSEEN: Final[Mapping[str, tuple[Frame, ...]]] = {
    "nothing": (),
    "a role": (ROLE,),
    "an empty text": (d({"role": "assistant", "content": ""}),),
}
SEEN: Final[Mapping[str, tuple[Frame, ...]]] = {
    "a text": (ROLE, d({"content": "first "})),
    "a text beside its role": (d({"role": "assistant", "content": "first "}),),
    "thoughts": (ROLE, d({"reasoning_content": "first "})),
    "a refusal": (ROLE, d({"refusal": "first "})),
    "a call's beginning": (ROLE, tc(0, id="call_1", name="theirs", arguments='{"a":')),
    "a call of the old kind": (ROLE, d({"function_call": {"name": "theirs", "arguments": '{"a":'}})),
    "sound": (ROLE, d({"audio": {"id": "audio_1", "data": "Zmlyc3Q="}})),
}
FAILURE = Frame({"error": {"message": "overloaded", "type": "server_error"}})
BREAKS: Final[Mapping[str, Frame | Step | None]] = {
    "reset": Reset(),
    "closed": Eof(),
    "ended": None,
    "error": FAILURE,
    "garbage": b"data: {nonsense\n\n",
    "silence": Pause(3),
}
BEFORE_HEAD: Final[Mapping[str, Reply]] = {
    "reset": hang_up(),
    "closed": Reply(before=(Eof(),)),
    "500": error(500),
    "503": error(503, headers={"retry-after": "0"}),
    "429": error(429, headers={"retry-after": "0"}),
    "silence": Reply(before=(Pause(3),)),
    "garbage": body(b"<html>", headers={"content-type": "text/html"}),
}
GOOD = (ROLE, d({"content": "second"}), f("stop"), u(3, 2), DONE)
DIALECTS = pytest.mark.parametrize("dialect", ["openai", "compatible"])


FAILED_WHOLE: Final[Mapping[str, Reply]] = {
    "reset": answer("first").reset_at(100),
    "closed": answer("first").eof_at(100),
    "silence": answer("first").stall_at(100),
}
TIMES: Final = {"first_token_timeout_s": 0.5, "idle_timeout_s": 0.5, "timeout_s": 0.5}


@dataclass
class Case:
    """How the first of a model's two backends fails, each with two retries, and how often each was asked."""

    fails: Reply
    asked: Counter[str] = field(default_factory=Counter)


@asynccontextmanager
async def failing(folder: Path, cases: Mapping[str, Case], dialect: str, good: Reply) -> AsyncIterator[Served]:
    """A gateway with a model for each case, whose upstreams stand at paths of their own."""

    def reply(request: UpstreamRequest) -> Reply:
        _, case, backend, *_ = request.path.split("/")
        cases[case].asked[backend] += 1
        return cases[case].fails if backend == "b1" else good

    async with ScriptedUpstream(then=reply) as upstream:
        place = upstream.base_url.removesuffix("/v1")
        backends = {
            f"{case}-{name}": {
                "provider": "openai",
                "base_url": f"{place}/{case}/{name}",
                "model": "upstream-model",
                "dialect": dialect,
                **TIMES,
            }
            for case in cases
            for name in ("b1", "b2")
        }
        models = {case: {"backends": [f"{case}-b1", f"{case}-b2"], "retries": 2} for case in cases}
        config = native_config("", backends=backends, models=models)
        config["router"]["default"] = next(iter(cases))
        async with serving(folder, config) as gateway:
            yield gateway


async def streams(gateway: Served, cases: Mapping[str, Case]) -> dict[str, bytes]:
    """What each case's client reads, all at the same time."""
    return dict(zip(cases, await asyncio.gather(*[gateway.raw_stream(asking(case)) for case in cases]), strict=True))


def asking(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}]}


def broken(began: Mapping[str, tuple[Frame, ...]]) -> dict[str, Case]:
    """Each beginning, broken off in each way."""
    return {
        f"{place}-{how}".replace(" ", "-").replace("'", ""): Case(stream(*frames, *(() if end is None else (end,))))
        for place, frames in began.items()
        for how, end in BREAKS.items()
    }


def events(raw: bytes) -> list[dict[str, Any]]:
    found = [part.removeprefix(b"data: ") for part in raw.split(b"\n\n") if part.startswith(b"data: ")]
    assert found[-1] == b"[DONE]"
    return [json.loads(part) for part in found[:-1]]


@DIALECTS
async def test_what_breaks_behind_content_is_not_begun_anew_B011(tmp_path: Path, dialect: str) -> None:
    cases = broken(SEEN)
    async with failing(tmp_path, cases, dialect, stream(*GOOD)) as gateway:
        told = await streams(gateway, cases)
    for case, raw in told.items():
        assert cases[case].asked == {"b1": 1}, case
        *shown, last = events(raw)
        assert last["error"]["code"] in ("upstream_error", "upstream_timeout"), (case, raw)
        assert not any("error" in each for each in shown), (case, raw)
        assert raw.count(b'"first ') + raw.count(b"Zmlyc3Q=") + raw.count(b'{\\"a\\":') == 1, (case, raw)


@DIALECTS
async def test_what_breaks_before_content_is_begun_anew_B011(tmp_path: Path, dialect: str) -> None:
    cases = {**broken(UNSEEN), **{f"before-{how}": Case(reply) for how, reply in BEFORE_HEAD.items()}}
    async with failing(tmp_path, cases, dialect, stream(*GOOD)) as gateway:
        told = await streams(gateway, cases)
    for case, raw in told.items():
        assert cases[case].asked == {"b1": 3, "b2": 1}, case
        choices = [choice for each in events(raw) for choice in each["choices"]]
        assert [choice["delta"]["role"] for choice in choices if "role" in choice["delta"]] == ["assistant"], case
        assert "".join(choice["delta"].get("content") or "" for choice in choices) == "second", case


@DIALECTS
async def test_whole_answer_that_fails_is_asked_for_anew(tmp_path: Path, dialect: str) -> None:
    cases = {
        **{f"whole-{how}": Case(reply) for how, reply in FAILED_WHOLE.items()},
        **{f"before-{how}": Case(reply) for how, reply in BEFORE_HEAD.items()},
    }
    async with failing(tmp_path, cases, dialect, answer("second")) as gateway:
        told = await asyncio.gather(*[gateway.post("/v1/chat/completions", asking(case)) for case in cases])
    for case, (status, _, said) in zip(cases, told, strict=True):
        assert cases[case].asked == {"b1": 3, "b2": 1}, case
        assert (status, said["choices"][0]["message"]["content"]) == (200, "second"), case
