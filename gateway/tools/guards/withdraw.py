"""`withdraw_approval`: the model takes back a call that waits for a human, because its user has changed their mind.

Knows the tool as models see it. What withdrawing comes to is the turn's (`gateway/turn/approving.py`).
"""

from __future__ import annotations

from typing import Final

from gateway.tools.spec import make_spec
from gateway.tools.validate import ArgumentValidator

WITHDRAW: Final = make_spec(
    name="withdraw_approval",
    description=(
        "Withdraw an action that still waits for approval, when the user no longer wants it (撤回, 取消审批). "
        "It will not be done then, whatever an approver decides."
    ),
    parameters={
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "the approval's id, as in apr_0123456789abcdef01234567"}
        },
        "required": ["id"],
        "additionalProperties": False,
    },
    provider="gateway",
    origin="gateway",
    timeout_s=10,
)
WITHDRAW_ARGUMENTS: Final = ArgumentValidator(WITHDRAW.parameters)
