"""Which conversation a request continues, for `router.sticky`.

Pure. Knows a session's name and the hash chain over messages; does not know routes, nor where they are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.chat.blocks import Message
from gateway.chat.thread import chain

# How many of the conversation's earlier requests are looked for, the latest first. More than one: a request that named
# its model, or was answered without a route, left nothing behind.
_EARLIER = 8


@dataclass(frozen=True, slots=True)
class Places:
    """Names under which a conversation's route is kept. They tell nothing, and differ between owners.

    Attributes:
        earlier: where the requests before this one left it, the latest first.
        here: where this one leaves it.
    """

    earlier: tuple[str, ...]
    here: str


def places(owner: str, session: str | None, messages: Sequence[Message]) -> Places:
    """The places of a request: by its session where it names one, else by the messages it repeats.

    A conversation that is repeated with other words, or without its beginning, is another one.
    """
    if session:
        named = f"session\0{len(owner)}\0{owner}\0{session}".encode("utf-8", "surrogatepass")
        place = hashlib.sha256(named).hexdigest()
        return Places((place,), place)
    hashes = chain(owner, messages)
    # A request ended where an answer begins.
    ends = [number for number in range(1, len(messages)) if messages[number].role == "assistant"]
    return Places(tuple(hashes[end - 1] for end in reversed(ends[-_EARLIER:])), hashes[-1] if hashes else "")
