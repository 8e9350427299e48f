"""Calls that wait for a human: what their clients see, who decides, and what happens then."""

from __future__ import annotations

from pathlib import Path

from tests.approvals.office import as_key, asks, office, told
from tests.replies import answer

DELETE = {"order_id": "SO-1"}


async def test_delete_waits_for_a_code_and_its_outcome_reaches_whoever_goes_on(tmp_path: Path) -> None:
    async with office(tmp_path, asks("delete_order", DELETE)) as here:
        text, headers = await here.ask("delete SO-1")
        approval = headers["x-gateway-approval"]
        assert approval in text
        assert "go on" in text
        assert here.done() == []

        shown = await here.approval(approval)
        assert (shown["status"], shown["arguments"], shown["needs_code"]) == ("pending", DELETE, True)
        status, body = await here.decide(approval, "approve", {"code": shown["code"]})
        assert (status, body["status"]) == (200, "approved")
        assert (await here.settled(approval))["outcome"]["ok"]
        assert here.done() == [("delete_order", "SO-1")]

        here.upstream.enqueue(answer("It is deleted."))
        thread = [
            {"role": "user", "content": "delete SO-1"},
            {"role": "assistant", "content": text},
            {"role": "user", "content": "继续"},
        ]
        said, headers = await here.ask(thread)
        assert said == "It is deleted."
        assert "x-gateway-approval" not in headers
        assert told(here.upstream.requests[-1])[-1] == {"ok": True, "result": {"deleted": "SO-1"}}

        here.upstream.enqueue(answer("You are welcome."))
        thread += [{"role": "assistant", "content": said}, {"role": "user", "content": "thanks"}]
        await here.ask(thread)
        # Told once, and put back as it was told.
        assert [each.get("ok") for each in told(here.upstream.requests[-1])] == [False, True]
        assert here.done() == [("delete_order", "SO-1")]
        assert here.upstream.requests[-1].messages[-1]["content"] == "thanks"
        status, _, body = await here.served.get(f"/v1/approvals/{approval}", **as_key("app"))
        assert status == 200
        assert "code" not in body
