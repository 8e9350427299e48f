"""A server that only takes requests and a worker that executes: decided on one, made on the other, with the queue away or not."""

from __future__ import annotations

from pathlib import Path

from gateway.settings import Settings
from tests.approvals.office import PLUGIN, QUICK, ROUTE, Office, asks, config, told
from tests.replies import answer
from tests.serving import serving
from tests.upstream import ScriptedUpstream
from tests.valkey import valkey, wire

PAY = {"to": "alice", "cents": 500}


async def test_approval_is_decided_where_the_queue_is_away_and_made_by_a_worker(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    database = f"sqlite:///{tmp_path / 'hermes.db'}"
    with valkey() as queue:
        async with ScriptedUpstream(asks("pay", PAY), answer("Paid.")) as upstream, wire(queue) as way:
            settings = config(upstream.base_url)
            theirs = Settings(REDIS_URL=way.url, DATABASE_URL=database)
            workers = Settings(REDIS_URL=queue.url, DATABASE_URL=database)
            files = ({"r": ROUTE}, {"office": PLUGIN})
            async with serving(tmp_path, settings, *files, settings=theirs) as server:
                here = Office(server, upstream)
                assert not server.gateway.engine.executes
                text, headers = await here.ask("pay alice")
                approval = headers["x-gateway-approval"]
                way.cut()
                assert (await here.decide(approval, "approve"))[0] == 200
                assert (await here.approval(approval))["outcome"] is None
                folder = tmp_path / "worker"
                async with serving(folder, settings, *files, settings=workers, executes=True, pace=QUICK) as worker:
                    there = Office(worker, upstream)
                    assert (await there.settled(approval))["outcome"]["ok"]
                    assert there.done() == [("pay", "alice 500")]
                    assert here.done() == []
                    thread = [
                        {"role": "user", "content": "pay alice"},
                        {"role": "assistant", "content": text},
                        {"role": "user", "content": "go on"},
                    ]
                    assert (await there.ask(thread))[0] == "Paid."
                    assert told(upstream.requests[-1])[-1]["ok"]
