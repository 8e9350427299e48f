"""Ids the gateway issues."""

from __future__ import annotations

import random
from time import time


def new_trace_id() -> str:
    """32 hex digits, of which the first eight are the second it was made in and the others chance.

    What is kept by such ids is added at the end of its index. By chance alone each goes to another page, and among a million
    traces that was half of what keeping one costs. An id names a turn and opens nothing (who may read what is the owner's
    business), so speed wins over secrecy.
    """
    return ((int(time()) & 0xFFFF_FFFF) << 96 | random.getrandbits(96)).to_bytes(16).hex()


def new_call_id() -> str:
    """An id for a tool call that came without one."""
    return f"call_{random.getrandbits(96):024x}"
