"""Calls that wait for a human: what their clients see, who decides, and what happens then."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.approvals.office import as_key, asks, office, told
from tests.frames import f, tc
from tests.replies import answer, call, stream
from tests.upstream import UpstreamRequest

DELETE = {"order_id": "SO-1"}
PAY = {"to": "alice", "cents": 500}


async def test_delete_waits_for_a_code_and_its_outcome_reaches_whoever_goes_on(tmp_path: Path) -> None:
    async with office(tmp_path, asks("delete_order", DELETE)) as here:
        text, headers = await here.ask("delete SO-1")
        approval = headers["x-gateway-approval"]
        assert approval in text
        assert "go on" in text
        assert here.done() == []

        shown = await here.approval(approval)
        assert (shown["status"], shown["arguments"], shown["needs_code"]) == ("pending", DELETE, True)
        # As an input method for Chinese types digits.
        typed = shown["code"].translate({ord("0") + digit: ord("０") + digit for digit in range(10)})
        status, body = await here.decide(approval, "approve", {"code": typed})
        assert (status, body["status"]) == (200, "approved")
        # What was decided to be done is done: its run is nobody's to stop.
        run = body["run_id"]
        assert (await here.served.post(f"/v1/runs/{run}/cancel", {}, **as_key("app")))[0] in (200, 400)
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
        # The turn that asked is found by the approval, by its owner alone.
        assert (await here.served.get(f"/v1/traces/{approval}", **as_key("app")))[2]["id"] == body["trace_id"]
        assert (await here.served.get(f"/v1/traces/{approval}", **as_key("ui", "bob")))[0] == 404


def thread_of(*said: str) -> list[dict[str, str]]:
    """A conversation that a client has kept: user and assistant in turn."""
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(said)]


async def test_turn_that_waits_goes_on_once_it_is_approved(tmp_path: Path) -> None:
    """Within `wait_s` nobody notices; the model is not asked again for the call."""
    async with office(tmp_path, asks("pay", PAY), answer("Paid."), approvals={"wait_s": 30}) as here:
        asking = asyncio.create_task(here.ask("pay alice"))
        approval = (await here.pending())["id"]
        assert (await here.decide(approval, "approve"))[0] == 200
        text, headers = await asking
        assert text == "Paid."
        assert "x-gateway-approval" not in headers
        assert told(here.upstream.requests[1]) == [{"ok": True, "result": {"paid": 500, "to": "alice"}}]
        assert here.done() == [("pay", "alice 500")]
        trace = (await here.served.get(f"/v1/traces/{headers['x-gateway-trace']}", **as_key("ops")))[2]
        states = [event["data"]["to"] for event in trace["events"] if event["type"] == "state.changed"]
        assert states == [
            *("planning", "executing", "waiting_approval", "executing"),
            *("observing", "planning", "terminated"),
        ]
        decided = [event["data"] for event in trace["events"] if event["type"] == "approval.decided"]
        assert [(each["decision"], each["by"]) for each in decided] == [("approved", "ops")]


async def test_rejection_reaches_the_model_and_the_same_call_is_not_asked_for_again(tmp_path: Path) -> None:
    script = [asks("pay", PAY), asks("pay", {"cents": 500, "to": "alice"}, "call_2"), answer("I may not.")]
    async with office(tmp_path, *script, approvals={"wait_s": 30}) as here:
        asking = asyncio.create_task(here.ask("pay alice"))
        approval = (await here.pending())["id"]
        assert (await here.decide(approval, "reject", {"reason": "not her"}))[0] == 200
        text, headers = await asking
        assert text == "I may not."
        first, again = told(here.upstream.requests[-1])
        assert (first["ok"], again["ok"]) == (False, False)
        assert "not her" in first["error"]
        assert "rejected before" in again["error"]
        assert len((await here.listed())["data"]) == 1
        assert here.done() == []
        trace = (await here.served.get(f"/v1/traces/{headers['x-gateway-trace']}", **as_key("ops")))[2]
        states = [event["data"]["to"] for event in trace["events"] if event["type"] == "state.changed"]
        assert states[:5] == ["planning", "executing", "waiting_approval", "reflecting", "planning"]
        # In a later turn of the conversation, too.
        here.upstream.enqueue(asks("pay", PAY, "call_3"), answer("Still not."))
        await here.ask(thread_of("pay alice", f"{text} ({approval})", "do it anyway"))
        assert "rejected before" in told(here.upstream.requests[-1])[-1]["error"]


async def test_what_runs_is_what_was_approved_B049(tmp_path: Path) -> None:
    """The model that would say something else is not asked again, and an approval with other arguments is refused."""
    mallory = {"to": "mallory", "cents": 50_000}
    async with office(tmp_path, asks("pay", PAY), then=asks("pay", mallory)) as here:
        _, headers = await here.ask("pay alice")
        approval = headers["x-gateway-approval"]
    async with office(tmp_path, then=asks("pay", mallory)) as here:  # the process was restarted
        status, body = await here.decide(approval, "approve", {"arguments": mallory})
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")
        assert (await here.decide(approval, "approve"))[0] == 200
        await here.settled(approval)
        assert here.done() == [("pay", "alice 500")]
        assert here.upstream.requests == []
        status, body = await here.decide(approval, "approve")
        assert (status, body["error"]["code"]) == (409, "approval_decided")


async def test_approval_outlives_the_process_and_the_client_that_asked_B053(tmp_path: Path) -> None:
    """A streaming turn waits, its client goes, the gateway restarts: the call is made once it is approved."""
    ask = {"model": "auto", "messages": [{"role": "user", "content": "pay alice"}]}
    async with office(tmp_path, asks("pay", PAY), approvals={"wait_s": 60}) as here:
        reading = asyncio.create_task(here.served.raw_stream(ask, **as_key("app")))
        approval = (await here.pending())["id"]
        reading.cancel()
        await asyncio.wait([reading])
        assert (await here.approval(approval))["status"] == "pending"
    async with office(tmp_path, answer("It is paid.")) as here:
        assert (await here.approval(approval, "app"))["status"] == "pending"
        assert (await here.decide(approval, "approve"))[0] == 200
        await here.settled(approval)
        assert (await here.approval(approval, "app"))["outcome"]["content"]["result"] == {"paid": 500, "to": "alice"}
        text, _ = await here.ask(thread_of("pay alice", f"({approval})", "and?"))
        assert text == "It is paid."
        assert told(here.upstream.requests[-1])[-1]["ok"]
        assert here.done() == [("pay", "alice 500")]


async def test_client_that_asks_again_joins_the_turn_that_waits(tmp_path: Path) -> None:
    """An SDK's retry after a restart finds the same approval, and asks no model again."""
    ask = {"model": "auto", "messages": [{"role": "user", "content": "pay alice"}]}
    async with office(tmp_path, asks("pay", PAY), approvals={"wait_s": 60}) as here:
        reading = asyncio.create_task(here.served.post("/v1/chat/completions", ask, **as_key("app")))
        approval = (await here.pending())["id"]
        reading.cancel()
        await asyncio.wait([reading])
    async with office(tmp_path, answer("Paid."), approvals={"wait_s": 60}) as here:
        again = asyncio.create_task(
            here.served.post("/v1/chat/completions", ask, **as_key("app"), x_stainless_retry_count="1")
        )
        await here.decide(approval, "approve")
        status, _, body = await again
        assert (status, body["choices"][0]["message"]["content"]) == (200, "Paid.")
        assert len((await here.listed())["data"]) == 1
        assert here.done() == [("pay", "alice 500")]


async def test_two_users_behind_one_key_do_not_meet(tmp_path: Path) -> None:
    """One chat interface, no session header, JSON: what waits is one user's alone."""
    async with office(tmp_path, asks("delete_order", DELETE)) as here:
        ann, bob = as_key("ui", "ann"), as_key("ui", "bob")
        text, headers = await here.ask("删除订单 SO-1", ann)
        approval = headers["x-gateway-approval"]
        status, _, _ = await here.served.get(f"/v1/approvals/{approval}", **bob)
        assert status == 404
        assert (await here.served.get("/v1/approvals", **bob))[2]["data"] == []
        assert [each["id"] for each in (await here.served.get("/v1/approvals", **ann))[2]["data"]] == [approval]
        code = (await here.approval(approval))["code"]
        for who in (bob, ann):
            status, _, body = await here.served.post(f"/v1/approvals/{approval}/approve", {"code": code}, **who)
            assert (status, body["error"]["code"]) == ((404, "not_found") if who is bob else (403, "not_allowed"))
        # Bob has seen the text: it continues nothing of Ann's.
        here.upstream.enqueue(answer("What do you mean?"))
        await here.ask(thread_of("删除订单 SO-1", text, "继续"), bob)
        assert told(here.upstream.requests[-1]) == []
        assert "withdraw_approval" not in names(here.upstream.requests[-1])
        # Ann thinks it over, once more, and then not.
        here.upstream.enqueue(answer("It waits."))
        await here.ask(thread_of("删除订单 SO-1", text, "等一下"), ann)
        assert "withdraw_approval" in names(here.upstream.requests[-1])
        assert (await here.decide(approval, "approve", {"code": code}))[0] == 200
        await here.settled(approval)
        here.upstream.enqueue(answer("已删除。"))
        said, _ = await here.ask(thread_of("删除订单 SO-1", text, "继续"), ann)
        assert said == "已删除。"
        assert told(here.upstream.requests[-1])[-1]["ok"]
        assert here.done() == [("delete_order", "SO-1")]


async def test_model_withdraws_what_its_user_does_not_want_any_more(tmp_path: Path) -> None:
    async with office(tmp_path, asks("delete_order", DELETE)) as here:
        text, headers = await here.ask("delete SO-1")
        approval = headers["x-gateway-approval"]
        here.upstream.enqueue(asks("withdraw_approval", {"id": approval}, "call_9"), answer("Withdrawn."))
        said, _ = await here.ask(thread_of("delete SO-1", text, "no, leave it"))
        assert said == "Withdrawn."
        assert told(here.upstream.requests[-1])[-1]["ok"]
        found = await here.approval(approval)
        assert found["status"] == "withdrawn"
        status, body = await here.decide(approval, "approve", {"code": found["code"]})
        assert (status, body["error"]["code"]) == (409, "approval_decided")
        assert here.done() == []


async def test_session_carries_an_approval_as_history_does(tmp_path: Path) -> None:
    async with office(tmp_path, asks("pay", PAY)) as here:
        mine = {**as_key("app"), "x_gateway_session": "s1"}
        _, headers = await here.ask("pay alice", mine)
        approval = headers["x-gateway-approval"]
        await here.decide(approval, "approve")
        await here.settled(approval)
        here.upstream.enqueue(answer("Hello."), answer("Paid."), answer("Yes."))
        await here.ask("and?", {**as_key("app"), "x_gateway_session": "s2"})
        assert told(here.upstream.requests[-1]) == []
        await here.ask("and?", mine)
        assert told(here.upstream.requests[-1])[-1]["ok"]
        await here.ask("sure?", mine)
        assert told(here.upstream.requests[-1]) == []
        assert here.done() == [("pay", "alice 500")]


async def test_several_calls_of_an_answer_are_approvals_of_their_own(tmp_path: Path) -> None:
    both = answer(
        calls=[
            call("c1", "pay", '{"to": "alice", "cents": 1}'),
            call("c2", "look", '{"order_id": "SO-1"}'),
            call("c3", "pay", '{"to": "bob", "cents": 2}'),
        ]
    )
    async with office(tmp_path, both) as here:
        text, headers = await here.ask("pay them")
        first, second = headers["x-gateway-approval"].split(",")
        assert first in text
        assert second in text
        by_name = {(await here.approval(each))["arguments"]["to"]: each for each in (first, second)}
        await here.decide(by_name["bob"], "approve")
        await here.settled(by_name["bob"])
        assert here.done() == [("pay", "bob 2")]
        here.upstream.enqueue(answer("Bob is paid."))
        await here.ask(thread_of("pay them", text, "go on"))
        results = told(here.upstream.requests[-1])
        # Of the first turn: what waited, what was read, what waited; then bob's outcome. Alice's still waits.
        assert [each["ok"] for each in results] == [False, True, False, True]
        assert (await here.approval(by_name["alice"]))["status"] == "pending"


async def test_stream_says_what_waits_and_is_kept_alive(tmp_path: Path) -> None:
    ask = {"model": "auto", "messages": [{"role": "user", "content": "pay alice"}]}
    streamed = stream(tc(0, id="c1", name="pay", arguments='{"to": "alice", "cents": 500}'), f("tool_calls"))
    async with office(tmp_path, streamed) as here:
        body = (await here.served.raw_stream(ask, **as_key("app"))).decode()
        approval = (await here.pending())["id"]
        assert approval in body
        assert '"finish_reason":"stop"' in body
        assert body.rstrip().endswith("data: [DONE]")
        assert "tool_calls" not in body
        assert here.done() == []


def names(request: UpstreamRequest) -> list[str]:
    """The tools that a model was offered."""
    return [tool["function"]["name"] for tool in request.json.get("tools", [])]
