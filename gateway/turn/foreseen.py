"""What of a request can be refused before its turn begins: for runs, whose asker is gone by the time somebody executes them.

Knows what a turn's preparation would refuse whatever is decided by then. Does not decide anything, and asks no hook.
"""

from __future__ import annotations

from gateway.chat.request import ChatRequest
from gateway.errors import InvalidRequest
from gateway.security.principal import Principal
from gateway.turn.choice import first_choice
from gateway.turn.snapshot import Snapshot, may_use


def refuse_hopeless(request: ChatRequest, principal: Principal, snapshot: Snapshot) -> None:
    """Refuse what no worker could answer, in the words in which the turn itself would be refused.

    Raises:
        NoSuchModel: the model is unknown, or not this caller's.
        InvalidRequest: the request asks for several answers where each is looked at, or for a tool that is nowhere.
    """
    if snapshot.hooks.on_request:
        # It may become another request first.
        return
    if request.model != snapshot.config.router.model or not may_use(principal, request.model):
        snapshot.meant_by(request.model, principal)
    if request.n > 1 and snapshot.hooks.on_answer:
        raise InvalidRequest("`n` must be 1 here: this gateway looks at each answer before it is sent.", param="n")
    # What is offered is known once it is decided: until then, everything there is.
    known = snapshot.tools.names
    first_choice(request, None, known, has_tools=bool(request.tools) or bool(known))
