"""Approvals as the Responses API shows them, with OpenAI's own SDK and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.approvals.office import SECRETS, asks, office, told, until
from tests.replies import answer

DELETE = {"order_id": "SO-1"}
PAY = {"to": "alice", "cents": 500}


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_waits_is_an_item_and_the_outcome_follows(tmp_path: Path, *, streamed: bool) -> None:
    script = [asks("delete_order", DELETE)]
    async with office(tmp_path, *script) as here, here.served.sdk(SECRETS["app"]) as client:
        first: Any
        if streamed:
            async with client.responses.stream(model="auto", input="delete SO-1") as events:
                first = await events.get_final_response()
        else:
            first = await client.responses.create(model="auto", input="delete SO-1")
        [request] = [item for item in first.output if item.type == "mcp_approval_request"]
        assert (request.name, request.server_label) == ("delete_order", "gateway")
        assert request.id in first.output_text
        assert first.status == "completed"
        assert here.done() == []
        code = (await here.approval(request.id))["code"]
        assert (await here.decide(request.id, "approve", {"code": code}))[0] == 200
        await here.settled(request.id)
        here.upstream.enqueue(answer("It is deleted."), answer("You are welcome."))
        second = await client.responses.create(model="auto", input="go on", previous_response_id=first.id)
        assert second.output_text == "It is deleted."
        [made] = [item for item in second.output if item.type == "mcp_call"]
        assert (made.name, made.output) == ("delete_order", '{"ok":true,"result":{"deleted":"SO-1"}}')
        third = await client.responses.create(model="auto", input="thanks", previous_response_id=second.id)
        assert third.output_text == "You are welcome."
        assert [each["ok"] for each in told(here.upstream.requests[-1])].count(True) == 1
        assert here.done() == [("delete_order", "SO-1")]


async def test_response_item_approves_where_the_asker_may_and_withdraws_always(tmp_path: Path) -> None:
    script = [asks("pay", PAY), answer("Paid."), asks("pay", PAY), answer("Not paid.")]
    async with (
        office(tmp_path, *script, approvals={"self_approve": True}) as here,
        here.served.sdk(SECRETS["app"]) as client,
    ):
        for approve, said in ((True, "Paid."), (False, "Not paid.")):
            first = await client.responses.create(model="auto", input="pay alice")
            [request] = [item for item in first.output if item.type == "mcp_approval_request"]
            word: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
            second = await client.responses.create(model="auto", input=[word], previous_response_id=first.id)
            assert second.output_text == said
            assert told(here.upstream.requests[-1])[-1]["ok"] is approve
        assert here.done() == [("pay", "alice 500")]


async def test_response_item_of_an_asker_who_may_not_is_refused(tmp_path: Path) -> None:
    async with office(tmp_path, asks("pay", PAY)) as here, here.served.sdk(SECRETS["app"]) as client:
        first = await client.responses.create(model="auto", input="pay alice")
        [request] = [item for item in first.output if item.type == "mcp_approval_request"]
        word: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        with pytest.raises(openai.PermissionDeniedError):
            await client.responses.create(model="auto", input=[word], previous_response_id=first.id)
        others: list[Any] = [
            {**word, "approval_request_id": "apr_000000000000000000000000"},
            {**word, "approve": "yes"},
        ]
        for other in others:
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(model="auto", input=[other], previous_response_id=first.id)
        assert (await here.approval(request.id))["status"] == "pending"
        assert here.done() == []


async def test_background_response_waits_and_goes_on(tmp_path: Path) -> None:
    async with office(tmp_path, asks("pay", PAY), answer("Paid.")) as here, here.served.sdk(SECRETS["app"]) as client:
        made = await client.responses.create(model="auto", input="pay alice", background=True)
        approval = (await here.pending())["id"]
        assert (await client.responses.retrieve(made.id)).status in ("queued", "in_progress")
        assert (await here.decide(approval, "approve"))[0] == 200

        async def over() -> bool:
            return (await client.responses.retrieve(made.id)).status == "completed"

        await until(over)
        assert (await client.responses.retrieve(made.id)).output_text == "Paid."
        assert here.done() == [("pay", "alice 500")]
