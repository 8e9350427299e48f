"""Background runs that come to a call which waits for a human."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.approvals.office import Office, as_key, asks, office, told, until
from tests.replies import answer
from tests.upstream import UpstreamRequest

PAY = {"to": "alice", "cents": 500}


async def begin(here: Office, said: str, who: str = "app") -> str:
    """Ask for a run; its id."""
    body = {"model": "auto", "messages": [{"role": "user", "content": said}], "metadata": {"background": "true"}}
    status, _, run = await here.served.post("/v1/chat/completions", body, **as_key(who))
    assert status == 202, run
    found: str = run["id"]
    return found


async def run_of(here: Office, run_id: str) -> dict[str, Any]:
    status, _, body = await here.served.get(f"/v1/runs/{run_id}", **as_key("ops"))
    assert status == 200
    found: dict[str, Any] = body
    return found


async def ended(here: Office, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def over() -> bool:
        found.clear()
        found.update(await run_of(here, run_id))
        return found["status"] in ("completed", "failed", "cancelled")

    await until(over)
    return found


async def laid_aside(here: Office, run_id: str) -> None:
    async def waits() -> bool:
        found = await run_of(here, run_id)
        return found["status"] == "queued" and (found["progress"] or {}).get("state") == "waiting_approval"

    await until(waits)


async def test_run_that_waits_holds_no_worker_and_goes_on_once_approved(tmp_path: Path) -> None:
    def script(request: UpstreamRequest) -> Any:
        said = request.messages[-1]
        if said["role"] == "tool":
            return answer("Paid.")
        return asks("pay", PAY) if "pay" in said["content"] else answer("Hello.")

    async with office(tmp_path, then=script, runs={"concurrency": 1}) as here:
        waits = await begin(here, "pay alice")
        await laid_aside(here, waits)
        approval = (await here.pending())["id"]
        assert (await run_of(here, waits))["progress"]["approvals"] == [approval]
        assert (await ended(here, await begin(here, "hello")))["status"] == "completed"
        assert (await here.decide(approval, "approve"))[0] == 200
        found = await ended(here, waits)
        assert found["status"] == "completed"
        assert found["response"]["choices"][0]["message"]["content"] == "Paid."
        asked = [request for request in here.upstream.requests if "pay" in str(request.messages)]
        assert len(asked) == 2, "the model was asked once for the call, and once for the answer"
        assert told(asked[-1]) == [{"ok": True, "result": {"paid": 500, "to": "alice"}}]
        assert here.done() == [("pay", "alice 500")]


async def test_run_that_waits_is_cancelled_at_once_and_nothing_of_it_is_approved_B067(tmp_path: Path) -> None:
    """Waiting for approval, cancelled twice, by a foreign id, after its end."""
    async with office(tmp_path, asks("pay", PAY)) as here:
        waits = await begin(here, "pay alice")
        await laid_aside(here, waits)
        approval = (await here.pending())["id"]
        status, _, _ = await here.served.post(f"/v1/runs/{waits}/cancel", {}, **as_key("ui", "bob"))
        assert status == 404
        for _ in range(2):
            status, _, body = await here.served.post(f"/v1/runs/{waits}/cancel", {}, **as_key("app"))
            assert (status, body["status"]) == (200, "cancelled")
        status, body = await here.decide(approval, "approve")
        assert (status, body["error"]["code"]) == (409, "approval_decided")
        assert (await here.approval(approval))["status"] == "withdrawn"
        assert here.done() == []


async def test_rejected_run_answers_without_the_effect_after_a_restart(tmp_path: Path) -> None:
    async with office(tmp_path, asks("pay", PAY)) as here:
        waits = await begin(here, "pay alice")
        await laid_aside(here, waits)
        approval = (await here.pending())["id"]
    async with office(tmp_path, answer("I may not.")) as here:
        assert (await here.decide(approval, "reject", {"reason": "no"}))[0] == 200
        found = await ended(here, waits)
        assert found["response"]["choices"][0]["message"]["content"] == "I may not."
        assert here.done() == []
