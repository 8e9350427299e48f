"""Chains that fail: what was done is undone in reverse, once, and everybody is told what was not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.runs import compensation
from tests.approvals.chain import LAST, STEPS, chain, script
from tests.approvals.office import Office, as_key, told, until
from tests.approvals.test_runs import begin, ended
from tests.replies import answer, call


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compensation, "BACKOFF_S", 0.02)


DONE = [("reserve_car", "2"), ("reserve_hotel", "3")]
UNDONE = [("cancel_hotel", "HOTEL-3 3"), ("cancel_car", "CAR-2")]


async def compensations(here: Office) -> list[dict[str, Any]]:
    """What the operators' list says of effects that were to be undone."""
    _, _, body = await here.served.get("/v1/effects?limit=100", **as_key("ops"))
    return [each for each in body["data"] if each["compensation"] is not None]


async def test_everything_is_undone_in_reverse_with_its_own_booking_B050(tmp_path: Path) -> None:
    """Arguments come from each step's own result, also what the model was not shown of it, then from its arguments."""
    async with chain(tmp_path, script(*STEPS, LAST)) as here:
        text, headers = await here.ask("a trip")
        assert here.done() == [*DONE, *UNDONE]
        assert text.startswith("All done.")
        assert "undone: `reserve_hotel`, `reserve_car`" in text
        shown = {each["tool"]: each["compensation"] for each in await compensations(here)}
        assert {name: each["status"] for name, each in shown.items()} == {
            "reserve_car": "done",
            "reserve_hotel": "done",
        }
        note = str(here.upstream.requests[-1].messages[-1]["content"])
        assert "was undone" in note, "the model is told too"
        trace = (await here.served.get(f"/v1/traces/{headers['x-gateway-trace']}", **as_key("ops")))[2]
        assert "compensation.recorded" in [event["type"] for event in trace["events"]]


async def test_one_that_fails_twice_is_tried_again_B050(tmp_path: Path) -> None:
    (tmp_path / "fails-cancel_hotel").write_text("2")
    async with chain(tmp_path, script(*STEPS, LAST)) as here:
        text, _ = await here.ask("a trip")
        assert here.done() == [*DONE, *UNDONE]
        assert "Partially" not in text


@pytest.mark.parametrize("by_itself", [True, False])
async def test_one_that_fails_for_good_is_parked_and_the_others_go_on_B050(tmp_path: Path, *, by_itself: bool) -> None:
    (tmp_path / "fails-cancel_hotel").write_text("99")
    async with chain(tmp_path, script(*STEPS, LAST)) as here:
        text, _ = await here.ask("a trip")
        assert here.done() == [*DONE, UNDONE[1]]
        assert "Partially compensated" in text
        assert "Not undone: `reserve_hotel`" in text
        shown = {each["tool"]: each["compensation"] for each in await compensations(here)}
        own = {each["tool"]: each["id"] for each in await compensations(here)}
        assert shown["reserve_hotel"]["status"] == "failed"
        assert "out of order" in shown["reserve_hotel"]["error"]
        assert 'hermes_compensations_total{status="failed",tool="cancel_hotel"} 1.0' in str(
            (await here.served.get("/metrics", **as_key("ops")))[2]
        )
        # An operator mends it, and tries again: what undoes it, or the effect itself.
        (tmp_path / "fails-cancel_hotel").write_text("0")
        again = shown["reserve_hotel"]["undone_by"] if by_itself else own["reserve_hotel"]
        status, _, _ = await here.served.post(f"/v1/effects/{again}/retry", {}, **as_key("ops"))
        assert status == 200

        async def undone() -> bool:
            return {each["tool"]: each["compensation"]["status"] for each in await compensations(here)} == {
                "reserve_car": "done",
                "reserve_hotel": "done",
            }

        await until(undone)
        assert here.done() == [*DONE, UNDONE[1], UNDONE[0]]


async def test_failed_undoing_is_never_called_undone_B051(tmp_path: Path) -> None:
    """One raises, the other returns an error: both have failed, in the answer, the list, the run, the trace and the metric."""
    (tmp_path / "fails-cancel_hotel").write_text("99")
    (tmp_path / "fails-cancel_car").write_text("error result")
    async with chain(tmp_path, script(*STEPS, LAST)) as here:
        text, headers = await here.ask("a trip")
        assert here.done() == DONE
        assert "Not compensated" in text
        shown = {each["tool"]: each["compensation"] for each in await compensations(here)}
        assert {name: each["status"] for name, each in shown.items()} == {
            "reserve_car": "failed",
            "reserve_hotel": "failed",
        }
        assert "it said no" in shown["reserve_car"]["error"]
        trace = (await here.served.get(f"/v1/traces/{headers['x-gateway-trace']}", **as_key("ops")))[2]
        [run_id] = [event["data"]["run"] for event in trace["events"] if event["type"] == "compensation.recorded"]
        run = (await here.served.get(f"/v1/runs/{run_id}", **as_key("ops")))[2]
        assert (run["status"], run["error"]["code"]) == ("failed", "compensation_failed")
        own = (await here.served.get(f"/v1/traces/{run['trace_id']}", **as_key("ops")))[2]
        [end] = [event["data"] for event in own["events"] if event["type"] == "compensation.ended"]
        assert end["state"] == "failed"


async def test_nothing_to_undo_leaves_nothing_behind_B052(tmp_path: Path) -> None:
    """First steps that fail, and one that a model may mend, record no run that anybody would pick up."""
    async with chain(tmp_path, script(LAST)) as here:
        for _ in range(3):
            await here.ask("only a charge")
    (tmp_path / "charge").write_text("retry")
    async with chain(tmp_path, script(*STEPS, LAST)) as here:
        text, _ = await here.ask("a trip")
        assert text == "All done."
        assert here.done() == DONE
        runs = here.served.gateway.store.runs
        assert await runs.newest(None, status=None, dead=None, limit=10, after=None) == []
        assert not await runs.any_open()


async def test_process_that_ends_between_two_steps_goes_on_with_the_rest_B050(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compensation, "BACKOFF_S", 600.0)
    (tmp_path / "fails-cancel_car").write_text("1")
    async with chain(tmp_path, script(*STEPS, LAST)) as here:
        asking = asyncio.create_task(here.ask("a trip"))

        async def half() -> bool:
            return UNDONE[0] in here.done() and (tmp_path / "fails-cancel_car").read_text() == "0"

        await until(half)
        asking.cancel()
        await asyncio.wait([asking])
    monkeypatch.setattr(compensation, "BACKOFF_S", 0.02)
    async with chain(tmp_path, script(*STEPS, LAST)) as here:

        async def settled() -> bool:
            return all(each["compensation"]["status"] == "done" for each in await compensations(here))

        await until(settled)
        assert here.done() == [*DONE, *UNDONE]


async def test_keep_keeps(tmp_path: Path) -> None:
    """Without a word, a request's effects stay."""
    async with chain(tmp_path, script(*STEPS, LAST), mode=None) as here:
        assert (await here.ask("a trip"))[0] == "All done."
        assert here.done() == DONE


async def test_tool_that_ends_the_turn_says_in_its_error_what_was_undone(tmp_path: Path) -> None:
    (tmp_path / "charge").write_text("fatal")
    async with chain(tmp_path, script(*STEPS, LAST)) as here:
        ask = {"model": "auto", "messages": [{"role": "user", "content": "a trip"}]}
        status, _, body = await here.served.post("/v1/chat/completions", ask, **as_key("app"))
        assert (status, body["error"]["code"]) == (502, "tool_failed")
        assert "the bank has closed" in body["error"]["message"]
        assert "undone: `reserve_hotel`, `reserve_car`" in body["error"]["message"]
        assert here.done() == [*DONE, *UNDONE]
        # Nobody goes on with it as if it had been done.
        status, _, body = await here.served.post(
            "/v1/chat/completions", ask, **as_key("app"), x_stainless_retry_count="1"
        )
        assert status == 502
        assert here.done() == [*DONE, *UNDONE]


async def test_client_that_leaves_cancels_and_what_it_had_done_is_undone(tmp_path: Path) -> None:
    (tmp_path / "hold-charge").touch()
    async with chain(tmp_path, script(*STEPS, LAST)) as here:
        asking = asyncio.create_task(here.ask("a trip"))

        async def charging() -> bool:
            return len(here.upstream.requests) == 4 and here.done() == DONE

        await until(charging)
        await asyncio.sleep(0.1)  # its connection is watched by then
        asking.cancel()
        await asyncio.wait([asking])
        (tmp_path / "hold-charge").unlink()

        async def undone() -> bool:
            return here.done() == [*DONE, *UNDONE]

        await until(undone)


async def test_rejection_undoes_what_was_done_before_it(tmp_path: Path) -> None:
    """The turn had ended with what waits: the rejection comes later."""
    async with chain(tmp_path, script(*STEPS, ("sign", {"text": "yes"}))) as here:
        text, headers = await here.ask("a trip")
        assert headers["x-gateway-approval"] in text
        assert here.done() == DONE
        status, _ = await here.decide(headers["x-gateway-approval"], "reject", {"reason": "no"})
        assert status == 200
        # At once: it may not have begun.
        thread = [("user", "a trip"), ("assistant", text), ("user", "go on")]
        said, _ = await here.ask([{"role": role, "content": each} for role, each in thread])
        assert "Because `sign` was not approved, what had been done was undone: `reserve_hotel`, `reserve_car`" in said
        assert "was undone" in told(here.upstream.requests[-1])[-1]["note"]
        assert here.done() == [*DONE, *UNDONE]


@pytest.mark.parametrize("mode", ["compensate", "ask"])
async def test_turn_whose_call_is_rejected_while_it_waits_says_what_became_of_the_rest(
    tmp_path: Path, mode: str
) -> None:
    signs = script(*STEPS, ("sign", {"text": "yes"}))
    async with chain(tmp_path, signs, mode=mode, approvals={"wait_s": 60}) as here:
        turn = asyncio.create_task(here.ask("a trip"))
        approval = (await here.pending())["id"]
        assert (await here.decide(approval, "reject", {"reason": "no"}))[0] == 200
        text, _ = await turn
        if mode == "compensate":
            assert "what had been done was undone: `reserve_hotel`, `reserve_car`" in text
            assert here.done() == [*DONE, *UNDONE]
        else:
            # Whoever waits and whoever decides have both seen to it.
            assert (await here.pending())["id"] in text
            assert here.done() == DONE


async def test_ask_asks_a_human_whether_it_is_to_be_undone(tmp_path: Path) -> None:
    async with chain(tmp_path, script(*STEPS, LAST), mode="ask") as here:
        text, _ = await here.ask("a trip")
        assert "still stands: `reserve_hotel`, `reserve_car`" in text
        assert here.done() == DONE
        approval = (await here.pending())["id"]
        assert approval in text
        assert (await here.decide(approval, "approve"))[0] == 200
        outcome = (await here.settled(approval))["outcome"]
        assert here.done() == [*DONE, *UNDONE]
        assert outcome["ok"]
        thread = [("user", "a trip"), ("assistant", text), ("user", "go on")]
        await here.ask([{"role": role, "content": said} for role, said in thread])
        last = told(here.upstream.requests[-1])[-1]
        assert "what had been done was undone: `reserve_hotel`, `reserve_car`" in last["result"]


async def test_asker_cannot_stop_what_is_being_undone(tmp_path: Path) -> None:
    (tmp_path / "hold-cancel_hotel").touch()
    async with chain(tmp_path, script(*STEPS, LAST)) as here:
        turn = asyncio.create_task(here.ask("a trip"))
        found: list[dict[str, Any]] = []

        async def begun() -> bool:
            found[:] = (await here.served.get("/v1/runs?status=running", **as_key("app")))[2]["data"]
            return bool(found)

        await until(begun)
        status, _, body = await here.served.post(f"/v1/runs/{found[0]['id']}/cancel", {}, **as_key("app"))
        assert (status, "cannot be cancelled" in str(body)) == (400, True)
        (tmp_path / "hold-cancel_hotel").unlink()
        await turn
        assert here.done() == [*DONE, *UNDONE]


async def test_step_that_fails_beside_one_that_waits_undoes_what_was_done(tmp_path: Path) -> None:
    calls = [("reserve_car", {"days": 2}), ("sign", {"text": "it"}), LAST]
    reply = answer(calls=[call(f"call_{name}", name, json.dumps(said)) for name, said in calls])
    async with chain(tmp_path, lambda _: reply) as here:
        text, headers = await here.ask("a trip")
        assert headers["x-gateway-approval"] in text
        assert "Because `charge` failed, what had been done was undone: `reserve_car`" in text
        assert here.done() == [("reserve_car", "2"), ("cancel_car", "CAR-2")]


@pytest.mark.parametrize("cancelled", [True, False])
async def test_background_run_undoes_without_a_word_B067(tmp_path: Path, *, cancelled: bool) -> None:
    """Cancelled in a later step, or failed for good: a started writing call ends, nothing after it starts, all is undone."""
    (tmp_path / "hold-charge").touch()
    (tmp_path / "charge").write_text("no" if cancelled else "fatal")
    async with chain(tmp_path, script(*STEPS, LAST), mode=None) as here:
        run_id = await begin(here, "a trip")

        async def charging() -> bool:
            return len(here.upstream.requests) == 4 and here.done() == DONE

        await until(charging)
        if cancelled:
            status, _, body = await here.served.post(f"/v1/runs/{run_id}/cancel", {}, **as_key("app"))
            assert (status, body["status"]) == (200, "cancelling")
        (tmp_path / "hold-charge").unlink()
        found = await ended(here, run_id)
        assert found["status"] == ("cancelled" if cancelled else "failed")

        async def undone() -> bool:
            return here.done() == [*DONE, *UNDONE]

        await until(undone)
        assert len(here.upstream.requests) == 4


async def test_what_expires_undoes_what_was_done_before_it(tmp_path: Path) -> None:
    async with chain(tmp_path, script(*STEPS, ("sign", {"text": "yes"})), approvals={"expire_s": 1}) as here:
        await here.ask("a trip")
        assert here.done() == DONE

        async def undone() -> bool:
            return here.done() == [*DONE, *UNDONE]

        await until(undone)


async def test_what_was_approved_undoes_nothing_when_its_time_is_over(tmp_path: Path) -> None:
    async with chain(tmp_path, script(*STEPS, ("sign", {"text": "yes"})), approvals={"expire_s": 2}) as here:
        approval = (await here.ask("a trip"))[1]["x-gateway-approval"]
        assert (await here.decide(approval, "approve"))[0] == 200
        await here.settled(approval)

        async def nothing_left() -> bool:
            return not await here.served.gateway.store.runs.any_open()

        await until(nothing_left)
        assert here.done() == [*DONE, ("sign", "yes")]


async def test_run_whose_effects_were_undone_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "charge").write_text("fatal")
    async with chain(tmp_path, script(*STEPS, LAST), mode=None) as here:
        run_id = await begin(here, "a trip")
        assert (await ended(here, run_id))["status"] == "failed"

        async def undone() -> bool:
            return here.done() == [*DONE, *UNDONE]

        await until(undone)
        (tmp_path / "charge").write_text("no")
        status, _, _ = await here.served.post(f"/v1/runs/{run_id}/retry", {}, **as_key("app"))
        assert status == 200
        found = await ended(here, run_id)
        assert found["status"] == "failed"
        assert "was undone" in found["error"]["message"]
        assert here.done() == [*DONE, *UNDONE]
