"""What waits for a human is shown with placeholders, done with the values, and revealed to whoever may ask."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.approvals.office import as_key, office
from tests.upstream import UpstreamRequest, answer, call

MAIL = "sam.roe@example.org"


async def test_an_approval_is_shown_with_placeholders_and_done_with_the_values(tmp_path: Path) -> None:
    def pays(request: UpstreamRequest) -> Any:
        found = re.search(r"\[\[email:[a-z]+\]\]", request.messages[-1]["content"])
        assert found, request.messages
        return answer(calls=[call("c1", "pay", json.dumps({"to": found.group(), "cents": 5}))])

    async with office(tmp_path, pays, then=answer("ok"), privacy="mask") as at:
        text, _ = await at.ask(f"pay {MAIL} five cents")
        assert MAIL in text
        one = await at.pending()
        shown = one["arguments"]["to"]
        assert re.fullmatch(r"\[\[email:[a-z]+\]\]", shown)
        asked = {"placeholder": shown, "owner": one["owner"]}
        assert (await at.served.post("/v1/placeholders/reveal", asked, **as_key("ops")))[2]["value"] == MAIL
        await at.decide(one["id"], "approve")
        settled = await at.settled(one["id"])
        assert MAIL not in json.dumps(settled)
        assert at.done() == [("pay", f"{MAIL} 5")]
        _, _, listed = await at.served.get("/v1/traces", **as_key("ops"))
        for row in listed["data"]:
            assert MAIL not in json.dumps((await at.served.get(f"/v1/traces/{row['id']}", **as_key("ops")))[2])
