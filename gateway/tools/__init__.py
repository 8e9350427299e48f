"""Tools the gateway itself executes. Authors import from here."""

from gateway.tools.decorator import Tools, tool
from gateway.tools.spec import ToolContext, ToolFatal, ToolRetry

__all__ = ["ToolContext", "ToolFatal", "ToolRetry", "Tools", "tool"]
