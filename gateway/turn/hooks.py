"""Where operators' own code looks in: hooks that may change or refuse.

Knows the order hooks run in and what each may return. Does not know where they were loaded from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway.chat.blocks import Message
from gateway.chat.request import ChatRequest
from gateway.routing.decision import Decision
from gateway.security.principal import Principal
from gateway.tools.look_ahead import reach_of

Hook = Callable[..., Awaitable[Any]]


class Hooks:
    """The hooks of one version, in the order of the plugins' file names.

    A hook refuses by raising a `GatewayError`, usually `NotAllowed` or `InvalidRequest`; it changes by returning a value of
    the kind it was given, and leaves things as they are by returning None.

    Attributes:
        at_begin: whether there are any that a turn waits for before it runs.
        reach: how many characters `on_answer` hooks look around each place; None where one has to see the whole answer.
    """

    __slots__ = ("at_begin", "on_answer", "on_decision", "on_event", "on_request", "reach")

    def __init__(self, found: Mapping[str, Sequence[Hook]]) -> None:
        self.on_request = tuple(found.get("on_request", ()))
        self.on_decision = tuple(found.get("on_decision", ()))
        self.on_answer = tuple(found.get("on_answer", ()))
        self.on_event = tuple(found.get("on_event", ()))
        self.at_begin = bool(self.on_request or self.on_decision)
        self.reach = reach_of(self.on_answer)

    async def request(self, request: ChatRequest, principal: Principal) -> ChatRequest:
        """Run `on_request(request, principal)`."""
        for hook in self.on_request:
            request = await hook(request, principal) or request
        return request

    async def decision(self, decision: Decision, request: ChatRequest, principal: Principal) -> Decision:
        """Run `on_decision(decision, request, principal)`."""
        for hook in self.on_decision:
            decision = await hook(decision, request, principal) or decision
        return decision

    async def answer(self, message: Message, principal: Principal) -> Message:
        """Run `on_answer(message, principal)`. Where `reach` is None, a turn streams only after they have seen the whole answer."""
        for hook in self.on_answer:
            message = await hook(message, principal) or message
        return message
