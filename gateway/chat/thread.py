"""How a conversation is recognised without the client's help: a hash chain over its visible messages.

Pure. Two requests of one conversation share every hash up to where they part; the owner is part of the first link, so
equal texts of two owners never meet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from gateway.chat.blocks import Message, Reasoning, Refusal, Text, ToolCall, ToolResult

# Up to here every whole number has a float of its own.
_EXACT = 2**53

_encode = msgspec.json.Encoder(order="deterministic").encode


def chain(owner: str, messages: Sequence[Message]) -> tuple[str, ...]:
    """The hash after each message: `chain(owner, m)[i]` names the conversation up to and with message i.

    Canonical form: role, text and calls. How content was cut into parts, `null` against `""`, the order of JSON keys and
    fields that clients add or drop on the way back (`refusal`, `annotations`, reasoning), white space around a text, how
    numbers in arguments are spelled (JavaScript's `1` for `1.0`) and the order of results behind one message make no
    difference.
    """
    link = hashlib.sha256(b"thread\0" + owner.encode("utf-8", "surrogatepass")).digest()
    hashes: list[str] = []
    before, results = link, list[bytes]()
    for message in messages:
        if message.role == "tool":
            # Clients that run calls in parallel send results in no order.
            before = before if results else link
            results.append(hashlib.sha256(canonical(message)).digest())
            link = hashlib.sha256(before + b"".join(sorted(results))).digest()
        else:
            results.clear()
            link = hashlib.sha256(link + canonical(message)).digest()
        hashes.append(link.hex())
    return tuple(hashes)


def visible_hash(message: Message) -> str:
    """The hash of one message alone, in the same canonical form."""
    return hashlib.sha256(canonical(message)).hexdigest()


def canonical(message: Message) -> bytes:
    """The message reduced to what both sides of a conversation agree upon."""
    role = "system" if message.role == "developer" else message.role
    if len(message.blocks) == 1 and type(message.blocks[0]) is Text:  # most messages
        return _encode([role, message.blocks[0].text.strip(), []])
    text: list[str] = []
    rest: list[object] = []
    for block in message.blocks:
        match block:
            case Text(text=value):
                text.append(value)
            case ToolCall(id=call_id, name=name, arguments=arguments):
                rest.append(["call", call_id, name, same_json(arguments)])
            case ToolResult(call_id=call_id, text=value):
                rest.append(["result", call_id, value])
            case Reasoning() | Refusal():
                pass
            case _:
                rest.append(msgspec.to_builtins(block))
    return _encode([role, "".join(text).strip(), rest])


def same_json(text: str) -> object:
    """Arguments with another key order or spacing, or numbers spelled otherwise, are the same arguments."""
    try:
        value = msgspec.json.decode(text)
        # Only a number with a point or an exponent can be a whole one in disguise.
        return _whole_numbers(value) if "." in text or "e" in text or "E" in text else value
    except (msgspec.DecodeError, RecursionError):
        return text


def _whole_numbers(value: object) -> object:
    match value:
        case float() if value.is_integer() and abs(value) < _EXACT:
            return int(value)
        case dict():
            return {name: _whole_numbers(each) for name, each in value.items()}
        case list():
            return [_whole_numbers(each) for each in value]
    return value
