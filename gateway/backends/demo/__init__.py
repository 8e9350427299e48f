"""The demo backend: rule-based, deterministic, without weights, and honest about it."""

from gateway.backends.demo.demo import DemoBackend

__all__ = ["DemoBackend"]
