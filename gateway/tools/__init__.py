"""Tools the gateway itself executes. Authors import from here."""

from gateway.tools.decorator import Tools, tool
from gateway.tools.look_ahead import look_ahead
from gateway.tools.run_types import RunContext
from gateway.tools.spec import ToolContext, ToolFatal, ToolRetry, ToolSpec, make_spec

__all__ = [
    "RunContext",
    "ToolContext",
    "ToolFatal",
    "ToolRetry",
    "ToolSpec",
    "Tools",
    "look_ahead",
    "make_spec",
    "tool",
]
