"""Events as JSON, and what sums a trace up.

Knows what may be captured. Does not know where it is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from gateway.observe.events import Event, Recorder
from gateway.observe.masked import is_touched, masked_events
from gateway.observe.redaction import Redactor
from gateway.security.masking.messages import Conversation
from gateway.store.trace_records import TraceRow, TraceSummary

Content = Literal["masked", "none"]

# What people and models said. Everything else in an event is names, numbers and states.
_SAID: Final = frozenset(
    {
        "messages",
        "content",
        "arguments",
        "raw",
        "whole",
        "error",
        "message",
        "text",
        "candidates",
        "matched",
        "pins",
        "summary",
    }
)
# The last event of a trace: its `data` sums the turn up.
LAST: Final = frozenset(
    {"turn.finished", "turn.failed", "turn.cancelled", "request.refused", "approval.executed", "compensation.ended"}
)

# What a summary says of what the last event says: its fields behind the times.
_IN_SUMMARY: Final = TraceSummary.__struct_fields__[4:]
_NOTHING: Final = Event(0, "turn.failed", 0.0, {})

_encoder: Final = msgspec.json.Encoder(enc_hook=repr)
_quick: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(list[Event])


def summary(trace: Recorder) -> Mapping[str, Any]:
    """What the trace's last event says of the whole turn; empty where the turn has no such event."""
    if trace.events and trace.events[-1].type in LAST:
        return trace.events[-1].data
    return {}


def encode_events(events: Sequence[Event], content: Content = "masked", redactor: Redactor | None = None) -> bytes:
    """The events as a JSON list, without secrets; with `content="none"` without anything anybody said."""
    encoded = None
    if content == "masked":
        try:
            # As they are, where all in them is JSON already.
            encoded = _quick(events)
            if not encoded.isascii():
                encoded.decode()
        except (UnicodeError, RecursionError, TypeError, ValueError):
            encoded = None
    if encoded is None:
        encoded = _encoded([_plain(event) if content == "masked" else _without_content(event) for event in events])
    return encoded if redactor is None else redactor.clean_json(encoded)


def _encoded(kept: list[Event]) -> bytes:
    try:
        return _encoder.encode(kept)
    except (UnicodeEncodeError, RecursionError, TypeError, ValueError):
        # Half a surrogate pair, or a value that is no JSON: slower, and never at a loss.
        plain = [{"seq": item.seq, "type": item.type, "at": item.at, "data": item.data} for item in kept]
        return json.dumps(plain, default=repr, skipkeys=True).encode()


def decode_events(events: bytes) -> list[Event]:
    """The events of a stored trace."""
    return _decoder.decode(events) if events else []


def trace_row(
    trace: Recorder,
    content: Content = "masked",
    redactor: Redactor | None = None,
    private: Conversation | None = None,
) -> TraceRow:
    """The row that is kept of a finished turn, with placeholders for what is `private`."""
    events = trace.events
    encoded = encode_events(events, content, redactor)
    if private is not None and is_touched(private, encoded):
        encoded = masked_events(private, encoded)
    return TraceRow(summary_of(trace), encoded)


def summary_of(trace: Recorder) -> TraceSummary:
    """What a trace says of its turn without its events."""
    events = trace.events
    first, last = (events[0], events[-1]) if events else (_NOTHING, _NOTHING)
    if last.type == "turn.finished":
        return answered_summary(trace)
    said: Iterable[Any] = map((last if last.type in LAST else _NOTHING).data.get, _IN_SUMMARY)
    return _completed(TraceSummary(trace.trace_id, trace.owner, first.at, last.at, *said))


def answered_summary(trace: Recorder) -> TraceSummary:
    """The same of a turn that was answered, whose last event says everything."""
    events = trace.events
    last = events[-1]
    said: Iterable[Any] = map(last.data.get, _IN_SUMMARY)
    return TraceSummary(trace.trace_id, trace.owner, events[0].at, last.at, *said)


def _completed(summary: TraceSummary) -> TraceSummary:
    """The summary with what its trace does not say."""
    key, _, user = summary.owner.partition("/")
    return msgspec.structs.replace(
        summary,
        key=summary.key or key,
        user=summary.user or user or None,
        status=summary.status or 500,
        seconds=summary.seconds or summary.finished_at - summary.started_at,
        prompt_tokens=summary.prompt_tokens or 0,
        completion_tokens=summary.completion_tokens or 0,
    )


def _without_content(event: Event) -> Event:
    kept: dict[str, Any] = {}
    for name, value in event.data.items():
        if name in _SAID:
            continue
        if name == "fields":
            # A request's other fields: their names say enough.
            kept[name] = sorted(value) if isinstance(value, Mapping) else value
        elif name == "tool_calls" and isinstance(value, (list, tuple)):
            kept[name] = [_call_without_arguments(call) for call in value]
        else:
            kept[name] = value
    return Event(event.seq, event.type, event.at, kept)


def _call_without_arguments(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return getattr(call, "name", None)
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else call.get("name")
    return {"id": call.get("id"), "name": name}


def _plain(event: Event) -> Event:
    """The event with raw JSON read, so that whatever bytes a client sent, the trace is valid JSON."""
    data = event.data
    if event.type == "request.received":
        data = {name: _read(value) if name in {"messages", "fields"} else value for name, value in data.items()}
    return event if data is event.data else Event(event.seq, event.type, event.at, data)


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _read(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_read(item) for item in value]
    if isinstance(value, (bytes, msgspec.Raw)):
        # The codec has read these bytes as JSON, so they stand in the trace as they are; all but their encoding.
        text = bytes(value)
        try:
            text.decode()
        except UnicodeDecodeError:
            return text.decode(errors="replace")
        return msgspec.Raw(text)
    return value
