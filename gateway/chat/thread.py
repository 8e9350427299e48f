"""How a conversation is recognised without the client's help: a hash chain over its visible messages.

Pure. Two requests of one conversation share every hash up to where they part; the owner is part of the first link, so
equal texts of two owners never meet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from gateway.chat.blocks import Message, Reasoning, Refusal, Text, ToolCall, ToolResult

_encode = msgspec.json.Encoder(order="deterministic").encode


def chain(owner: str, messages: Sequence[Message]) -> tuple[str, ...]:
    """The hash after each message: `chain(owner, m)[i]` names the conversation up to and with message i.

    Canonical form: role, text and calls. How content was cut into parts, `null` against `""`, the order of JSON keys and
    fields that clients add or drop on the way back (`refusal`, `annotations`, reasoning), and white space around a text
    make no difference.
    """
    link = hashlib.sha256(b"thread\0" + owner.encode("utf-8", "surrogatepass")).digest()
    hashes: list[str] = []
    for message in messages:
        link = hashlib.sha256(link + canonical(message)).digest()
        hashes.append(link.hex())
    return tuple(hashes)


def visible_hash(message: Message) -> str:
    """The hash of one message alone, in the same canonical form."""
    return hashlib.sha256(canonical(message)).hexdigest()


def canonical(message: Message) -> bytes:
    """The message reduced to what both sides of a conversation agree upon."""
    text: list[str] = []
    rest: list[object] = []
    for block in message.blocks:
        match block:
            case Text(text=value):
                text.append(value)
            case ToolCall(id=call_id, name=name, arguments=arguments):
                rest.append(["call", call_id, name, _same_json(arguments)])
            case ToolResult(call_id=call_id, text=value):
                rest.append(["result", call_id, value])
            case Reasoning() | Refusal():
                pass
            case _:
                rest.append(msgspec.to_builtins(block))
    role = "system" if message.role == "developer" else message.role
    return _encode([role, "".join(text).strip(), rest])


def _same_json(text: str) -> object:
    """Arguments with another key order or spacing are the same arguments."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
