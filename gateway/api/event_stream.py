"""Typed events on their way to a client: frames, response headers, comments in silence.

Knows HTTP. Does not know what an event says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.types import Receive, Send

from gateway.api.cycle import LINES
from gateway.api.sse import STREAM_HEADERS
from gateway.chat.relay import KEEP_ALIVE


class EventStream:
    """One streamed answer. The response starts with the first frame, so that a failure before it is an ordinary HTTP error.

    Args:
        send: ASGI.
        lines: called when the response starts, for more lines of its head.

    Attributes:
        started: whether the client has seen anything.
        ended: whether it has the last of it.
    """

    def __init__(self, send: Send, lines: Callable[[], bytes]) -> None:
        self.started = False
        self.ended = False
        self._send = send
        self._lines = lines

    async def pour(self, batches: AsyncIterator[Sequence[bytes]], receive: Receive) -> bool:
        """Send everything; False where the client went away before. An empty batch is a comment.

        Nothing is begun where there is nothing at all: whoever called answers then.
        """
        task = asyncio.current_task()
        assert task is not None
        gone = False

        async def watch() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            if not self.ended:
                gone = True
                task.cancel()

        watcher = asyncio.get_running_loop().create_task(watch())
        try:
            async for frames in batches:
                await self.write(frames)
            if self.started:
                await self.write((), last=True)
        except asyncio.CancelledError:
            if not gone:
                raise
            task.uncancel()
            return False
        finally:
            watcher.cancel()
        return True

    async def open(self) -> None:
        """Begin before there is anything: where nothing can fail any more."""
        self.started = True
        start = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS, LINES: self._lines()}
        await self._send(start)
        # A server may keep the head back until there is a body.
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def write(self, frames: Sequence[bytes], *, last: bool = False) -> None:
        """Send frames in one write."""
        if not self.started:
            await self.open()
        self.ended = self.ended or last
        body = b"".join(frames) if frames or last else KEEP_ALIVE
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
