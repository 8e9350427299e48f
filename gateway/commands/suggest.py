"""`hermes-gateway suggest`: what people asked that no route was sure of, as candidates for utterances or for no route.

Reads traces and changes nothing. Texts are there only as far as `observe.traces` keeps them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from gateway.building import Builder
from gateway.chat.codecs.chat_completions import decode_request
from gateway.chat.request import ChatRequest
from gateway.clock import SystemClock
from gateway.commands.client import Unreachable, get_json, over_http
from gateway.commands.files import paths_of, settings_of, tell
from gateway.errors import ConfigError, InvalidRequest, StoreUnavailable
from gateway.routing.normalise import normalise
from gateway.routing.suggestions import Asked, Suggestion, is_telling, suggest
from gateway.routing.text import routing_text
from gateway.security.principal import Principal
from gateway.settings import Settings
from gateway.store.sql import SqlStore
from gateway.turn.prepare import Wishes, decide
from gateway.turn.snapshot import Snapshot

# A longer text is no example of anything; of one question more wordings than these say nothing new.
_LONGEST: Final = 300
_SHOWN: Final = 8
# Different texts that are compared with each other.
_MOST: Final = 2000
_PAGE: Final = 100
_BY_LIKENESS: Final = frozenset({"semantic", "default"})


class _Found(msgspec.Struct):
    """What was read, and what came of it."""

    turns: int = 0
    without_text: int = 0
    suggestions: list[Suggestion] = []


def run(arguments: argparse.Namespace) -> int:
    """Print suggestions."""
    try:
        settings = settings_of()
        found = asyncio.run(_suggestions(arguments, settings))
    except ConfigError as error:
        return tell(error)
    except (StoreUnavailable, Unreachable) as error:
        print(error, file=sys.stderr)
        return 3
    if arguments.format == "json":
        print(msgspec.json.encode({"object": "list", "turns": found.turns, "data": found.suggestions}).decode())
    else:
        print("\n".join(_lines(found)))
    return 0


async def _suggestions(arguments: argparse.Namespace, settings: Settings) -> _Found:
    builder = Builder(*paths_of(arguments, settings), settings, SystemClock())
    try:
        snapshot = await builder.first()
        try:
            found = _Found()
            counts: Counter[str] = Counter()
            requests: dict[str, ChatRequest] = {}
            async with aclosing(_turns(settings, snapshot, arguments.limit)) as turns:
                async for events in turns:
                    found.turns += 1
                    request = _request(events, snapshot)
                    text = routing_text(request.messages).strip() if request else ""
                    if request is None or not text:
                        found.without_text += 1
                    elif len(text) <= _LONGEST and (text in requests or len(requests) < _MOST):
                        counts[text] += 1
                        requests.setdefault(text, request)
            await snapshot.router.prepare()
            asked = [
                Asked(
                    text,
                    counts[text],
                    await decide(requests[text], Principal("local"), Wishes(), snapshot, explain=True),
                )
                for text in requests
            ]
            telling = [each for each in asked if is_telling(each.decision)]
            encoder = builder.encoder(snapshot.config.router.semantic)
            if telling and encoder is not None:
                vectors = await encoder.encode([normalise(each.text) for each in telling])
                found.suggestions = await asyncio.to_thread(suggest, telling, vectors)
            return found
        finally:
            await builder.dismiss(snapshot)
    finally:
        await builder.close()


async def _turns(settings: Settings, snapshot: Snapshot, limit: int) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The events of the newest turns that likeness, or nothing, decided; of `limit` turns in all."""
    if over_http(settings):
        async for row in _listed(settings, limit):
            found = await get_json(settings, f"/v1/traces/{row['id']}") if row.get("strategy") in _BY_LIKENESS else None
            if found is not None:
                yield found["events"]
        return
    store = SqlStore(snapshot.config.storage.database)
    try:
        await store.open()
        after: str | None = None
        while limit > 0:
            rows = await store.traces.newest(None, limit=min(limit, _PAGE), after=after)
            if not rows:
                return
            for summary in rows:
                whole = await store.traces.get(summary.trace_id, None) if summary.strategy in _BY_LIKENESS else None
                if whole is not None and whole.events:
                    yield msgspec.json.decode(whole.events)
            limit, after = limit - len(rows), rows[-1].trace_id
    finally:
        await store.close()


async def _listed(settings: Settings, limit: int) -> AsyncGenerator[dict[str, Any], None]:
    after = ""
    while limit > 0:
        page = await get_json(settings, f"/v1/traces?limit={min(limit, _PAGE)}{after}") or {}
        rows = page.get("data") or []
        for row in rows:
            yield row
        if not rows or not page.get("has_more"):
            return
        limit, after = limit - len(rows), f"&after={rows[-1]['id']}"


def _request(events: Sequence[Mapping[str, Any]], snapshot: Snapshot) -> ChatRequest | None:
    """What the turn asked, to be routed again; None where its trace holds no messages."""
    received = (event["data"] for event in events if event.get("type") == "request.received")
    data: Mapping[str, Any] = next(received, {})
    if not data.get("messages"):
        return None
    body = {"model": snapshot.config.router.model, "messages": data["messages"]}
    try:
        return decode_request(msgspec.json.encode(body))
    except (InvalidRequest, UnicodeEncodeError):
        # Shortened or half a surrogate pair: nothing to learn from.
        return None


def _lines(found: _Found) -> Iterator[str]:
    """Comments, and YAML to be pasted into the file that each comment names."""
    yield f"# {found.turns} turns were decided by likeness or by nothing; {len(found.suggestions)} groups of texts to look at."
    if found.without_text:
        hold = "holds" if found.without_text == 1 else "hold"
        yield f"# {found.without_text} of them {hold} no text: see `observe.traces.content` and what clients send."
    for suggestion in found.suggestions:
        yield ""
        if suggestion.kind == "utterances":
            yield f"# Sent {_times(suggestion.n)}, nearly like route {suggestion.route}. In its file:"
            yield "utterances:"
            indent = "  "
        else:
            yield f"# Sent {_times(suggestion.n)}, far from every route (the nearest is {suggestion.route}). In the gateway's file, or a new route:"
            yield "router:"
            yield "  semantic:"
            yield "    none:"
            indent = "      "
        for text in suggestion.texts[:_SHOWN]:
            needed = "" if text.threshold is None else f" of {text.threshold:.2f}"
            yield f"{indent}- {_quoted(text.text)}  # {_times(text.n)}, {text.reason}, score {text.score:.2f}{needed}"
        if len(suggestion.texts) > _SHOWN:
            yield f"{indent}# and {len(suggestion.texts) - _SHOWN} more like these"


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _quoted(text: str) -> str:
    """The text as YAML reads it back, on one line, with nothing that a terminal would act upon."""
    escaped = json.dumps(text.replace("${", "$${"), ensure_ascii=False)
    return "".join(char if char.isprintable() else _code(ord(char)) for char in escaped)


def _code(point: int) -> str:
    if 0xD800 <= point <= 0xDFFF:
        return "\\uFFFD"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"
