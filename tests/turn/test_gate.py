"""`routes/eval.jsonl`: no version serves that sends one of its lines elsewhere."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.building import Builder, prove
from gateway.clock import SystemClock
from gateway.errors import ConfigError
from gateway.settings import Settings
from tests.routing.hashing_encoder import HashingEncoder
from tests.serving import Served, serving, write_route

CONFIG: dict[str, Any] = {
    "backends": {"b": {"provider": "demo"}},
    "models": {"m": {"backends": ["b"]}},
    # So short that no text would be encoded in time one by one.
    "router": {"default": "m", "semantic": {"encoder": "minilm", "timeout_ms": 0.001}},
    "tools": {"plugins": []},
    "keys": {"static": {"narrow": {"key": "sk-narrow-1234567890", "routes": ["music"]}}},
}
PARCELS = ["where is my parcel", "track my package", "has my order been shipped", "when will it be delivered"]
SONGS = ["play some jazz", "put on a song", "start my playlist", "turn the music up"]
ROUTES: dict[str, dict[str, Any]] = {
    "orders": {"model": "m", "keywords": ["order status"], "utterances": PARCELS},
    "music": {"model": "m", "keywords": ["radio"], "utterances": SONGS},
}
LINES = [
    {"text": "order status please", "route": "orders"},
    {"text": "where has my parcel gone", "route": "orders"},
    {"text": "play a jazz song", "route": "music"},
    {"text": "what is the capital of france", "route": None},
    {"text": "order status please", "route": None, "key": "narrow"},
    {"messages": [{"role": "user", "content": "turn the radio on"}], "route": "music", "tags": ["vip"]},
]
ROOT_KEY = {"authorization": "Bearer sk-root-1234567890"}


def settings() -> Settings:
    return Settings(GATEWAY_ADMIN_KEY="sk-root-1234567890")


def write_lines(folder: Path, *lines: Any) -> None:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "routes").mkdir(exist_ok=True)
    (folder / "routes" / "eval.jsonl").write_text(text + "\n", encoding="utf-8")


def write_all(folder: Path) -> tuple[Path, Path, Settings]:
    (folder / "gateway.yaml").write_text(yaml.safe_dump(CONFIG))
    (folder / "routes").mkdir(exist_ok=True)
    for name, route in ROUTES.items():
        write_route(folder, name, route)
    return folder / "gateway.yaml", folder / "routes", settings()


async def ask(on: Served, text: str) -> Any:
    _, headers, _ = await on.post(
        "/v1/chat/completions", {"model": "auto", "messages": [{"role": "user", "content": text}]}, **ROOT_KEY
    )
    return headers["x-gateway-route"], headers["x-gateway-version"]


async def test_a_reload_that_breaks_a_line_is_refused_and_the_old_version_serves_on(tmp_path: Path) -> None:
    write_lines(tmp_path, *LINES)
    async with serving(tmp_path, CONFIG, ROUTES, settings=settings()) as on:
        before = await ask(on, "order status")
        assert before[0] == "orders"
        # The rule is taken away, and what the route's utterances say.
        write_route(
            tmp_path, "orders", {"model": "m", "keywords": ["tracking"], "utterances": ["a cheese pizza recipe"]}
        )
        status, _, body = await on.post("/v1/reload", {}, **ROOT_KEY)
        assert (status, body["error"]["code"]) == (400, "config_invalid")
        problems = {problem["line"]: problem for problem in body["problems"]}
        assert set(problems) == {1, 2}
        assert all(problem["file"].endswith("routes/eval.jsonl") for problem in problems.values())
        assert problems[2]["message"].startswith("'where has my parcel gone' has to go to `orders`, and goes to ")
        assert "nearest 'a cheese pizza recipe'" in problems[2]["message"]
        assert await ask(on, "order status") == before
        _, _, state = await on.get("/v1/config", **ROOT_KEY)
        assert [problem["line"] for problem in state["last_error"]["problems"]] == [1, 2]
        # With the route as it was but other lines, all of them held, a new version serves.
        write_route(tmp_path, "orders", ROUTES["orders"])
        write_lines(tmp_path, *LINES[:4])
        status, _, state = await on.post("/v1/reload", {}, **ROOT_KEY)
        assert (status, state["generation"], state["last_error"]) == (200, 2, None)


async def test_a_changed_gate_alone_is_passed_before_it_counts(tmp_path: Path) -> None:
    async with serving(tmp_path, CONFIG, ROUTES, settings=settings()) as on:
        write_lines(tmp_path, {"text": "order status", "route": "music"})
        status, _, body = await on.post("/v1/reload", {}, **ROOT_KEY)
        assert (status, [problem["line"] for problem in body["problems"]]) == (400, [1])
        assert "(keyword 'order status')" in body["problems"][0]["message"]


async def test_what_does_not_pass_does_not_start(tmp_path: Path) -> None:
    write_lines(tmp_path, *LINES, "", {"text": "order status", "route": "music"})
    with pytest.raises(ConfigError) as refused:
        async with serving(tmp_path, CONFIG, ROUTES, settings=settings()):
            pass
    assert [(Path(p.file).name, p.line) for p in refused.value.problems] == [("eval.jsonl", 8)]
    with pytest.raises(ConfigError) as checked:
        await prove(*write_all(tmp_path))
    assert [problem.line for problem in checked.value.problems] == [8]


async def test_a_broken_encoder_passes_no_line_that_needs_it(tmp_path: Path) -> None:
    write_lines(tmp_path, *LINES)
    builder = Builder(*write_all(tmp_path), SystemClock(), root=tmp_path)
    builder._encoders._made["minilm"] = encoder = HashingEncoder("minilm")
    encoder.failing = OSError("gone")
    with pytest.raises(ConfigError) as refused:
        await builder.draft(1, None, None)
    await builder.close()
    assert [problem.line for problem in refused.value.problems] == [2, 3]
    assert "goes to the default (encoder_failed)" in refused.value.problems[0].message


BROKEN = {
    "no json": "malformed",
    '{"text": "a"}': "route",
    '{"text": "a", "route": "nowhere"}': "there is no route `nowhere`",
    '{"text": "a", "messages": [], "route": null}': "either `text` or `messages`",
    '{"route": null}': "either `text` or `messages`",
    '{"text": "a", "route": null, "key": "nobody"}': "there is no key `nobody`",
    '{"text": "a", "route": null, "expect": "b"}': "expect",
    '{"messages": [{"role": "nobody", "content": "a"}], "route": null}': "nobody",
}


async def test_a_line_that_cannot_be_read_is_a_problem_of_its_own(tmp_path: Path) -> None:
    write_lines(tmp_path, *BROKEN)
    with pytest.raises(ConfigError) as refused:
        await prove(*write_all(tmp_path))
    assert [problem.line for problem in refused.value.problems] == list(range(1, len(BROKEN) + 1))
    for problem, words in zip(refused.value.problems, BROKEN.values(), strict=True):
        assert words in problem.message


async def test_a_gate_of_many_lines_lets_the_event_loop_go_on_and_reads_them_once(tmp_path: Path) -> None:
    many = [{"text": f"order status of number {n}, and where is my parcel", "route": "orders"} for n in range(50)]
    write_lines(tmp_path, *many, *({"text": f"play {n} jazz songs please", "route": "music"} for n in range(200)))
    builder = Builder(*write_all(tmp_path), SystemClock(), root=tmp_path)
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    beating = asyncio.create_task(beat())
    try:
        first = (await builder.draft(1, None, None)).value
        took = time.monotonic()
        write_lines(tmp_path, *many)
        second = (await builder.draft(2, first, None)).value
        assert second is not first
        assert time.monotonic() - took < 10
        assert longest < 3, "seconds in which nothing else could be answered"
    finally:
        beating.cancel()
    await builder.dismiss(first)
    await builder.dismiss(second)
    await builder.close()


async def test_more_mistakes_than_anybody_reads_are_counted(tmp_path: Path) -> None:
    write_lines(tmp_path, *({"text": f"order status {n}", "route": "music"} for n in range(130)))
    with pytest.raises(ConfigError) as refused:
        await prove(*write_all(tmp_path))
    assert len(refused.value.problems) == 101
    assert refused.value.problems[-1].message == "and 30 more lines go elsewhere"
    assert refused.value.problems[-1].line == 101
