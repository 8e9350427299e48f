"""A server that speaks `/v1/embeddings` on a socket of this machine, and does what a test tells it to.

Knows the protocol. Its vectors are the hashing encoder's.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.routing.hashing_encoder import HashingEncoder


@dataclass
class Embeddings:
    """What the server heard, and how it is to answer.

    Attributes:
        url: its base URL.
        asked: the texts of each request, refused ones too.
        bodies, headers: each request's.
        longest: characters of the longest text it takes.
        statuses: answered in the place of the next answers, one each.
        answer: makes the whole body of every answer instead, from the number of texts.
        salt: another one makes it another model.
        alike: whether a vector is the same in any company.
    """

    url: str = ""
    asked: list[list[str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    longest: int = 1_000_000
    statuses: list[int] = field(default_factory=list)
    answer: Callable[[int], str] | None = None
    salt: str = ""
    alike: bool = True
    model: HashingEncoder = field(default_factory=HashingEncoder)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        texts: list[str] = body["input"]
        self.asked.append(texts)
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.statuses:
            status = self.statuses.pop(0)
            return web.json_response(
                {"error": {"message": f"refused {texts[0]} at {request.url}"}},
                status=status,
                headers={"location": "/elsewhere"} if status // 100 == 3 else {},
            )
        if any(len(text) > self.longest for text in texts):
            return web.json_response({"error": {"message": "input is too long"}}, status=400)
        if self.answer is not None:
            return web.Response(text=self.answer(len(texts)), content_type="application/json")
        await self.model.load()
        company = "" if self.alike or len(texts) == 1 else f" {len(texts)}"
        vectors = await self.model.encode([self.salt + text + company for text in texts])
        data = [{"index": number, "embedding": (vector * 3).tolist()} for number, vector in enumerate(vectors)]
        random.Random(len(texts)).shuffle(data)
        return web.json_response({"object": "list", "data": data, "usage": {"prompt_tokens": 1}})


@asynccontextmanager
async def embeddings() -> AsyncIterator[Embeddings]:
    """A server that listens."""
    it = Embeddings()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/embeddings", it.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    it.url = f"http://{host}:{port}/v1"
    try:
        yield it
    finally:
        await runner.cleanup()
