"""Where private data is masked, a model never sees it, not in what was approved either; tools and clients do."""

from __future__ import annotations

import json
from pathlib import Path

from tests.approvals.office import office
from tests.replies import Reply, answer, call
from tests.upstream import UpstreamRequest

PHONE = "13812345678"


async def test_masked_values_reach_the_tool_and_no_model(tmp_path: Path) -> None:
    def script(request: UpstreamRequest) -> Reply:
        assert PHONE not in json.dumps(request.json, ensure_ascii=False)
        said = request.messages[-1]
        if said["role"] == "user" and "pay" in said["content"]:
            masked = said["content"].removeprefix("pay ")
            return answer(calls=[call("c1", "pay", json.dumps({"to": masked, "cents": 5}))])
        return answer("Done.")

    async with office(tmp_path, then=script, privacy={"mode": "mask"}) as here:
        text, headers = await here.ask(f"pay {PHONE}")
        approval = headers["x-gateway-approval"]
        assert PHONE in text, "the client gets its own words back"
        assert PHONE not in json.dumps(await here.approval(approval)), (
            "approvers see placeholders, and may look them up"
        )
        assert (await here.decide(approval, "approve"))[0] == 200
        await here.settled(approval)
        assert here.done() == [("pay", f"{PHONE} 5")]
        thread = [
            {"role": "user", "content": f"pay {PHONE}"},
            {"role": "assistant", "content": text},
            {"role": "user", "content": "go on"},
        ]
        assert (await here.ask(thread))[0] == "Done."
