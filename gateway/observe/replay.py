"""A stored turn as something to read.

Pure. Knows events; does not know where they were kept or who may read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gateway.observe.encoding import decode_events
from gateway.observe.events import Event
from gateway.store.trace_records import TraceRow

_WIDTH: Final = 160


def replay(row: TraceRow, *, width: int = _WIDTH) -> str:
    """The turn, step by step; texts are cut to `width` characters."""
    turn = row.summary
    began = datetime.fromtimestamp(turn.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    route = f"route {turn.route or '-'} ({turn.strategy or '-'})"
    served = f"model {turn.model or '-'}  backend {turn.backend or '-'}  version {turn.version or '-'}"
    lines = [
        f"trace {turn.trace_id}  {began}  status {turn.status}  {turn.seconds:.3f} s",
        f"owner {turn.owner}  {route}  {served}",
        "",
    ]
    for event in decode_events(row.events):
        offset = f"{(event.at - turn.started_at) * 1000:9.1f} ms"
        text = [_cut(line, width) for line in _told(event, width)]
        lines.append(f"{offset}  {event.type:<17} {text[0]}".rstrip())
        lines += [f"{'':12}  {'':17} {line}" for line in text[1:]]
    lines.append("")
    lines.append(f"{turn.prompt_tokens} prompt tokens, {turn.completion_tokens} completion tokens")
    return "\n".join(map(_printable, lines))


def _told(event: Event, width: int) -> Iterator[str]:
    tell = _TELL.get(event.type)
    if tell is None:
        yield _pairs(event.data, width)
        return
    lines = [line for line in tell(event.data, width) if line]
    yield from lines or [""]


def _received(data: Mapping[str, Any], width: int) -> Iterator[str]:
    stream = ", streamed" if data.get("stream") else ""
    yield f"{data.get('endpoint', '')} for {data.get('model', '-')}{stream}"
    for message in data.get("messages") or ():
        yield _message(message, width)
    if data.get("tools"):
        yield f"client tools: {', '.join(map(str, data['tools']))}"


def _decided(data: Mapping[str, Any], _width: int) -> Iterator[str]:
    score = f", score {data['score']:.3f}" if isinstance(data.get("score"), float) else ""
    cached = ", cached" if data.get("cached") else ""
    yield f"route {data.get('route') or '-'} by {data.get('strategy')}{score}{cached} -> model {data.get('model')}"
    if data.get("reason"):
        yield str(data["reason"])


def _answered(data: Mapping[str, Any], width: int) -> Iterator[str]:
    tokens = f"{data.get('prompt_tokens') or 0}+{data.get('completion_tokens') or 0} tokens"
    yield f"{data.get('backend')}: {data.get('finish_reason')}, {tokens}, {_seconds(data.get('seconds'))}"
    for call in data.get("tool_calls") or ():
        name, arguments = _asked(call)
        yield f"asks for {name}({_cut(arguments, width)})"
    if data.get("content"):
        yield f"says: {_cut(data['content'], width)}"


def _asked(call: Any) -> tuple[str, str]:
    """The name and the arguments of a call, in Chat Completions' form or already reduced."""
    if not isinstance(call, Mapping):
        return str(call), ""
    function = call.get("function")
    inner: Mapping[str, Any] = function if isinstance(function, Mapping) else call
    return str(inner.get("name")), str(inner.get("arguments") or "")


def _tool_started(data: Mapping[str, Any], width: int) -> Iterator[str]:
    yield f"{data.get('name')}({_cut(data.get('arguments', ''), width)})"


def _tool_finished(data: Mapping[str, Any], width: int) -> Iterator[str]:
    outcome = "ok" if data.get("ok") else "failed"
    yield f"{data.get('name')}: {outcome}, {_seconds(data.get('seconds'))}"
    if data.get("error"):
        yield f"error: {_cut(data['error'], width)}"
    if data.get("content"):
        yield f"result: {_cut(data['content'], width)}"


def _offered(data: Mapping[str, Any], _width: int) -> Iterator[str]:
    yield ", ".join(map(str, data.get("names") or ())) or "none"
    if data.get("chosen_by"):
        yield f"chosen by {data['chosen_by']}"
    for name, why in (data.get("left_out") or {}).items():
        yield f"not {name}: {why}"


def _guarded(data: Mapping[str, Any], width: int) -> Iterator[str]:
    more = {name: value for name, value in data.items() if name not in {"name", "call_id", "guard", "decision"}}
    yield f"{data.get('name')}: {data.get('guard')} {data.get('decision')}  {_pairs(more, width)}".rstrip()


def _effect(data: Mapping[str, Any], width: int) -> Iterator[str]:
    more = {name: value for name, value in data.items() if name not in {"tool", "status", "effect", "error"}}
    status = f": {data['status']}" if data.get("status") else ""
    yield f"{data.get('tool')}{status}  {data.get('effect')}  {_pairs(more, width)}".rstrip()
    if data.get("error"):
        yield _cut(data["error"], width)


def _state(data: Mapping[str, Any], _width: int) -> Iterator[str]:
    reason = f" ({data['reason']})" if data.get("reason") else ""
    yield f"{data.get('from')} -> {data.get('to')}{reason}"


def _ended(data: Mapping[str, Any], width: int) -> Iterator[str]:
    own = ("rounds", "finish_reason", "upstream_s", "tool_s", "first_token_s", "code")
    yield f"status {data.get('status')}, {_seconds(data.get('seconds'))}"
    yield _pairs({name: data[name] for name in own if data.get(name) is not None}, width)
    if data.get("message"):
        yield _cut(data["message"], width)


_TELL: Final[Mapping[str, Callable[[Mapping[str, Any], int], Iterator[str]]]] = {
    "request.received": _received,
    "decision.made": _decided,
    "tools.offered": _offered,
    "round.answered": _answered,
    "tool.started": _tool_started,
    "tool.finished": _tool_finished,
    "guard.decided": _guarded,
    "effect.started": _effect,
    "effect.finished": _effect,
    "effect.found": _effect,
    "effect.probed": _effect,
    "effect.unknown": _effect,
    "state.changed": _state,
    "turn.finished": _ended,
    "turn.failed": _ended,
    "turn.cancelled": _ended,
}


def _message(message: Any, width: int) -> str:
    """One message of the request: its JSON, or plain text."""
    if isinstance(message, str):
        try:
            message = json.loads(message)
        except ValueError:
            return _cut(message, width)
    if not isinstance(message, Mapping):
        return _cut(message, width)
    content = message.get("content")
    calls = message.get("tool_calls")
    text = content if isinstance(content, str) else "" if content is None else content
    asked = f" asks for {_cut(calls, width)}" if calls else ""
    return f"{message.get('role', '?')}: {_cut(text, width)}{asked}"


def _pairs(values: Mapping[str, Any], width: int) -> str:
    return "  ".join(f"{name} {_cut(value, width)}" for name, value in values.items() if value is not None)


def _seconds(value: Any) -> str:
    return f"{value:.3f} s" if isinstance(value, (int, float)) else "-"


def _cut(value: Any, width: int) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    line = " ".join((value if isinstance(value, str) else _as_json(value)).split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _printable(text: str) -> str:
    # A trace is shown on a terminal: what somebody sent must not move its cursor.
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _as_json(value: Sequence[Any] | Mapping[str, Any] | Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)
