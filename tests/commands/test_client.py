"""What is told of a gateway that is not there, or is none."""

from __future__ import annotations

import socket

import pytest
from aiohttp import web

from gateway.commands.client import Unreachable, get_json
from gateway.settings import Settings


async def told(url: str) -> str:
    with pytest.raises(Unreachable) as caught:
        await get_json(Settings(GATEWAY_URL=url), "/v1/runs")
    return str(caught.value)


async def test_a_port_where_nobody_listens_is_told_as_such() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert await told(url) == (
            f"The gateway at {url} cannot be reached: nothing listens there. GATEWAY_URL says where it is."
        )


async def test_a_page_of_something_else_is_no_gateway() -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<h1>It works!</h1>", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        assert "what answers there is no gateway" in await told(f"http://{host}:{port}")
    finally:
        await runner.cleanup()
