"""`before_tool` and `after_tool`: operators' code that may change or refuse a call, and change or withhold its result.

Knows what each may return and that one that fails has not allowed anything. Does not know how a call is run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.observe.events import Recorder
from gateway.tools.outcome import Call, CallFailed, Outcome, words_of
from gateway.tools.provider import Hook
from gateway.tools.result import Shown, failure
from gateway.tools.spec import ToolContext, ToolFatal, ToolRetry
from gateway.tools.validate import ArgumentValidator

# A hook stands in the way of every call: it answers in this many seconds, or it has failed.
HOOK_TIMEOUT_S = 10.0
# Most of what a hook says of its refusal.
_MAX_BYTES = 8192

Show = Callable[[Any], Awaitable[Shown]]


async def before_tool(
    hooks: Sequence[Hook], call: Call, context: ToolContext, validator: ArgumentValidator, record: Recorder
) -> dict[str, Any]:
    """The arguments after every hook; those that a hook changed are validated again.

    Raises:
        ToolRetry: a hook asks the model to try again.
        ToolFatal: a hook ends the turn.
        InvalidArguments: a hook's own arguments are not what the tool takes.
        CallFailed: a hook failed or did not answer.
    """
    for hook in hooks:
        try:
            async with asyncio.timeout(HOOK_TIMEOUT_S):
                changed = await hook(call, context)
        except (ToolRetry, ToolFatal) as refusal:
            record.emit("hook.refused", hook=_name(hook), call_id=call.id, message=str(refusal))
            raise
        except Exception as error:
            record.emit("hook.refused", hook=_name(hook), call_id=call.id, message=words_of(error))
            raise CallFailed(f"`{call.name}` was not run: a check before it failed") from error
        if changed is not None:
            if not isinstance(changed, Mapping):
                message = f"the hook returned {type(changed).__name__} where arguments belong"
                record.emit("hook.refused", hook=_name(hook), call_id=call.id, message=message)
                raise CallFailed(f"`{call.name}` was not run: a check before it failed")
            call = Call(call.id, call.name, validator.validate(dict(changed)))
            record.emit("hook.changed", hook=_name(hook), call_id=call.id, arguments=call.arguments)
    return call.arguments


async def after_tool(
    hooks: Sequence[Hook],
    call: Call,
    outcome: Outcome,
    context: ToolContext,
    show: Show,
    record: Recorder,
) -> tuple[Outcome, Shown | None]:
    """The outcome after every hook: another result in the result's place, or an error where a hook withholds it.

    `show` makes what the model sees of a hook's own result. With the outcome comes the result that a hook has put in the
    tool's place, or None where the tool's own stands.
    """
    own: Shown | None = None
    for hook in hooks:
        try:
            async with asyncio.timeout(HOOK_TIMEOUT_S):
                changed = await hook(call, outcome, context)
            if changed is None:
                continue
            own = await show(changed)
            outcome = msgspec.structs.replace(outcome, ok=True, content=own.content, error=None, pictures=())
            record.emit("hook.changed", hook=_name(hook), call_id=call.id)
        except ToolFatal as stop:
            text = str(stop) or f"a check after `{call.name}` ended the turn"
            record.emit("hook.refused", hook=_name(hook), call_id=call.id, message=text)
            content = failure(text, _MAX_BYTES)
            return msgspec.structs.replace(outcome, ok=False, content=content, error=text, fatal=text, pictures=()), own
        except Exception as error:  # noqa: BLE001 - foreign code: a guard that fails has not let the result pass
            text = f"the result of `{call.name}` was withheld: {words_of(error)}"
            record.emit("hook.refused", hook=_name(hook), call_id=call.id, message=text)
            content = failure(text, _MAX_BYTES)
            outcome = msgspec.structs.replace(outcome, ok=False, content=content, error=text, pictures=())
    return outcome, own


def _name(hook: Hook) -> str:
    return ".".join(f"{hook.__module__}.{hook.__qualname__}".split(".")[-2:])
