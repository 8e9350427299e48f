"""`/v1/conversations`: conversations that responses continue by name, and their items."""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgspec
from starlette.requests import Request

from gateway.api.auth import caller
from gateway.api.cycle import ClientGone
from gateway.api.http import read_body
from gateway.api.lists import limit_of, listed
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.chat.codecs.responses import checked_metadata, read_items
from gateway.chat.codecs.responses_items import check_items, shown_item, with_ids
from gateway.chat.codecs.responses_parts import Item
from gateway.errors import InvalidRequest, NotFound
from gateway.store.response_records import ConversationItem, ConversationRow

# Items of one request.
_MOST_ITEMS: Final = 20


class _Asked(msgspec.Struct):
    metadata: dict[str, str] | None = None
    items: list[dict[str, Any]] | None = None


def conversations_endpoints(services: Services) -> Router:
    """All of them."""
    router = Router()
    _conversations(router, services)
    _items(router, services)
    return router


def _conversations(router: Router, services: Services) -> None:
    @router.post("/conversations")
    async def create(request: Request) -> dict[str, Any]:
        owner = await _owner(request, services)
        wanted = await _asked(request, services)
        row = ConversationRow(
            id=f"conv_{secrets.token_hex(16)}",
            owner=owner,
            metadata=checked_metadata(wanted.metadata),
            created_at=services.clock.now(),
        )
        await services.responding.conversations.add(row, _kept(wanted.items))
        return _shown(row)

    @router.get("/conversations/{conversation_id}")
    async def get(request: Request, conversation_id: str) -> dict[str, Any]:
        return _shown(await _found(request, services, conversation_id))

    @router.post("/conversations/{conversation_id}")
    async def update(request: Request, conversation_id: str) -> dict[str, Any]:
        owner, wanted = await _owner(request, services), await _asked(request, services)
        await services.responding.conversations.rename(conversation_id, owner, checked_metadata(wanted.metadata))
        return _shown(await _found(request, services, conversation_id))

    @router.delete("/conversations/{conversation_id}")
    async def delete(request: Request, conversation_id: str) -> dict[str, Any]:
        if not await services.responding.conversations.delete(conversation_id, await _owner(request, services)):
            raise _no_conversation(conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


def _items(router: Router, services: Services) -> None:
    @router.get("/conversations/{conversation_id}/items")
    async def items(request: Request, conversation_id: str) -> dict[str, Any]:
        await _found(request, services, conversation_id)
        query = request.query_params
        order, limit = query.get("order", "desc"), limit_of(query.get("limit"))
        if order not in ("asc", "desc"):
            raise InvalidRequest(f"`order` is {order!r}; expected asc or desc.", param="order")
        rows = await services.responding.conversations.items(
            conversation_id, newest_first=order == "desc", after=query.get("after"), limit=limit + 1
        )
        return listed(rows, limit, lambda row: row.id, _item)

    @router.post("/conversations/{conversation_id}/items")
    async def add_items(request: Request, conversation_id: str) -> dict[str, Any]:
        await _found(request, services, conversation_id)
        kept = _kept((await _asked(request, services)).items)
        if not kept:
            raise InvalidRequest("`items` is missing.", param="items")
        await services.responding.conversations.append(conversation_id, kept)
        return listed(kept, len(kept), lambda row: row.id, _item)

    @router.get("/conversations/{conversation_id}/items/{item_id}")
    async def get_item(request: Request, conversation_id: str, item_id: str) -> dict[str, Any]:
        await _found(request, services, conversation_id)
        rows = await services.responding.conversations.items(conversation_id)
        there = [row for row in rows if row.id == item_id]
        if not there:
            raise NotFound(f"Item with id '{item_id}' not found.")
        return _item(there[0])

    @router.delete("/conversations/{conversation_id}/items/{item_id}")
    async def delete_item(request: Request, conversation_id: str, item_id: str) -> dict[str, Any]:
        row = await _found(request, services, conversation_id)
        if not await services.responding.conversations.remove(conversation_id, item_id):
            raise NotFound(f"Item with id '{item_id}' not found.")
        return _shown(row)


async def _owner(request: Request, services: Services) -> str:
    return (await caller(request.scope, services.versions.serving.keys, services.clock.now())).owner


async def _found(request: Request, services: Services, conversation_id: str) -> ConversationRow:
    row = await services.responding.conversations.get(conversation_id, await _owner(request, services))
    if row is None:
        raise _no_conversation(conversation_id)
    return row


def _no_conversation(conversation_id: str) -> NotFound:
    return NotFound(f"Conversation with id '{conversation_id}' not found.")


async def _asked(request: Request, services: Services) -> _Asked:
    try:
        body = await read_body(request.scope, services.versions.serving.body_limit_bytes)
    except ClientGone as error:
        raise InvalidRequest("The request was not complete.") from error
    try:
        return msgspec.json.decode(body, type=_Asked) if body.strip() else _Asked()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The request body is not what this endpoint takes: {error}") from error


def _kept(items: list[Item] | None) -> list[ConversationItem]:
    if items is not None and len(items) > _MOST_ITEMS:
        raise InvalidRequest(f"`items` has more than {_MOST_ITEMS} items.", param="items")
    check_items(items or [])
    named = with_ids(read_items(items or []), secrets.token_hex(16))
    return [ConversationItem(str(item["id"]), msgspec.json.encode(item)) for item in named]


def _item(row: ConversationItem) -> dict[str, Any]:
    return shown_item(msgspec.json.decode(row.item))


def _shown(row: ConversationRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "conversation",
        "created_at": int(row.created_at),
        "metadata": dict(row.metadata),
    }
