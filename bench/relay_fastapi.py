"""Another reference: a relay as most are written, FastAPI with a model of the body, and aiohttp."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response, StreamingResponse


class Message(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[dict[str, Any]] | None = None


class Body(BaseModel):
    """A chat request."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[Message]
    stream: bool = False


def app(upstream: str) -> FastAPI:
    """A relay that reads what it gets and sends it on to `upstream`."""
    sessions: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as session:
            sessions.append(session)
            yield

    made = FastAPI(lifespan=lifespan)

    async def relay(body: Body) -> Response:
        sent = body.model_dump_json(exclude_unset=True)
        headers = {"content-type": "application/json"}
        answer = await sessions[0].post(f"{upstream}/v1/chat/completions", data=sent, headers=headers)
        kind = answer.headers["content-type"]
        if body.stream:
            return StreamingResponse(_pieces(answer), answer.status, media_type=kind)
        async with answer:
            return Response(await answer.read(), answer.status, media_type=kind)

    relay.__annotations__ = {"body": Body, "return": Response}
    made.post("/v1/chat/completions", response_model=None)(relay)
    return made


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with answer:
        async for piece in answer.content.iter_any():
            yield piece


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--upstream", required=True)
    given = arguments.parse_args()
    uvicorn.run(
        app(given.upstream),
        host="127.0.0.1",
        port=given.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
