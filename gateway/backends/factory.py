"""Backends from configuration, shared by the versions that configure them alike.

Knows which provider is which adapter. Does not know models or routing.
"""

from __future__ import annotations

from gateway.backends.backend import Backend
from gateway.backends.native import NATIVE_PROVIDERS, NativeBackend
from gateway.backends.react import Learned, ReactBackend
from gateway.backends.watched import WatchedBackend
from gateway.config.models import BackendConfig


def make_backend(name: str, config: BackendConfig) -> Backend:
    """The adapter for a backend's provider. Opens nothing."""
    # Most gateways have backends of one or two kinds, and load no other's: together they are a tenth of a start.
    match config.provider:
        case "demo":
            from gateway.backends.demo.demo import DemoBackend

            return DemoBackend(name, config)
        case "llamacpp":
            from gateway.backends.llamacpp import LlamaCppBackend

            return LlamaCppBackend(name, config)
        case "plugin":
            from gateway.backends.plugin import PluginBackend

            return PluginBackend(name, config)
        case provider if provider in NATIVE_PROVIDERS:
            return NativeBackend(name, config)
        case _:
            from gateway.backends.litellm import LitellmBackend

            return LitellmBackend(name, config)


def watch_backend(name: str, config: BackendConfig) -> WatchedBackend:
    """A backend as pools see it, with one adapter for each of its keys. Opens nothing."""
    alone = [config]
    if config.api_keys:
        alone = [config.model_copy(update={"api_key": key, "api_keys": ()}) for key in config.api_keys]
    learned = Learned(text_only=not config.capabilities.tools)
    return WatchedBackend([ReactBackend(make_backend(name, each), learned) for each in alone], config)


class BackendShelf:
    """Keeps each backend while any version uses it: connections and what was learned survive a reload that does not
    touch it.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[WatchedBackend, int]] = {}

    def take(self, name: str, config: BackendConfig) -> WatchedBackend:
        """The backend of this name and configuration; give it back with `put_back`."""
        key = _key(name, config)
        backend, users = self._kept.get(key) or (watch_backend(name, config), 0)
        self._kept[key] = (backend, users + 1)
        return backend

    def prepare(self) -> None:
        """Begin what takes long before a first answer: a local model is loaded."""
        for backend, _ in self._kept.values():
            backend.prepare()

    async def put_back(self, name: str, config: BackendConfig) -> None:
        """Give a backend back; the last user closes it."""
        key = _key(name, config)
        backend, users = self._kept.pop(key)
        if users > 1:
            self._kept[key] = (backend, users - 1)
        else:
            await backend.close()


def _key(name: str, config: BackendConfig) -> tuple[str, str]:
    return name, repr(sorted(config.model_dump().items(), key=lambda item: item[0]))
