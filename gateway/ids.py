"""Ids the gateway issues."""

from __future__ import annotations

import random
from time import time
from typing import Final

# A trace id's first digits are the time it was made, in so many parts of a second since the epoch.
_PARTS: Final = 1 << 20
_TIME_DIGITS: Final = 13
_CHANCE_BITS: Final = 76
_TIME_MASK: Final = (1 << 4 * _TIME_DIGITS) - 1


def new_trace_id() -> str:
    """32 hex digits, of which the first thirteen are the microsecond or so it was made in and the others chance.

    Ids of turns that ran at the same time are neighbours, and so are what is kept of them. An id names a turn and opens nothing
    (who may read what is the owner's business), so speed wins over secrecy.
    """
    return ((int(time() * _PARTS) & _TIME_MASK) << _CHANCE_BITS | random.getrandbits(_CHANCE_BITS)).to_bytes(16).hex()


def made_at(trace_id: str) -> float:
    """When a trace id was made, in seconds since the epoch. Raises `ValueError` where it is none of ours."""
    return int(trace_id[:_TIME_DIGITS], 16) / _PARTS


def begun_at(moment: float) -> str:
    """What trace ids begin with that are made then; `moment` is in seconds since the epoch."""
    return f"{min(max(int(moment * _PARTS), 0), _TIME_MASK):0{_TIME_DIGITS}x}"


def new_call_id() -> str:
    """An id for a tool call that came without one."""
    return f"call_{random.getrandbits(96):024x}"
