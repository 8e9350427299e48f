"""The reference: the barest useful relay of Starlette and aiohttp. It decides nothing, checks nothing, keeps nothing."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route


def app(upstream: str) -> Starlette:
    """A relay that sends what it gets to the same path of `upstream`."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            app.state.session = session
            yield

    async def relay(request: Request) -> Response:
        body = await request.body()
        headers = {"content-type": "application/json", "authorization": request.headers["authorization"]}
        answer = await request.app.state.session.post(upstream + request.url.path, data=body, headers=headers)
        kind = answer.headers["content-type"]
        if kind.startswith("text/event-stream"):
            return StreamingResponse(_pieces(answer), answer.status, media_type=kind)
        async with answer:
            return Response(await answer.read(), answer.status, media_type=kind)

    return Starlette(routes=[Route("/{path:path}", relay, methods=["POST"])], lifespan=lifespan)


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
