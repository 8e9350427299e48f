"""Hermes Gateway: an OpenAI-compatible endpoint that routes, offers tools and runs them itself."""

__version__ = "0.1.0"
