"""What `eval`, `explain` and `POST /v1/route` say about a text is what a request with that text gets."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gateway.building import Builder
from gateway.clock import SystemClock
from gateway.commands import calibrate, explain
from gateway.commands import eval as evaluate
from gateway.routing.decision import Decision
from gateway.settings import Settings
from gateway.turn.labelled import decide_all, read_labelled
from gateway.turn.prepare import decide
from tests.serving import Served, serving, write_route

CONFIG: dict[str, Any] = {
    "backends": {"b": {"provider": "demo"}},
    "models": {"m": {"backends": ["b"]}},
    "router": {"default": "m", "semantic": {"encoder": "auto", "timeout_ms": 60_000}},
    "tools": {"plugins": []},
}
ROUTES: dict[str, dict[str, Any]] = {
    "billing": {
        "model": "m",
        "keywords": ["credit note"],
        "none_of": ["jazz"],
        "utterances": ["refund my invoice", "I was charged twice", "this bill is wrong", "发票开错了", "请给我退款"],
    },
    "orders": {
        "model": "m",
        "keywords": ["order status", "订单"],
        "utterances": [
            "where is my parcel",
            "has it been shipped",
            "track my package",
            "我的包裹到哪了",
            "什么时候发货",
        ],
    },
    "music": {
        "model": "m",
        "patterns": [r"\bplay\b"],
        "utterances": ["put on some jazz", "start my playlist", "turn the volume up", "放一首歌", "把音量调大"],
    },
}
ABOUT = [
    "refund my invoice",
    "my invoice was charged two times",
    "the bill says {} euros, that is wrong",
    "where did my package {} go",
    "is parcel number {} on its way",
    "some music please",
    "a louder volume, level {}",
    "do not put on jazz {}",
    "credit note {} for the jazz record",
    "order status of {}",
    "what is the capital of country {}",
    "write a poem about the sea, {} lines",
    "帮我查一下订单 {}",
    "我的包裹 {} 还没到",
    "请退款给我 {} 元",
    "来一首歌 {}",
    "今天天气怎么样 {}",
    "где моя посылка {}",
    "12.5% of {}",
    "  Refund   MY invoice {} ",
]
TEXTS = [about.format(n) for n in range(2) for about in ABOUT]
# What a decision says; `cached` and what only explaining adds may differ.
SAID = ("route", "model", "strategy", "score", "margin", "reason", "version")


def said(decision: Any) -> dict[str, Any]:
    values = msgspec.to_builtins(decision) if isinstance(decision, Decision) else decision
    return {name: values[name] for name in SAID}


async def of_requests(on: Served, texts: Sequence[str]) -> list[dict[str, Any]]:
    """What the traces of real requests say was decided."""
    answers = []
    for text in texts:
        body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
        status, headers, _ = await on.post("/v1/chat/completions", body)
        assert status == 200
        answers.append(headers)
    decided = []
    for headers in answers:
        trace = await on.trace(headers["x-gateway-trace"])
        (made,) = [event["data"] for event in trace["events"] if event["type"] == "decision.made"]
        assert made["version"] == headers["x-gateway-version"]
        decided.append(said(made))
    return decided


async def of_endpoint(on: Served, text: str) -> dict[str, Any]:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    _, _, decision = await on.post("/v1/route", body)
    return said(decision)


def asked(folder: Path, **more: Any) -> Namespace:
    return Namespace(config=folder / "gateway.yaml", routes=folder / "routes", **more)


async def of_eval(folder: Path, texts: list[str]) -> list[dict[str, Any]]:
    file = folder / "lines.jsonl"
    file.write_text("".join(json.dumps({"text": text, "route": None}) + "\n" for text in texts), encoding="utf-8")
    _, decisions = await evaluate._decide_all(asked(folder, file=file), Settings())
    return [said(decision) for decision in decisions]


async def of_explain(folder: Path, text: str) -> dict[str, Any]:
    decision = await explain._explain(asked(folder, text=text, tag=[], key=None), Settings())
    assert decision is not None
    return said(decision)


async def until_prepared(on: Served) -> None:
    async with asyncio.timeout(60):
        await on.gateway.versions.current.router.prepare()


@pytest.mark.parametrize("calibrated", [False, True], ids=["self-fitted", "calibrated"])
async def test_eval_decides_as_requests_are_decided_cold_and_warm(tmp_path: Path, calibrated: bool) -> None:
    async with serving(tmp_path, CONFIG, ROUTES) as on:
        version = on.gateway.versions.current.version
        if calibrated:
            assert await calibrate._run(asked(tmp_path, file=None, check=False), Settings()) == 0
            file = tmp_path / "routes" / "calibration.json"
            # Moved by hand, so that it shows who uses it.
            moved = json.loads(file.read_text())
            for found in moved["encoders"].values():
                found["thresholds"] = {name: value + 0.55 for name, value in found["thresholds"].items()}
            file.write_text(json.dumps(moved))
            await on.gateway.versions.reload()
            assert on.gateway.versions.current.version != version
        await until_prepared(on)
        _, _, state = await on.get("/v1/config")
        assert state["calibration"] == {"state": "fresh" if calibrated else "none", "reason": None}
        measured = await of_eval(tmp_path, TEXTS)
        cold = await of_requests(on, TEXTS)
        warm = await of_requests(on, TEXTS)
        assert cold == warm
        for text, live, told in zip(TEXTS, cold, measured, strict=True):
            # A process that only looks counts its generations from 1.
            assert {**told, "version": ""} == {**live, "version": ""}, text
            assert told["version"].split("-")[1] == live["version"].split("-")[1]
        assert [await of_endpoint(on, text) for text in ABOUT[:3]] == await of_requests(on, ABOUT[:3])
    strategies = {each["strategy"] for each in cold}
    assert strategies == {"rule", "semantic", "default"}
    reached = sum(each["strategy"] == "semantic" for each in cold)
    assert reached < 10 if calibrated else reached > 12, reached


async def test_texts_that_are_encoded_together_are_decided_as_each_alone(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "routes").mkdir()
    for name, route in ROUTES.items():
        write_route(tmp_path, name, route)
    builder = Builder(tmp_path / "gateway.yaml", tmp_path / "routes", Settings(), SystemClock())
    together, alone = [(await builder.draft(1, None, None)).value for _ in range(2)]
    texts = [about.format(n) for n in range(100, 106) for about in ABOUT]
    lines = "\n".join(json.dumps({"text": text, "route": None}) for text in texts)
    labelled = read_labelled("lines", lines.encode(), together)
    decided = await decide_all(labelled, together, explain=True)
    for each, decision in zip(labelled, decided, strict=True):
        cold = await decide(each.request, each.principal, each.wishes, alone)
        warm = await decide(each.request, each.principal, each.wishes, alone)
        assert said(decision) == said(cold) == said(warm), each.line.text
    for snapshot in (together, alone):
        await builder.dismiss(snapshot)
    await builder.close()


async def test_what_is_explained_about_long_texts_is_what_the_trace_of_a_request_says(tmp_path: Path) -> None:
    """B006."""
    prose = "the quiet river went on between the low hills " * 390
    half = len(prose) // 2
    texts = [
        f"refund my invoice {prose}",
        f"{prose[:half]} refund my invoice {prose[half:]}",
        f"{prose} refund my invoice",
    ]
    async with serving(tmp_path, CONFIG, ROUTES) as on:
        await until_prepared(on)
        told = await of_eval(tmp_path, texts)
        by_endpoint = [await of_endpoint(on, text) for text in texts]
        cold = await of_requests(on, texts)
        warm = await of_requests(on, texts)
        by_endpoint_warm = [await of_endpoint(on, text) for text in texts]
        assert told == by_endpoint == cold == warm == by_endpoint_warm
        assert await of_explain(tmp_path, texts[1]) == cold[1]
        assert {each["version"] for each in cold} == {str(on.gateway.versions.current.version)}


async def test_a_stale_calibration_is_said_and_not_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "routes").mkdir()
    stale = {"utterances": "00", "threshold": 0.99, "margin": 0.01}
    (tmp_path / "routes" / "calibration.json").write_text(
        json.dumps({"scoring": 1, "encoders": {"minilm": stale, "multilingual": stale}})
    )
    async with serving(tmp_path, CONFIG, ROUTES) as on:
        await until_prepared(on)
        _, _, state = await on.get("/v1/config")
        assert state["calibration"]["state"] == "stale"
        assert "'minilm'" in state["calibration"]["reason"]
        assert [each["strategy"] for each in await of_requests(on, ["where is my parcel"])] == ["semantic"]
        _, _, decision = await on.post("/v1/route", {"model": "auto", "messages": [{"role": "user", "content": "x"}]})
        assert decision["calibration"].startswith("from the utterances: the calibration is stale")
    assert "the calibration is stale and not used" in capfd.readouterr().err
