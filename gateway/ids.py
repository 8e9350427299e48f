"""Ids the gateway issues."""

from __future__ import annotations

import random


def new_trace_id() -> str:
    """32 hex digits. Names a turn, opens nothing: who may read what is the owner's business, so speed wins over secrecy."""
    return f"{random.getrandbits(128):032x}"


def new_call_id() -> str:
    """An id for a tool call that came without one."""
    return f"call_{random.getrandbits(96):024x}"
