"""Bundles and leases in Redis or Valkey, for replicas on any number of machines.

Three keys. A stream holds the bundles, each under the id `GENERATION-0`: its ids only ever rise, and a blocking read wakes
replicas without losing a message. A hash holds leases, `REPLICA -> LAPSES_AT GENERATION` by the server's own clock. A third
says since when leases are remembered. What has to be one step is one script.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from gateway.config.bundle_store import KEPT_BUNDLES, Grant, Leases, Published
from gateway.store.valkey_client import COMMAND_S, bounded, connect, disconnect

# The start of every script: time in milliseconds, the active generation (0: none) and its digest.
_ACTIVE: Final = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local active, digest = 0, ''
if #last > 0 then
  active = tonumber(string.match(last[1][1], '^%d+'))
  digest = last[1][2][2]
end
"""
_PUBLISH: Final = (
    _ACTIVE
    + """
if active ~= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[3], now, 'NX')
redis.call('XADD', KEYS[1], 'MAXLEN', '=', ARGV[2], ARGV[3] .. '-0', 'digest', ARGV[4], 'bundle', ARGV[5])
return 1
"""
)
_LIVE: Final = """
local live = {}
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local lapses, generation = string.match(all[i + 1], '^(%d+) (%d+)$')
  if tonumber(lapses) > now then
    live[#live + 1] = all[i]
    live[#live + 1] = generation
  else
    redis.call('HDEL', KEYS[2], all[i])
  end
end
"""
_RENEW: Final = (
    _ACTIVE
    + _LIVE
    + """
redis.call('SET', KEYS[3], now, 'NX')
local held = redis.call('HEXISTS', KEYS[2], ARGV[1])
local count = #live / 2
if held == 0 and active ~= tonumber(ARGV[3]) then return {0, active, digest, count} end
local lapses = now + ARGV[2]
if held == 1 then
  lapses = math.max(lapses, tonumber(string.match(redis.call('HGET', KEYS[2], ARGV[1]), '^%d+')))
end
redis.call('HSET', KEYS[2], ARGV[1], string.format('%d %d', lapses, ARGV[3]))
return {1, active, digest, count + 1 - held}
"""
)
_LEASES: Final = (
    _ACTIVE
    + _LIVE
    + """
local since = redis.call('GET', KEYS[3])
return {live, now - (since or now)}
"""
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Published).decode


class ValkeyBundles:
    """`BundleStore` over a Redis or Valkey server.

    Args:
        url: `redis://`, `rediss://` or `unix://`; never shown.
        prefix: what every key begins with.
    """

    def __init__(self, url: str, prefix: str) -> None:
        # What is sent may run twice; each script may without harm, see `publish`.
        self._redis = connect(url)
        # One hash slot, so that a script may use all three in a cluster.
        self._keys = [f"{prefix}{{config}}:{name}" for name in ("bundles", "leases", "since")]
        self._new = f"{prefix}{{config}}:new"
        self._publish = self._redis.register_script(_PUBLISH)
        self._renew = self._redis.register_script(_RENEW)
        self._live = self._redis.register_script(_LEASES)

    async def active(self) -> Published | None:
        """The bundle of the highest generation."""
        async with bounded():
            return _bundle(await self._redis.xrevrange(self._keys[0], "+", "-", count=1))

    async def publish(self, bundle: Published, after: int) -> bool:
        """Make a bundle the active one if the active generation is `after`."""
        arguments: list[int | str | bytes] = [after, KEPT_BUNDLES, bundle.generation, bundle.digest, _encode(bundle)]
        async with bounded():
            if await self._publish(keys=self._keys, args=arguments):
                return True
            # Sent twice because its answer was lost, it finds itself.
            return _bundle(await self._redis.xrevrange(self._keys[0], "+", "-", count=1)) == bundle

    async def earlier(self, generation: int) -> Published | None:
        """A bundle that is still kept."""
        place = f"{generation}-0"
        async with bounded():
            return _bundle(await self._redis.xrange(self._keys[0], place, place))

    async def generations(self) -> tuple[int, ...]:
        """The generations that are kept, the oldest first."""
        async with bounded():
            entries = await self._redis.xrange(self._keys[0])
        return tuple(int(place.split(b"-")[0]) for place, _ in entries)

    async def renew(self, replica: str, lease_s: float, generation: int) -> Grant:
        """Take or extend a lease and acknowledge `generation`."""
        async with bounded():
            granted, active, digest, replicas = await self._renew(
                keys=self._keys, args=[replica, int(lease_s * 1000), generation]
            )
        return Grant(bool(granted), active, digest.decode(), replicas)

    async def release(self, replica: str) -> None:
        """Give a lease up at once."""
        async with bounded():
            await self._redis.hdel(self._keys[1], replica)

    async def declare_new(self) -> None:
        """Say that this start of the server is its first: no replica holds a lease that it could have forgotten."""
        async with bounded():
            await self._redis.set(self._new, (await self._redis.info("server"))["run_id"])

    async def leases(self) -> Leases:
        """Every live lease."""
        async with bounded():
            live, age_ms = await self._live(keys=self._keys)
            server = await self._redis.info("server")
            new = await self._redis.get(self._new)
        acknowledged = {live[i].decode(): int(live[i + 1]) for i in range(0, len(live), 2)}
        if new is not None and new.decode() == server["run_id"]:
            return Leases(acknowledged, math.inf)
        # A server that started from an older copy of its data remembers leases as they were then.
        return Leases(acknowledged, min(age_ms / 1000, float(server["uptime_in_seconds"])))

    async def changed(self, after: int, timeout_s: float) -> None:
        """Wait until a generation above `after` is active, at most `timeout_s`."""
        block_ms = max(1, int(timeout_s * 1000))
        async with bounded(timeout_s + COMMAND_S):
            # The whole bundle comes along and is not looked at: who wakes asks for what is active by then.
            await self._redis.xread({self._keys[0]: f"{after}-0"}, count=1, block=block_ms)

    async def close(self) -> None:
        """Close connections."""
        await disconnect(self._redis)


def _bundle(entries: Any) -> Published | None:
    return _decode(entries[0][1][b"bundle"]) if entries else None
