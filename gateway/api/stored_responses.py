"""`/v1/responses/{id}` and what is below it: responses that were made, or are being made."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.auth import caller
from gateway.api.event_stream import EventStream
from gateway.api.lists import limit_of, listed
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.api.sse import SILENCE_S
from gateway.chat.codecs.responses_items import shown_item
from gateway.chat.codecs.responses_stream import told_again
from gateway.errors import InvalidRequest, NotFound
from gateway.store.response_records import ResponseRow
from gateway.store.run_records import RunRow

# How long a cancellation is waited for that is being heeded.
_CANCEL_WAIT_S: Final = 5.0
_GIVEN_UP: Final = "The response could not be made."


def responses_endpoints(services: Services, silence_s: float = SILENCE_S) -> Router:
    """All of them."""
    router = Router()

    async def owner_of(request: Request) -> str | None:
        who = await caller(request.scope, services.versions.serving.keys, services.clock.now())
        # Administrators who speak for nobody see everybody's; so a gateway without keys finds what `user` was said with.
        return None if "admin" in who.roles and who.user is None else who.owner

    @router.get("/responses/{response_id}")
    async def get_response(request: Request, response_id: str) -> Response:
        asked = request.query_params
        streams = _yes(asked.get("stream"), "stream")
        after = _number(asked.get("starting_after"))
        row = await current(services, response_id, await owner_of(request))
        if not streams:
            if after is not None:
                raise InvalidRequest("`starting_after` needs `stream=true`.", param="starting_after")
            return Response(row.body, media_type="application/json")
        return _Followed(services, row, -1 if after is None else after, silence_s)

    @router.delete("/responses/{response_id}")
    async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
        owner = await owner_of(request)
        row = await services.responding.get(response_id, owner)
        if row.background and not row.over:
            await services.runs.cancel(_run_id(row), owner)
        await services.responding.delete(response_id, owner)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post("/responses/{response_id}/cancel")
    async def cancel_response(request: Request, response_id: str) -> Response:
        owner = await owner_of(request)
        row = await current(services, response_id, owner)
        if not row.background:
            raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")
        if not row.over:
            run = await services.runs.cancel(_run_id(row), owner)
            if not run.over:
                await services.runs.ended(_run_id(row), owner, _CANCEL_WAIT_S)
            row = await current(services, response_id, owner)
        return Response(row.body, media_type="application/json")

    @router.get("/responses/{response_id}/input_items")
    async def list_input_items(request: Request, response_id: str) -> dict[str, Any]:
        row = await services.responding.get(response_id, await owner_of(request))
        items: list[dict[str, Any]] = msgspec.json.decode(row.input)
        return page(items, request)

    return router


async def current(services: Services, response_id: str, owner: str | None) -> ResponseRow:
    """A response of this owner's, or anybody's, as it is now: of one that a run makes, the run knows better whether it goes on.

    Raises:
        NotFound: there is none of this owner's.
        StoreUnavailable: it cannot be read.
    """
    row = await services.responding.get(response_id, owner)
    if not row.background or row.over:
        return row
    run = await services.runs.get(_run_id(row), owner)
    if run is not None and not run.over:
        return row
    # Its handler may have ended it meanwhile.
    row = await services.responding.get(response_id, owner)
    if row.over:
        return row
    if run is not None and run.status == "cancelled":
        return await services.responding.settle(row, "cancelled", _GIVEN_UP)
    return await services.responding.settle(row, "failed", _why(run))


def followed(
    services: Services, row: ResponseRow, after: int, silence_s: float
) -> AsyncGenerator[Sequence[bytes], None]:
    """The events of a response behind a number, as they come."""

    async def look(seen: ResponseRow) -> ResponseRow:
        return await current(services, seen.id, seen.owner)

    return services.responding.follow(row, after, silence_s, look)


def page(items: Sequence[dict[str, Any]], request: Request) -> dict[str, Any]:
    """A page of items in the order that is asked for.

    Raises:
        InvalidRequest: what is asked for cannot be.
    """
    asked = request.query_params
    limit, order, after = limit_of(asked.get("limit")), asked.get("order", "desc"), asked.get("after")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"`order` is {order!r}; expected asc or desc.", param="order")
    found = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        places = [place for place, item in enumerate(found) if item["id"] == after]
        if not places:
            raise NotFound(f"Item with id '{after}' not found.")
        found = found[places[0] + 1 :]
    return listed(found[: limit + 1], limit, lambda item: str(item["id"]), shown_item)


class _Followed(Response):
    """The events of a response as they come."""

    def __init__(self, services: Services, row: ResponseRow, after: int, silence_s: float) -> None:
        super().__init__()
        self._services = services
        self._row = row
        self._after = after
        self._silence_s = silence_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send them."""
        stream = EventStream(send, bytes)
        await stream.open()
        await stream.pour(self._events(), receive)

    async def _events(self) -> AsyncGenerator[Sequence[bytes], None]:
        told = False
        follower = followed(self._services, self._row, self._after, self._silence_s)
        async with contextlib.aclosing(follower) as batches:
            async for batch in batches:
                told = told or bool(batch)
                yield batch
        if not told and self._row.over and (self._after < 0 or not self._row.streamed):
            # It was never streamed, or that is too long ago: its events as they might have come.
            yield told_again(msgspec.json.decode(self._row.body))[self._after + 1 :]


def _run_id(row: ResponseRow) -> str:
    return f"run_{row.id.removeprefix('resp_')}"


def _why(run: RunRow | None) -> str:
    said = run.error.get("message") if run is not None and isinstance(run.error, dict) else None
    return said if isinstance(said, str) else _GIVEN_UP


def _yes(value: str | None, name: str) -> bool:
    if value is None or value.lower() == "false":
        return False
    if value.lower() == "true":
        return True
    raise InvalidRequest(f"`{name}` is {value!r}; expected true or false.", param=name)


def _number(value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 9):
        raise InvalidRequest(f"`starting_after` is {value!r}; expected the number of an event.", param="starting_after")
    return int(value)
