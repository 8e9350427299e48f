"""Ids the gateway issues."""

from __future__ import annotations

import os


def new_trace_id() -> str:
    """32 hex digits."""
    return os.urandom(16).hex()


def new_call_id() -> str:
    """An id for a tool call that came without one."""
    return f"call_{os.urandom(12).hex()}"
