"""Where endpoints are gathered.

Knows FastAPI's way of taking them. Does not know any endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter


class Router(APIRouter):
    """A router whose endpoints answer what they return.

    FastAPI makes a validator for every return type; what we return is ours, and sixty of them are a third of a start.
    """

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add an endpoint, as FastAPI does, without a model of its answer."""
        super().add_api_route(path, endpoint, **{**options, "response_model": None})
