"""Who decides an approval, how often, until when, and what then has to be the same still."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway import cli
from gateway.approvals.desk import Desk
from gateway.clock import SystemClock
from tests.approvals.office import (
    PLUGIN,
    QUICK,
    ROUTE,
    SECRETS,
    Office,
    as_key,
    asks,
    config,
    office,
    told,
    until,
)
from tests.replies import answer
from tests.replies import body as reply_body
from tests.serving import serving, write_route
from tests.upstream import ScriptedUpstream

DELETE = {"order_id": "SO-1"}
PAY = {"to": "alice", "cents": 500}


class Later(SystemClock):
    """The system's clock, ahead by as much as a test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


async def test_of_two_approvers_on_two_replicas_one_wins(tmp_path: Path) -> None:
    """Both ask at once, five times: one gets 200, the other 409, and the call is made once."""
    (tmp_path / "other").mkdir()
    async with ScriptedUpstream(then=asks("pay", PAY)) as upstream:
        settings = config(upstream.base_url)
        shared = {**settings, "storage": {"database": f"sqlite:///{tmp_path / 'hermes.db'}"}}
        async with (
            serving(tmp_path, shared, {"r": ROUTE}, {"office": PLUGIN}, pace=QUICK) as one,
            serving(tmp_path / "other", shared, {"r": ROUTE}, {"office": PLUGIN}, pace=QUICK) as two,
        ):
            here, there = Office(one, upstream), Office(two, upstream)
            won = []
            for number in range(5):
                _, headers = await here.ask(f"pay alice, {number}")
                approval = headers["x-gateway-approval"]
                results = await asyncio.gather(
                    here.decide(approval, "approve", who="ops"), there.decide(approval, "approve", who="boss")
                )
                assert sorted(status for status, _ in results) == [200, 409]
                [lost] = [body["error"]["code"] for status, body in results if status == 409]
                assert lost == "approval_decided"
                found = await here.settled(approval)
                won.append(found["decided_by"])
            assert set(won) <= {"ops", "boss"}
            assert len(here.done()) + len(there.done()) == 5


async def test_what_has_expired_cannot_be_approved(tmp_path: Path) -> None:
    clock = Later()
    async with ScriptedUpstream(asks("pay", PAY), answer("Too late.")) as upstream:
        settings = config(upstream.base_url, approvals={"expire_s": 3600})
        async with serving(tmp_path, settings, {"r": ROUTE}, {"office": PLUGIN}, clock=clock) as served:
            here = Office(served, upstream)
            text, headers = await here.ask("pay alice")
            approval = headers["x-gateway-approval"]
            clock.ahead_s = 3601
            for decision, body in (("approve", {}), ("reject", {"reason": "late"})):
                status, said = await here.decide(approval, decision, body)
                assert (status, said["error"]["code"]) == (409, "approval_expired")
            assert (await here.approval(approval))["status"] == "expired"
            thread = [
                {"role": "user", "content": "pay alice"},
                {"role": "assistant", "content": text},
                {"role": "user", "content": "go on"},
            ]
            await here.ask(thread)
            last = told(upstream.requests[-1])[-1]
            assert not last["ok"]
            assert "in time" in last["error"]
            assert here.done() == []


async def test_wrong_code_three_times_locks(tmp_path: Path) -> None:
    async with office(tmp_path, asks("delete_order", DELETE)) as here:
        _, headers = await here.ask("delete SO-1")
        approval = headers["x-gateway-approval"]
        code = (await here.approval(approval))["code"]
        wrong = "000000" if code != "000000" else "111111"
        status, body = await here.decide(approval, "approve")
        assert (status, body["error"]["param"]) == (400, "code")
        for _ in range(2):
            status, body = await here.decide(approval, "approve", {"code": wrong})
            assert (status, body["error"]["param"]) == (400, "code")
        for typed in (wrong, code):
            status, body = await here.decide(approval, "approve", {"code": typed})
            assert (status, body["error"]["code"]) == (409, "approval_locked")
        found = await here.approval(approval)
        assert found["status"] == "locked"
        assert here.done() == []
        trace = (await here.served.get(f"/v1/traces/{found['trace_id']}", **as_key("ops")))[2]
        assert code not in json.dumps(trace)


async def test_roles_say_who_decides_and_who_is_shown_the_code(tmp_path: Path) -> None:
    rules = {"approvers": ["admin", "approver"], "double_roles": ["admin"]}
    script = [asks("delete_order", DELETE), asks("pay", PAY), asks("pay", {"to": "me", "cents": 1})]
    async with office(tmp_path, *script, approvals=rules) as here:
        deletion = (await here.ask("delete SO-1"))[1]["x-gateway-approval"]
        payment = (await here.ask("pay alice"))[1]["x-gateway-approval"]
        assert "code" in await here.approval(deletion, "ops")
        seen = await here.approval(deletion, "clerk")
        assert seen["needs_code"]
        assert "code" not in seen
        code = (await here.approval(deletion, "ops"))["code"]
        for who, approval, body, expected in (
            ("app", payment, {}, 403),
            ("clerk", deletion, {"code": code}, 403),
            ("clerk", payment, {}, 200),
            ("ops", deletion, {"code": code}, 200),
        ):
            assert (await here.decide(approval, "approve", body, who))[0] == expected, (who, approval)
        own = (await here.ask("pay me", as_key("ops")))[1]["x-gateway-approval"]
        assert (await here.decide(own, "approve", {}, "ops"))[0] == 403
        assert "code" not in await here.approval(own, "ops")
        assert (await here.decide(own, "approve", {}, "boss"))[0] == 200


async def test_who_asked_may_decide_where_the_configuration_says_so(tmp_path: Path) -> None:
    async with office(
        tmp_path, asks("pay", PAY), asks("delete_order", DELETE), approvals={"self_approve": True}
    ) as here:
        own = (await here.ask("pay alice"))[1]["x-gateway-approval"]
        assert (await here.decide(own, "approve", {}, "app"))[0] == 200
        deletion = (await here.ask("delete"))[1]["x-gateway-approval"]
        assert "code" not in await here.approval(deletion, "app")
        assert (await here.decide(deletion, "approve", {"code": "1"}, "app"))[0] == 403


async def test_without_keys_the_command_decides_and_nobody_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ScriptedUpstream(asks("delete_order", DELETE)) as upstream:
        settings = {**config(upstream.base_url), "keys": {}}
        async with serving(tmp_path, settings, {"r": ROUTE}, {"office": PLUGIN}, pace=QUICK) as served:
            here = Office(served, upstream)
            approval = (await here.ask("delete SO-1", {}))[1]["x-gateway-approval"]
            status, _, body = await served.get(f"/v1/approvals/{approval}")
            assert status == 200
            assert "code" not in body
            status, _, body = await served.post(f"/v1/approvals/{approval}/approve", {"code": "123456"})
            assert (status, body["error"]["code"]) == (403, "not_allowed")
            monkeypatch.chdir(tmp_path)

            async def run(*words: str) -> tuple[int, str, str]:
                files = ("--config", str(tmp_path / "gateway.yaml"), "--routes", str(tmp_path / "routes"))
                code = await asyncio.to_thread(cli.main, ["approvals", *words, *files])
                said = capsys.readouterr()
                return code, said.out, said.err

            _, out, _ = await run("list", "--status", "pending")
            assert approval in out
            shown = json.loads((await run("show", approval, "--json"))[1])
            code, _, err = await run("approve", approval, "--code", "wrong")
            assert (code, "is wrong" in err) == (1, True)
            code, out, _ = await run("approve", approval, "--code", shown["code"], "--reason", "checked")
            assert (code, "approved" in out) == (0, True)
            assert (await run("approve", approval, "--code", shown["code"]))[0] == 1

            async def there() -> bool:
                return bool(here.done())

            await until(there)
            assert here.done() == [("delete_order", "SO-1")]


@pytest.mark.parametrize("renamed", [True, False])
async def test_tool_that_was_renamed_or_changed_meanwhile_is_not_run(tmp_path: Path, *, renamed: bool) -> None:
    async with office(tmp_path, asks("pay", PAY)) as here:
        text, headers = await here.ask("pay alice")
        approval = headers["x-gateway-approval"]
        renamed_source = PLUGIN.replace("async def pay(", "async def transfer(").replace(
            "registry.add(pay,", "registry.add(transfer,"
        )
        (here.served.folder / "plugins" / "office.py").write_text(
            renamed_source if renamed else f"{PLUGIN}\n# otherwise\n"
        )
        route = {**ROUTE, "tools": ["transfer" if renamed else "pay", "look"]}
        await reload(here, route)
        status, body = await here.decide(approval, "approve")
        assert (status, body["error"]["code"]) == (400, "tool_changed")
        # At the terminal nobody knows the tools: the decision counts, and nothing is run.
        row = await here.served.gateway.store.approvals.get(approval, None)
        assert row is not None
        snapshot = here.served.gateway.versions.current
        at_terminal = Desk(here.served.gateway.store.approvals, SystemClock(), lambda: snapshot.config.approvals, dict)
        await at_terminal.decide(row, "approved", by="somebody", reason=None)
        found = await here.settled(approval)
        assert not found["outcome"]["ok"]
        assert ("not there any more" if renamed else "not the one any more") in found["outcome"]["content"]["error"]
        assert here.done() == []
        here.upstream.enqueue(answer("It could not be done."))
        await here.ask(
            [
                {"role": "user", "content": "pay alice"},
                {"role": "assistant", "content": text},
                {"role": "user", "content": "go on"},
            ]
        )


async def reload(here: Office, route: Any) -> None:
    write_route(here.served.folder, "r", route)
    status, _, body = await here.served.post("/v1/reload", {}, **as_key("ops"))
    assert status == 200, body


async def test_everything_said_is_in_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who, what, the arguments masked and their hash, the decision, the outcome; and `audit verify` finds what was changed."""
    card = {"to": "4111 1111 1111 1111", "cents": 500}
    async with office(tmp_path, asks("pay", card)) as here:
        approval = (await here.ask("pay"))[1]["x-gateway-approval"]
        await here.decide(approval, "approve", {"reason": "fine"})
        await here.settled(approval)
        status, _, body = await here.served.get("/v1/audit", **as_key("ops"))
        assert status == 200
        entries = list(reversed(body["data"]))
        said = [(each["action"], each["actor"]) for each in entries]
        assert said == [
            ("approval.requested", "app"),
            ("approval.approved", "ops"),
            ("approval.read", "ops"),
            ("approval.executed", "gateway"),
        ] or {action for action, _ in said} == {
            "approval.requested",
            "approval.approved",
            "approval.read",
            "approval.executed",
        }
        assert entries[0]["arguments"] == {"cents": 500, "to": "***11"}
        assert len(entries[0]["arguments_hash"]) == 64
        assert (await here.served.get("/v1/audit", **as_key("app")))[0] == 403
    monkeypatch.chdir(tmp_path)
    files = ("--config", str(tmp_path / "gateway.yaml"), "--routes", str(tmp_path / "routes"))
    assert await asyncio.to_thread(cli.main, ["audit", "verify", *files]) == 0
    with closing(sqlite3.connect(tmp_path / "hermes.db", isolation_level=None)) as connection:
        connection.execute("UPDATE audit SET actor = 'nobody' WHERE seq = 2")
    capsys.readouterr()
    assert await asyncio.to_thread(cli.main, ["audit", "verify", *files]) == 1
    assert "entry 2: the entry was changed" in capsys.readouterr().out


@pytest.mark.parametrize("named", [True, False])
async def test_webhooks_are_told_what_waits_and_no_secret(tmp_path: Path, *, named: bool) -> None:
    """By the webhook's own events, or because `approvals.webhooks` names it; and never a code or arguments."""
    async with ScriptedUpstream(then=reply_body({})) as receiver:
        hook = {
            "url": f"http://127.0.0.1:{receiver.port}/hook",
            "secret": "a secret of the hook",
            "events": ["response.failed"] if named else ["approval.requested"],
        }
        more: dict[str, Any] = {"webhooks": {"desk": hook}, "approvals": {"webhooks": ["desk"] if named else []}}
        async with office(tmp_path, asks("delete_order", DELETE), **more) as here:
            approval = (await here.ask("delete SO-1"))[1]["x-gateway-approval"]
            [told_of] = await receiver.received(1, timeout_s=30)
            assert told_of.json["type"] == "approval.requested"
            assert told_of.json["data"]["id"] == approval
            assert told_of.headers["webhook-signature"].startswith("v1,")
            code = (await here.approval(approval))["code"]
            assert code not in told_of.raw.decode()
            assert "SO-1" not in told_of.raw.decode()


async def test_command_speaks_to_a_gateway_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with office(tmp_path, asks("pay", PAY), asks("pay", {"to": "bob", "cents": 1})) as here:
        first = (await here.ask("pay alice"))[1]["x-gateway-approval"]
        second = (await here.ask("pay bob"))[1]["x-gateway-approval"]
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GATEWAY_URL", here.served.url)
        monkeypatch.setenv("GATEWAY_KEY", SECRETS["ops"])

        async def run(*words: str) -> tuple[int, str]:
            code = await asyncio.to_thread(cli.main, list(words))
            said = capsys.readouterr()
            return code, said.out + said.err

        assert first in (await run("approvals"))[1]
        assert (await run("approvals", "show", first))[0] == 0
        assert (await run("approvals", "approve", first))[0] == 0
        code, said = await run("approvals", "reject", second, "--reason", "not him", "--json")
        assert (code, json.loads(said)["status"]) == (0, "rejected")
        code, said = await run("approvals", "approve", second)
        assert (code, "rejected already" in said) == (1, True)
        assert (await run("approvals", "show", "apr_none"))[0] == 1
        assert (await run("approvals", "reject", second))[0] == 2
        assert "approval.rejected" in (await run("audit"))[1]
        await here.settled(first)
        assert here.done() == [("pay", "alice 500")]
