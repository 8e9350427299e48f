"""Tools the gateway itself executes. Authors import from here."""

from gateway.tools.decorator import Tools, tool
from gateway.tools.run_types import RunContext
from gateway.tools.spec import ToolContext, ToolFatal, ToolRetry, ToolSpec, make_spec

__all__ = ["RunContext", "ToolContext", "ToolFatal", "ToolRetry", "ToolSpec", "Tools", "make_spec", "tool"]
