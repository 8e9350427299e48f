"""Field cases of routing and configuration over real sockets, and `check` on files that deceive their readers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import main
from tests.replies import answer
from tests.routing.embeddings_server import embeddings
from tests.routing.hashing_encoder import HashingEncoder
from tests.serving import Served, native_config, serving, write_route
from tests.upstream import ScriptedUpstream


async def asked(gateway: Served, text: str, path: str = "/v1/chat/completions") -> tuple[str, str]:
    """Route and strategy of a text."""
    body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    status, headers, found = await gateway.post(path, body)
    assert status == 200, found
    if path.endswith("route"):
        return found["route"] or "-", found["strategy"]
    return headers["x-gateway-route"], headers["x-gateway-strategy"]


async def test_words_of_any_spelling_are_found_and_reach_the_backend_as_sent(tmp_path: Path) -> None:
    """B001, B002, B008."""
    words = {
        "cpp": ["C++"],
        "csharp": ["C#"],
        "dotnet": [".NET"],
        "ru": ["привет"],
        "ko": ["안녕하세요"],
        "hi": ["नमस्ते"],
        "menu": ["café", "istanbul", "hello"],
        "weather": ["weather forecast", "天气"],
    }
    right = {
        "What are C++ templates?": "cpp",
        "Port this C# loop": "csharp",
        "Does .NET run on ARM?": "dotnet",
        "передай привет маме": "ru",
        "안녕하세요!": "ko",
        "नमस्ते दुनिया": "hi",
        "open a cafe\u0301 downtown": "menu",
        "hel\u200blo 👩‍👩‍👧": "menu",
        "\ufeffhello": "menu",
        "İSTANBUL": "menu",
        "ｃａｆé": "menu",
        "ＷＥＡＴＨＥＲ　ｆｏｒｅｃａｓｔ": "weather",
        "Weather \t\n  Forecast": "weather",
        "weather\u00a0forecast": "weather",
        "　天气　怎么样": "weather",
        "What are C macros?": "-",
        "vitamin C": "-",
        "the internet is slow": "-",
        "cafeteria": "-",
    }
    routes = {name: {"model": "m", "keywords": found} for name, found in words.items()}
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url), routes) as gateway,
    ):
        for text, route in right.items():
            assert await asked(gateway, text) == (route, "default" if route == "-" else "rule"), text
            assert upstream.requests[-1].messages[-1]["content"] == text
            assert (await asked(gateway, text, "/v1/route"))[0] == route
        # The rule itself in full width.
        write_route(tmp_path, "weather", {"model": "m", "keywords": ["ＷＥＡＴＨＥＲ　ｆｏｒｅｃａｓｔ", "　天　气"]})
        assert (await gateway.post("/v1/reload", {}))[0] == 200
        for text in [text for text, route in right.items() if route == "weather"]:
            assert await asked(gateway, text) == ("weather", "rule")


async def test_another_encoder_starts_from_nothing_and_refuses_the_first_one_s_thresholds(tmp_path: Path) -> None:
    """B007."""
    routes: dict[str, dict[str, Any]] = {
        "orders": {"model": "m", "utterances": ["where is my parcel", "where is my package", "parcel not here"]},
        "music": {"model": "m", "utterances": ["put on some jazz", "start a jazz song", "some jazz song"]},
    }
    known = ["where is my parcel now", "put on jazz", "some jazz", "my parcel", "start a song"]
    strange = [f"{word} lunch tomorrow" for word in ("what's for", "no", "why", "green", "many", "late", "cold", "new")]
    async with embeddings() as first, embeddings() as second, ScriptedUpstream(then=answer("ok")) as upstream:
        second.model = HashingEncoder(dimensions=512)

        def semantic(url: str, model: str) -> dict[str, Any]:
            return {"timeout_ms": 20_000, "encoder": {"base_url": url, "model": model}}

        config = native_config(upstream.base_url, router={"default": "m", "semantic": semantic(first.url, "a")})
        routes["orders"]["threshold"] = {"value": 0.62, "encoder": "remote:a"}
        async with serving(tmp_path, config, routes) as gateway:
            async with asyncio.timeout(30):
                while (await asked(gateway, "some jazz song"))[1] != "semantic":
                    await asyncio.sleep(0.05)
            before = {text: await asked(gateway, text) for text in known}
            file = tmp_path / "gateway.yaml"
            whole = yaml.safe_load(file.read_text())
            whole["router"]["semantic"] = semantic(second.url, "b")
            file.write_text(yaml.safe_dump(whole))
            status, _, refused = await gateway.post("/v1/reload", {})
            assert status == 400
            assert "remote:a" in str(refused)
            assert "remote:b" in str(refused)
            assert await asked(gateway, known[0]) == before[known[0]]
            del routes["orders"]["threshold"]
            write_route(tmp_path, "orders", routes["orders"])
            second.asked.clear()
            first.asked.clear()
            assert (await gateway.post("/v1/reload", {}))[0] == 200
            for text in known:
                await asked(gateway, text)
            for text in strange:
                assert await asked(gateway, text) == ("-", "default"), text
            # Every text was encoded anew, and by the new encoder alone.
            assert first.asked == []
            assert {*known, *strange, *routes["music"]["utterances"]} <= {
                text for texts in second.asked for text in texts
            }


async def test_no_pattern_stalls_the_loop_and_what_is_not_linear_is_refused(tmp_path: Path) -> None:
    """B084."""
    routes = {
        "hostile": {"model": "m", "patterns": ["(x|xx)+$", "([0-9]+\\s*)*$y", "(a*)*b$"], "all_of": ["nowhere"]},
        "calm": {"model": "m", "keywords": ["calm"]},
    }
    texts = [
        "x" * 40 + "y calm",
        " " * 100_000 + "calm",
        "1 " * 50_000 + "calm",
        "a" * 100_000 + " calm",
        "\u0301\u0323" * 9000,
    ]
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url), routes) as gateway,
    ):
        slowest = 0.0
        stop = asyncio.Event()

        async def watch() -> None:
            nonlocal slowest
            while not stop.is_set():
                begun = time.perf_counter()
                await asyncio.sleep(0.001)
                slowest = max(slowest, time.perf_counter() - begun)

        watching = asyncio.create_task(watch())
        for text in texts:
            # Explaining reads more of it than deciding does.
            for path in ("/v1/route", "/v1/chat/completions"):
                assert (await asked(gateway, text, path))[0] == ("calm" if "calm" in text else "-")
        stop.set()
        await watching
        # Some 50 ms on a quiet machine; backtracking takes minutes, sorting marks seconds.
        assert slowest < 2
        (tmp_path / "routes" / "ahead.yaml").write_text("route: ahead\nmodel: m\npatterns:\n  - fine\n  - '(?=x)y'\n")
        status, _, refused = await gateway.post("/v1/reload", {})
        assert status == 400
        assert "ahead.yaml:5" in str(refused), refused


async def test_files_that_are_gone_leave_what_serves(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """B081."""
    routes = {"legal": {"model": "m", "keywords": ["contract"]}}
    async with (
        ScriptedUpstream(then=answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url), routes) as gateway,
    ):
        _, _, before = await gateway.get("/v1/config")
        gone = [
            ("gateway.yaml deleted", tmp_path / "gateway.yaml"),
            ("the folder in the middle of a rename", tmp_path / "routes"),
        ]
        capfd.readouterr()
        for what, path in gone:
            path.rename(tmp_path / "aside")
            assert (await gateway.post("/v1/reload", {}))[0] == 400, what
            _, _, shown = await gateway.get("/v1/config")
            assert (shown["version"], bool(shown["last_error"]["problems"])) == (before["version"], True), what
            assert await asked(gateway, "my contract") == ("legal", "rule"), what
            assert "".join(capfd.readouterr()).count("reload refused") == 1, what
            (tmp_path / "aside").rename(path)
        assert (await gateway.post("/v1/reload", {}))[0] == 200
        _, _, shown = await gateway.get("/v1/config")
        assert (shown["version"], shown["last_error"]) == (before["version"], None)


GATEWAY = "backends:\n  demo: {provider: demo}\nmodels:\n  m: {backends: [demo]}\nrouter:\n  default: m\n"
ROUTE = "route: orders\nmodel: m\nkeywords: [order]\n"
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
DECEIVING = {
    "two models": (ROUTE + "model: n\n", 4, "model"),
    "a tab": ("route: orders\nmodel: m\nwhen:\n\thas_tools: true\n", 4, "tab"),
    "a slip": (ROUTE.replace("keywords", "keyword"), 3, "did you mean `keywords`"),
    "an object": (ROUTE + "title: !!python/object/apply:os.system [echo]\n", 4, "tag"),
    "unset": (ROUTE + "system: ${UNSET_KEY}\n", 4, "UNSET_KEY"),
    "laughs": (LAUGHS + ROUTE, 0, ""),
    "another of that name": (ROUTE.replace("orders", "twice"), 1, "twice"),
}


@pytest.mark.parametrize("what", DECEIVING)
def test_check_names_file_line_and_reason_of_what_deceives_its_reader(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """B087."""
    text, line, words = DECEIVING[what]
    (tmp_path / "routes").mkdir()
    (tmp_path / "plugins").mkdir()
    (tmp_path / "gateway.yaml").write_text(GATEWAY)
    (tmp_path / "routes" / "one.yaml").write_text(ROUTE.replace("orders", "twice"))
    (tmp_path / "routes" / "two.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    begun = time.process_time()
    with contextlib.suppress(SystemExit):
        assert main(["check", "--config", "gateway.yaml", "--routes", "routes"]) == 1
    assert time.process_time() - begun < 5
    said = "".join(capsys.readouterr())
    assert f"routes/two.yaml:{line or ''}" in said
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["no", "on", "off", "08", "1e3", "12:30", "null-ish", "1_000"])
def test_check_takes_an_unquoted_name_for_the_name_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """B087."""
    (tmp_path / "routes").mkdir()
    (tmp_path / "plugins").mkdir()
    (tmp_path / "gateway.yaml").write_text(GATEWAY)
    (tmp_path / "routes" / "one.yaml").write_text(f"route: {name}\nmodel: m\nkeywords: [{name}]\n")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--config", "gateway.yaml", "--routes", "routes"]) == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(["explain", "--json", name, "--config", "gateway.yaml", "--routes", "routes"]) == 0
    assert f'"route":"{name}"' in capsys.readouterr().out.replace(" ", "")
