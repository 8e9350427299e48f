"""`hermes-gateway suggest`, over real turns of a served gateway and over its database."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.commands import suggest
from gateway.commands.suggest import _quoted
from gateway.config.document import read_document
from gateway.config.variables import Variables
from gateway.routing.decision import Candidate, Decision
from gateway.routing.suggestions import Asked, is_telling
from gateway.routing.suggestions import suggest as grouped
from tests.routing.test_index import unit
from tests.serving import Served, serving

CONFIG: dict[str, Any] = {
    "backends": {"demo": {"provider": "demo"}},
    "models": {"demo": {"backends": ["demo"]}},
    "router": {"default": "demo", "semantic": {"encoder": "multilingual", "timeout_ms": 20_000}},
    "tools": {"plugins": []},
}
ROUTES = {
    "orders": {
        "model": "demo",
        "utterances": [
            "where is my parcel",
            "has my order been shipped",
            "when will my delivery arrive",
            "track my package",
            "is my parcel on its way",
            "the parcel has not come yet",
        ],
    },
    "refunds": {
        "model": "demo",
        "utterances": [
            "i want my money back",
            "how do i get a refund",
            "refund my purchase please",
            "return this item for a refund",
            "pay me back",
            "cancel it and return the money",
        ],
    },
    "ruled": {"model": "demo", "keywords": ["banana"]},
}
ASKED = ["sing me a song", "sing me a song", "please sing me a song", "banana", "where is my parcel"]


async def ask(on: Served, text: str) -> None:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    status, _, answer = await on.post("/v1/chat/completions", body)
    assert status == 200, answer


async def suggested(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str, url: str = ""
) -> str:
    monkeypatch.chdir(folder)
    for name, value in (("GATEWAY_URL", url), ("GATEWAY_KEY", "any" if url else "")):
        monkeypatch.setenv(name, value)
    arguments = argparse.Namespace(config=folder / "gateway.yaml", routes=folder / "routes", format=form, limit=1000)
    assert await asyncio.to_thread(suggest.run, arguments) == 0
    return capsys.readouterr().out


async def test_rejected_texts_are_grouped_from_http_and_from_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(tmp_path, CONFIG, ROUTES) as on:
        await on.gateway.versions.current.router.prepare()
        for text in ASKED:
            await ask(on, text)
        over_http = json.loads(await suggested(tmp_path, monkeypatch, capsys, "json", on.url))
    assert over_http["turns"] == 4
    (group,) = over_http["data"]
    assert (group["kind"], group["n"]) == ("none", 3)
    assert [(text["text"], text["n"], text["reason"]) for text in group["texts"]] == [
        ("sing me a song", 2, "below_threshold"),
        ("please sing me a song", 1, "below_threshold"),
    ]
    text = await suggested(tmp_path, monkeypatch, capsys, "text")
    assert yaml.safe_load(text) == {
        "router": {"semantic": {"none": ["sing me a song", "please sing me a song"]}},
    }
    # Pasted, it does what it promises.
    told = {
        **CONFIG,
        "router": {"default": "demo", "semantic": {"encoder": "multilingual", "none": ["sing me a song"]}},
    }
    (tmp_path / "gateway.yaml").write_text(
        yaml.safe_dump({**told, "storage": {"database": f"sqlite:///{tmp_path / 'hermes.db'}"}})
    )
    assert json.loads(await suggested(tmp_path, monkeypatch, capsys, "json"))["data"] == []


async def test_traces_without_content_suggest_nothing_and_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**CONFIG, "observe": {"traces": {"content": "none"}}}
    async with serving(tmp_path, config, ROUTES) as on:
        await on.gateway.versions.current.router.prepare()
        await ask(on, "sing me a song")
        assert await on.gateway.traces.flush()
    said = await suggested(tmp_path, monkeypatch, capsys, "text")
    assert "1 of them holds no text: see `observe.traces.content`" in said
    assert "sing" not in said


def decided(score: float, threshold: float = 0.5, **more: Any) -> Decision:
    candidate = Candidate(more.pop("near", "a"), score, threshold, 0.3, "like this", (), "below_threshold")
    stranger = Candidate("-", 0.9, None, None, "nothing")
    return Decision(None, "m", "default", "1", reason="below_threshold", candidates=(stranger, candidate), **more)


def test_what_is_near_its_route_might_be_an_utterance_and_the_rest_belongs_nowhere() -> None:
    vectors = unit([1, 0, 0], [1, 0.2, 0], [0, 1, 0], [0, 0, 1])
    asked = [
        Asked("far", 1, decided(-0.5)),
        Asked("far too", 4, decided(-0.6)),
        Asked("near", 2, decided(0.4, near="b")),
        Asked("also", 2, decided(0.45)),
    ]
    found = grouped(asked, vectors)
    assert [(group.kind, group.route, group.n, [text.text for text in group.texts]) for group in found] == [
        ("none", "a", 5, ["far too", "far"]),
        ("utterances", "a", 2, ["also"]),
        ("utterances", "b", 2, ["near"]),
    ]


def test_only_what_likeness_left_open_is_telling() -> None:
    some = decided(0.4).candidates
    assert is_telling(decided(0.4))
    for reason, telling in (("ambiguous", True), ("like_none", False), ("encoder_timeout", False), ("no_text", False)):
        assert is_telling(Decision(None, "m", "default", "1", reason=reason, candidates=some)) == telling
    for margin, telling in ((0.01, True), (0.3, False)):
        assert is_telling(Decision("a", "m", "semantic", "1", 0.6, margin, candidates=some)) == telling
    assert not is_telling(Decision("a", "m", "rule", "1", candidates=some))


@pytest.mark.parametrize(
    "text",
    ["a: b # c", "${HOME} and $${X}", 'say "no"\n\x1b[31m\x7f', "\u2028x\u0085\ufeff", "中文 😀", "- 'x'", "null"],
)
def test_what_is_pasted_is_read_as_it_was_asked(text: str) -> None:
    quoted = _quoted(text)
    assert quoted.isprintable()
    document = read_document("x.yaml", f"none:\n  - {quoted}  # once\n".encode(), Variables({"HOME": "/root"}), [])
    assert document is not None
    assert document.value == {"none": [text]}
