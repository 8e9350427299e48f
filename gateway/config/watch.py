"""A reload whenever the files have changed, for who asks for it (`config.watch`).

Knows when files look different. Looking is done by polling: it works on mounted folders too, which report no changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from gateway.config.files import stamp, stamps
from gateway.errors import ConfigError, GatewayError

# Seconds between two looks. Files that differ between two looks are still being written: they are read once they rest.
LOOK_S: Final = 0.5
# Seconds before a change is tried again that could not be published.
_AGAIN_S: Final = 2.0

_Stamps = dict[str, tuple[int, int, int] | None]


class Reloads(Protocol):
    """What a change leads to."""

    async def reload(self) -> object:
        """Take the files into service."""
        ...


class Watch:
    """Watches the gateway's file, the routes and the plugins.

    Args:
        config_path: the gateway's own file.
        routes_path: the folder of route files, or None.
        plugins: folders of plugins, or single files.
        reloads: reloads.
    """

    def __init__(self, config_path: Path, routes_path: Path | None, plugins: Sequence[Path], reloads: Reloads) -> None:
        self._config_path = config_path
        self._routes_path = routes_path
        self._plugins = tuple(plugins)
        self._reloads = reloads
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(self._look()), name="watch")

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, served: _Stamps) -> None:
        before = served
        while True:
            await asyncio.sleep(LOOK_S)
            now = await asyncio.to_thread(self._look)
            if now == before and now != served:
                if await self._reload():
                    served = now
                else:
                    await asyncio.sleep(_AGAIN_S)
            before = now

    async def _reload(self) -> bool:
        """Reload; whether that is all there is to do. What went wrong has been told where it was refused."""
        try:
            await self._reloads.reload()
        except ConfigError:
            return True  # the next change is another chance
        except GatewayError:
            return False  # the shared store is away
        return True

    def _look(self) -> _Stamps:
        found = stamps(self._config_path, self._routes_path)
        for place in self._plugins:
            files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
            found |= {str(file): stamp(file) for file in files}
        return found
