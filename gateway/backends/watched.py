"""A backend with everything this process has learned of its far side.

Knows its keys, its breaker, its places and its pace. Outlives versions as long as its configuration stays the same. Does
not know models, or what is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from gateway.backends.backend import Backend
from gateway.backends.breaker import Breaker
from gateway.backends.places import Places
from gateway.backends.tool_schemas import dialect_of
from gateway.chat.layout import Layout
from gateway.config.models import BackendConfig
from gateway.errors import GatewayError
from gateway.observe.metrics import BackendStanding

# How much the newest measurement moves the average.
_NEWEST: Final = 0.2
# A pace nobody has measured for so long is forgotten, so that a backend that was slow once is tried again.
_REMEMBERED_S: Final = 60.0
# How long a key rests that was limited without being told for how long, and one that was denied.
_LIMITED_S: Final = 5.0
_DENIED_S: Final = 60.0
_LONGEST_REST_S: Final = 600.0


class Pace:
    """A moving average of seconds."""

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._at = -math.inf  # when it was measured last

    def measured(self, seconds: float, now: float) -> None:
        """Take one measurement in; after a long silence it stands alone."""
        if now - self._at > _REMEMBERED_S:
            self._seconds = seconds
        else:
            self._seconds += _NEWEST * (seconds - self._seconds)
        self._at = now

    def at(self, now: float) -> float | None:
        """The average; None where nothing was measured in the last minute."""
        return None if now - self._at > _REMEMBERED_S else self._seconds


@runtime_checkable
class Slow(Protocol):
    """An adapter that has something long to do before it can answer."""

    def prepare(self) -> None:
        """Begin, without waiting. More than once is once."""
        ...


class Key:
    """One of a backend's keys: an adapter that uses it, and until when it rests (monotonic seconds)."""

    __slots__ = ("adapter", "rests_until")

    def __init__(self, adapter: Backend) -> None:
        self.adapter = adapter
        self.rests_until = 0.0


class WatchedBackend:
    """One backend as pools see it.

    Args:
        adapters: one for each of its keys, at least one.
        config: its configuration.

    Attributes:
        first_token: seconds to the first content of a stream.
        whole: seconds of answers that are not streamed.
        tool_schemas: the dialect of schemas it takes tools in.
        layout: the order of messages it insists on, or None.
        sized: whether it is known how much it takes.
        key_count: how many keys it has; a backend without keys has one that is none.
        only_key: its key, where it has no other.
    """

    def __init__(self, adapters: Sequence[Backend], config: BackendConfig) -> None:
        self.name = adapters[0].name
        self.config = config
        self.breaker = Breaker()
        self.places = Places(config.max_concurrency)
        self.first_token = Pace()
        self.whole = Pace()
        self.tool_schemas = dialect_of(config)
        self.layout = _layout(config)
        self.sized = config.context_tokens is not None
        self._keys = tuple(Key(adapter) for adapter in adapters)
        self.key_count = len(self._keys)
        self.only_key = self._keys[0] if self.key_count == 1 else None
        self._turn = 0

    def key(self, now: float) -> Key:
        """The key for the next call: in turn, those that rest left out; if all do, the one that is up first."""
        if self.only_key is not None:
            return self.only_key
        keys = self._keys
        for step in range(len(keys)):
            key = keys[(self._turn + step) % len(keys)]
            if key.rests_until <= now:
                self._turn = (self._turn + step + 1) % len(keys)
                return key
        return min(keys, key=lambda key: key.rests_until)

    def rests_s(self, now: float) -> float:
        """Seconds until one of its keys may be used; 0 where one may."""
        return max(0.0, min(key.rests_until for key in self._keys) - now)

    def rest(self, key: Key, error: GatewayError, now: float, *, denied: bool) -> None:
        """Let a key rest that was limited or denied: others are preferred meanwhile."""
        seconds = error.retry_after_s if error.retry_after_s is not None else _DENIED_S if denied else _LIMITED_S
        key.rests_until = now + min(seconds, _LONGEST_REST_S)

    def standing(self, now: float) -> BackendStanding:
        """How it stands, for metrics."""
        opened = {"closed": 0.0, "half_open": 0.5, "open": 1.0}[self.breaker.state(now)]
        return BackendStanding(opened, self.places.busy, self.places.waiting, self.first_token.at(now))

    def prepare(self) -> None:
        """Let its adapters begin what takes them long."""
        for key in self._keys:
            if isinstance(key.adapter, Slow):
                key.adapter.prepare()

    async def close(self) -> None:
        """Close every adapter."""
        for key in self._keys:
            await key.adapter.close()


def _layout(config: BackendConfig) -> Layout | None:
    able = config.capabilities
    layout = Layout(not able.system_anywhere, not able.developer_role, able.alternation)
    return None if layout == Layout() else layout
