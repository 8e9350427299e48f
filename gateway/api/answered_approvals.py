"""`mcp_approval_response` items of a Responses request: the asker's own word on what waits.

Knows the items. Who may decide is `gateway/approvals/rules.py`'s; what is decided already stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from gateway.approvals.desk import Desk
from gateway.approvals.rules import refuse_decision
from gateway.chat.codecs.responses_items import APPROVAL_RESPONSE
from gateway.chat.codecs.responses_parts import Item
from gateway.errors import ApprovalDecided, InvalidRequest, NotFound
from gateway.security.principal import Principal

# A deletion's code has no field of its own in OpenAI's item: it stands in the reason.
_CODE: Final = re.compile(r"(?<!\d)\d{6}(?!\d)")


async def answer_approvals(items: Iterable[Item], principal: Principal, desk: Desk) -> None:
    """Decide what the items answer and nobody has decided yet.

    Raises:
        InvalidRequest: there is no such approval of this caller's, or its code is wrong.
        NotAllowed: this caller may not decide it. Rejecting is withdrawing, which whoever asked always may.
        StoreUnavailable: it could not be decided, and was not.
    """
    for index, item in enumerate(items):
        if item.get("type") != APPROVAL_RESPONSE:
            continue
        where = f"input[{index}]"
        approval_id: Any = item.get("approval_request_id")
        approves = item.get("approve")
        if not isinstance(approves, bool):
            raise InvalidRequest(
                f"`{where}.approve` is {approves!r}; expected true or false.", param=f"{where}.approve"
            )
        try:
            row = await desk.get(str(approval_id), principal.owner)
        except NotFound as error:
            raise InvalidRequest(
                f"`{where}.approval_request_id` is {approval_id!r}: nothing of that id waits for approval.",
                param=f"{where}.approval_request_id",
            ) from error
        if desk.status_of(row) != "pending":
            continue
        reason = item.get("reason") if isinstance(item.get("reason"), str) else None
        try:
            if approves:
                refuse_decision(principal, row, desk.config)
                code = _CODE.search(reason or "")
                await desk.decide(
                    row, "approved", by=principal.owner, reason=reason, code=code[0] if code is not None else None
                )
            else:
                await desk.withdraw(row, principal.owner)
        except ApprovalDecided:
            # Somebody was quicker: the turn tells what came of it.
            continue
