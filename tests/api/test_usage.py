"""What was used: added up by anything, shown to whom it belongs, with prices that are known and those that are not."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.backends.price_list import listed_prices
from gateway.chat.usage import Usage
from gateway.config.models import BackendConfig
from gateway.errors import StoreUnavailable
from gateway.observe.usage import UsageWriter
from gateway.security.prices import FREE, Price, Prices, price_of
from gateway.store.memory_keys import MemoryUsage
from gateway.store.usage_records import NANO, UsageRow
from tests.replies import answer, error
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream

KEYS = {
    "admin_key": "root",
    "static": {"app": {"key": "sk-app", "team": "t", "roles": ["set_user"]}, "other": {"key": "sk-other"}},
}


def config(upstream: ScriptedUpstream) -> dict[str, Any]:
    price = {"input_per_mtok": 1, "output_per_mtok": 10, "cached_input_per_mtok": 0.5}
    return native_config(upstream.base_url, backend={"price": price}, keys=KEYS, teams={"t": {}})


async def ask(served: Served, key: str, **body: Any) -> int:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    return (await served.post("/v1/chat/completions", asked, authorization=f"Bearer {key}"))[0]


async def used(served: Served, query: str, key: str = "root") -> Any:
    status, _, body = await served.get(f"/v1/usage{query}", authorization=f"Bearer {key}")
    assert status == 200, body
    return body if isinstance(body, str) else body["data"]


async def test_usage_is_added_up_and_everybody_sees_their_own(tmp_path: Path) -> None:
    script = [answer("x", tokens=(1000, 100)) for _ in range(3)]
    async with ScriptedUpstream(*script, then=error(500)) as upstream, serving(tmp_path, config(upstream)) as served:
        assert [await ask(served, "sk-app"), await ask(served, "sk-app", user="eve")] == [200, 200]
        assert [await ask(served, "sk-other"), await ask(served, "sk-other")] == [200, 502]
        rows = await used(served, "?by=key,user,team,route,model")
        assert [(row["key"], row["user"], row["team"], row["turns"], row["failed"]) for row in rows] == [
            ("app", None, "t", 1, 0),
            ("app", "eve", "t", 1, 0),
            ("other", None, None, 2, 1),
        ]
        assert all((row["route"], row["model"]) == (None, "m") for row in rows)
        # Of a turn that nobody answered, there is no backend.
        assert {row["backend"]: row["failed"] for row in await used(served, "?by=backend")} == {None: 1, "b1": 0}
        # A thousand at a dollar and a hundred at ten for a million.
        assert [(row["prompt_tokens"], row["completion_tokens"], row["cost"]) for row in rows] == [
            (1000, 100, 0.002)
        ] * 3
        assert [row["turns"] for row in await used(served, "?by=key", "sk-app")] == [1]
        assert [row["turns"] for row in await used(served, "?by=key", "sk-other")] == [2]
        (today,) = await used(served, "")
        assert today["turns"] == 4
        assert await used(served, f"?from={today['day']}&to={today['day']}") == [today]
        assert await used(served, "?to=2001-01-01") == []
        table = list(csv.DictReader(io.StringIO(await used(served, "?by=key&format=csv"))))
        assert [(row["key"], row["turns"], row["cost"], row["currency"]) for row in table] == [
            ("app", "2", "0.004", "USD"),
            ("other", "2", "0.002", "USD"),
        ]
        assert await printed(served, "--by", "key", "--json") == await used(served, "?by=key")


async def printed(served: Served, *words: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "usage", *words),
        *("--config", str(served.folder / "gateway.yaml"), "--routes", str(served.folder / "routes")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


@pytest.mark.parametrize("query", ["?by=owner", "?from=yesterday", "?to=2025-13-45", "?format=xml", "?limit=5"])
async def test_what_cannot_be_asked_is_a_400_that_names_it(tmp_path: Path, query: str) -> None:
    async with ScriptedUpstream() as upstream, serving(tmp_path, config(upstream)) as served:
        status, _, body = await served.get(f"/v1/usage{query}", authorization="Bearer root")
        assert (status, body["error"]["param"]) == (400, query[1:].split("=", maxsplit=1)[0])


def backend(**values: Any) -> BackendConfig:
    return BackendConfig.model_validate({"provider": "openai", "model": "gpt-4o", **values})


def test_prices_come_from_the_configuration_else_from_the_list_else_they_are_unknown() -> None:
    backends = {
        "listed": backend(),
        "claude": backend(provider="anthropic", model="claude-sonnet-4-5"),
        "own": backend(price={"input_per_mtok": 2, "output_per_mtok": 4}),
        "free": backend(price="free"),
        "elsewhere": backend(base_url="http://127.0.0.1:9/v1"),
        "official": backend(base_url="https://api.openai.com/v1"),
        "unheard": backend(model="nobody-knows-it"),
        "demo": BackendConfig(provider="demo"),
    }
    listed = listed_prices(backends)
    assert set(listed) == {"listed", "claude", "official"}
    assert listed["listed"] == listed["official"]
    assert 0 < listed["listed"].cached < listed["listed"].prompt < listed["listed"].completion
    found = {name: price_of(config, listed.get(name)) for name, config in backends.items()}
    assert found["own"] == Price(2000, 4000, 2000)
    assert found["free"] == found["demo"] == FREE
    assert found["elsewhere"] is None
    assert found["unheard"] is None
    prices = Prices(found)
    usage = Usage(1_000_000, 1_000_000, cached_tokens=500_000)
    assert prices.of([("own", usage)]) == (6 * NANO, True)
    assert prices.of([("own", usage), ("unheard", usage)]) == (6 * NANO, False)
    assert prices.of([("unheard", Usage())]) == (0, True)
    bound = prices.bound(["own", "free"])
    assert (bound.of(1_000_000, 1_000_000), bound.known) == (6 * NANO, True)
    assert not prices.bound(["own", "unheard"]).known


def test_a_list_that_cannot_be_read_leaves_prices_unknown(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1]")
    assert listed_prices({"b": backend()}, tmp_path / "list.json") == {}
    assert listed_prices({"b": backend()}, tmp_path / "nothing.json") == {}


def test_the_price_list_is_read_without_importing_litellm() -> None:
    code = (
        "import sys; from gateway.backends.price_list import listed_prices; "
        "from gateway.config.models import BackendConfig; "
        "print(len(listed_prices({'b': BackendConfig(provider='openai', model='gpt-4o')})), 'litellm' in sys.modules)"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1", "False"]


class AwayUsage(MemoryUsage):
    """A database that is away at first."""

    away = True

    async def add(self, rows: Any) -> None:
        if self.away:
            raise StoreUnavailable("away")
        await super().add(rows)


async def test_usage_that_cannot_be_written_is_kept_and_written_later() -> None:
    store = AwayUsage()
    writer = UsageWriter(store)
    place = ("2025-01-31", "app", "app", "", "", "[]", "", "m", "b")

    def add() -> None:
        writer.add(place, (1, False, 1, 0, 2, 3, False))

    add()
    with pytest.raises(StoreUnavailable):
        await writer.flush()
    add()
    store.away = False
    await writer.flush()
    await writer.flush()
    (row,) = await store.sums(["key"])
    assert msgspec.structs.replace(row, key="") == UsageRow(turns=2, prompt_tokens=2, completion_tokens=4, cost=6)


async def test_what_nobody_foresaw_does_not_end_the_writing_of_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observe.usage.GATHER_S", 0.01)
    monkeypatch.setattr("gateway.observe.usage._RETRY_S", 0.01)

    class Odd(MemoryUsage):
        asked = 0

        async def add(self, rows: Any) -> None:
            self.asked += 1
            if self.asked == 1:
                raise TypeError("nobody foresaw it")
            await super().add(rows)

    store = Odd()
    writer = UsageWriter(store)
    writer.open()
    place = ("2025-01-31", "app", "app", "", "", "[]", "", "m", "b")
    writer.add(place, (1, False, 1, 0, 2, 3, False))
    async with asyncio.timeout(20):
        while store.asked < 2:
            await asyncio.sleep(0.01)
    await writer.close()
    (row,) = await store.sums(["key"])
    assert row.turns == 1


async def test_a_model_s_name_is_not_repeated_at_any_length(tmp_path: Path) -> None:
    async with ScriptedUpstream() as upstream, serving(tmp_path, config(upstream)) as served:
        asked = {"model": "x" * 100_000, "messages": [{"role": "user", "content": "hi"}]}
        status, _, body = await served.post("/v1/chat/completions", asked, authorization="Bearer sk-app")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert len(body["error"]["message"]) < 300
