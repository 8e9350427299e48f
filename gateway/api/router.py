"""Where endpoints are gathered.

Knows Starlette's routes and how an endpoint's answer becomes a response. Does not know any endpoint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# What a path's names stand for follows the request, as texts.
Endpoint = Callable[..., Awaitable[Any]]
E = TypeVar("E", bound=Endpoint)


class Router:
    """Endpoints and their paths, in the order in which they are tried.

    An endpoint takes the request and the names of its path, and answers a `Response`, or what is sent as JSON.

    Attributes:
        routes: what was gathered.
    """

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str) -> Callable[[E], E]:
        """Gather an endpoint that reads."""
        return self._gather("GET", path)

    def post(self, path: str, *, status_code: int = 200) -> Callable[[E], E]:
        """Gather an endpoint that makes or does something."""
        return self._gather("POST", path, status_code)

    def patch(self, path: str) -> Callable[[E], E]:
        """Gather an endpoint that changes something."""
        return self._gather("PATCH", path)

    def delete(self, path: str) -> Callable[[E], E]:
        """Gather an endpoint that ends something."""
        return self._gather("DELETE", path)

    def below(self, prefix: str) -> Iterable[Route]:
        """What was gathered, below another path."""
        for route in self.routes:
            yield _only(next(iter(route.methods or ())), prefix + route.path, route.endpoint)

    def _gather(self, method: str, path: str, status_code: int = 200) -> Callable[[E], E]:
        def gather(endpoint: E) -> E:
            async def answer(request: Request) -> Response:
                made = await endpoint(request, **request.path_params)
                if isinstance(made, Response):
                    return made
                return Response(msgspec.json.encode(made), status_code, media_type="application/json")

            self.routes.append(_only(method, path, answer))
            return endpoint

        return gather


def _only(method: str, path: str, endpoint: Callable[..., Any]) -> Route:
    """A route for one method; Starlette adds HEAD to those that read, and a HEAD would count as a use here."""
    route = Route(path, endpoint, methods=[method])
    route.methods = {method}
    return route
