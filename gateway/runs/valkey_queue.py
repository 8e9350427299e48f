"""A queue in Redis or Valkey: one stream for each lane, one consumer group on each.

A message is claimed in the database right after it was read, and removed from its stream then; so streams hold what waits, and
what somebody read within the last seconds. A reader that died in between leaves its messages pending: whoever reads next claims
what is pending for longer than `IDLE_S`. No lock is involved, so none can be left behind.

A key without a lifetime says that the streams are the ones that were there before. Where it is missing the server has forgotten
everything: whoever finds that makes streams and groups anew, and is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from gateway.clock import Clock
from gateway.runs.memory_queue import LOW_FIRST_EVERY
from gateway.runs.queue import Taken
from gateway.store.run_records import PRIORITIES, Priority, Queued
from gateway.store.valkey_client import COMMAND_S, bounded, connect, disconnect

IDLE_S: Final = 10.0
# The group's name, and its one consumer's: who holds a run is the database's to say, so readers need no names that would stay
# behind when they die.
_GROUP: Final = "workers"
# How the server says that a stream, or its group, is not there.
_GONE: Final = ("NOGROUP", "no such key")
# Words that are part of the wire; each value is one id or name, never larger.
_FIELDS: Final = ("run", "trace", "parent", "type", "time")
_LONGEST: Final = 128

# The start of the streams in one step: a marker, and a group on each. 1 where the marker was not there.
_PREPARE: Final = """
local new = redis.call('SET', KEYS[1], ARGV[1], 'NX')
for i = 2, #KEYS do
  redis.pcall('XGROUP', 'CREATE', KEYS[i], ARGV[2], '0', 'MKSTREAM')
end
if new then return 1 end
return 0
"""
# Reads in the order of KEYS until there are enough: what was left pending for too long before what is new. With it the last id
# of every stream at that moment: what is behind it is new.
_TAKE: Final = """
local left = tonumber(ARGV[2])
local found, last = {}, {}
local function take(i, entries)
  for _, entry in ipairs(entries) do
    if entry then
      found[#found + 1] = {i, entry[1], entry[2]}
      left = left - 1
    end
  end
end
for i = 1, #KEYS do
  local about = redis.call('XINFO', 'STREAM', KEYS[i])
  for at = 1, #about, 2 do
    if about[at] == 'last-generated-id' then last[i] = about[at + 1] end
  end
  if left > 0 then
    take(i, redis.call('XAUTOCLAIM', KEYS[i], ARGV[1], ARGV[1], ARGV[3], '0-0', 'COUNT', left)[2])
  end
  if left > 0 then
    local new = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[1], 'COUNT', left, 'STREAMS', KEYS[i], '>')
    if new then take(i, new[1][2]) end
  end
end
return {found, last}
"""
_DONE: Final = """
for i = 2, #ARGV do
  redis.pcall('XACK', KEYS[1], ARGV[1], ARGV[i])
  redis.call('XDEL', KEYS[1], ARGV[i])
end
"""


class ValkeyQueue:
    """`Queue` over a Redis or Valkey server.

    Args:
        url: `redis://`, `rediss://` or `unix://`; never shown.
        prefix: what every key begins with.
        clock: for the messages' times.
        idle_s: seconds after which a message that was read and not done is somebody else's to read.
    """

    def __init__(self, url: str, prefix: str, clock: Clock, *, idle_s: float = IDLE_S) -> None:
        # What is sent may run twice (`connect`): every script may without harm.
        self._redis = connect(url)
        # One hash slot, so that a script may use all in a cluster.
        self._marker = f"{prefix}{{runs}}:known"
        self._lanes: dict[Priority, str] = {lane: f"{prefix}{{runs}}:{lane}" for lane in PRIORITIES}
        self._clock = clock
        self._idle_ms = int(idle_s * 1000)
        self._prepare = self._redis.register_script(_PREPARE)
        self._take = self._redis.register_script(_TAKE)
        self._done = self._redis.register_script(_DONE)
        self._turn = 0
        self._forgotten = False

    async def put(self, messages: Sequence[Queued]) -> None:
        """Queue these in one transaction."""
        if not messages:
            return
        now = f"{self._clock.now():.3f}"
        async with bounded(), self._redis.pipeline(transaction=True) as pipeline:
            for message in messages:
                values = (message.id, message.trace_id, message.parent_id or "", message.kind, now)
                pipeline.xadd(self._lanes[message.priority], dict(zip(_FIELDS, values, strict=True)))
            await pipeline.execute()

    async def take(self, count: int, timeout_s: float) -> Sequence[Taken]:
        """At most `count` messages."""
        taken, last = await self._read(count)
        if taken or timeout_s <= 0:
            return taken
        async with bounded(timeout_s + COMMAND_S):
            # Not through the groups: it takes nothing, and says only that there is something behind what was seen.
            await self._redis.xread(last, count=1, block=max(1, int(timeout_s * 1000)))
        return (await self._read(count))[0]

    async def _read(self, count: int) -> tuple[list[Taken], dict[str, Any]]:
        self._turn += 1
        lanes = list(self._lanes.values())
        if self._turn % LOW_FIRST_EVERY == 0:
            lanes.reverse()
        async with bounded():
            try:
                found, last = await self._take(keys=lanes, args=[_GROUP, count, self._idle_ms])
            except ResponseError as error:
                if not any(words in str(error) for words in _GONE):
                    raise
                self._forgotten = True
                await self._prepared()
                found, last = await self._take(keys=lanes, args=[_GROUP, count, self._idle_ms])
        taken = [_taken(lanes[at - 1], place.decode(), fields, self._lane_of) for at, place, fields in found]
        return taken, dict(zip(lanes, last, strict=True))

    async def done(self, taken: Sequence[Taken]) -> None:
        """Acknowledge and remove these."""
        async with bounded():
            for stream in {each.place[0] for each in taken}:
                ids = [each.place[1] for each in taken if each.place[0] == stream]
                await self._done(keys=[stream], args=[_GROUP, *ids])

    async def size(self) -> int:
        """How many messages there are."""
        async with bounded(), self._redis.pipeline(transaction=False) as pipeline:
            for stream in self._lanes.values():
                pipeline.xlen(stream)
            return sum(await pipeline.execute())

    async def oldest(self) -> Mapping[Priority, float]:
        """When the oldest message of each lane was queued, by the server's clock."""
        async with bounded(), self._redis.pipeline(transaction=False) as pipeline:
            for stream in self._lanes.values():
                pipeline.xrange(stream, count=1)
            found = await pipeline.execute()
        return {
            lane: int(entries[0][0].split(b"-")[0]) / 1000
            for lane, entries in zip(self._lanes, found, strict=True)
            if entries
        }

    async def is_new(self) -> bool:
        """Whether the server has forgotten the streams, or one of them; they are there afterwards."""
        async with bounded():
            new = await self._prepared()
        new, self._forgotten = new or self._forgotten, False
        return new

    async def _prepared(self) -> bool:
        return bool(await self._prepare(keys=[self._marker, *self._lanes.values()], args=["1", _GROUP]))

    def _lane_of(self, stream: str) -> Priority:
        return next(lane for lane, name in self._lanes.items() if name == stream)

    async def close(self) -> None:
        """Close connections."""
        await disconnect(self._redis)


def _taken(stream: str, place: str, flat: Sequence[bytes], lane_of: Callable[[str], Priority]) -> Taken:
    """A message as it was read; whoever may write to the server may have written anything."""
    at = (stream, place)
    try:
        fields = {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
        if any(len(value) > _LONGEST for value in fields.values()):
            return Taken(at, None, "a field is too long")
        run, trace, parent, kind, _ = (fields[name].decode() for name in _FIELDS)
    except UnicodeDecodeError:
        return Taken(at, None, "it is no text")
    except KeyError as error:
        return Taken(at, None, f"it has no field {error}")
    if not run.startswith("run_"):
        return Taken(at, None, "it names no run")
    return Taken(at, Queued(run, trace, parent or None, kind, lane_of(stream)))
