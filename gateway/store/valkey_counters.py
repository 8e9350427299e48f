"""Counters in Redis or Valkey, shared by replicas: one script lets a turn in, one lets it out.

Everything a turn needs is asked in one round trip, and taken or refused in one step. What is told at its end goes out a moment
later, with the ends of other turns. Time is the server's. All keys begin with one hash tag, so that they are in one slot of a
cluster; scripts name them by that beginning alone.

| key | holds |
| --- | --- |
| `b:NAME` | a bucket: `u`sed so far, and when (`t`, ms) |
| `s:NAME` | places: who holds one, by when it lapses |
| `m:NAME` | money: `spent`, and `held` by turns that run |
| `h:NAME` | who holds how much of it, `ID|AMOUNT`, by when it lapses |
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.errors import StoreUnavailable
from gateway.security.counters import LEASE_S, Entry, Exit, Stay, Verdict
from gateway.store.valkey_wire import Script, ValkeyWire

_CLOSE_S: Final = 5.0
# Seconds in which ends of turns are gathered, and how many go at once.
_GATHER_S: Final = 0.005
_AT_ONCE: Final = 200
# Ends that wait for a server which is away; more are dropped, and lapse.
_MOST_WAITING: Final = 10_000

_HEAD: Final = """
local base = KEYS[1]
local a = cmsgpack.unpack(ARGV[1])
local lease = tonumber(ARGV[2])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(ARGV[3])

local function level(name, limit)
  local b = redis.call('HMGET', base .. 'b:' .. name, 'u', 't')
  if not b[1] then return 0 end
  return math.max(0, tonumber(b[1]) - math.max(0, now - tonumber(b[2])) * limit / 60000)
end
local function fill(name, limit, used)
  local key = base .. 'b:' .. name
  if used <= 0 then redis.call('DEL', key) return end
  redis.call('HSET', key, 'u', string.format('%.9f', used), 't', string.format('%.0f', now))
  redis.call('PEXPIRE', key, math.ceil(used * 60000 / limit) + 1000)
end
local function whole(number) return string.format('%.0f', number + 0) end
local function lapse(name)
  local gone = redis.call('ZRANGEBYSCORE', base .. 'h:' .. name, '-inf', now)
  for _, member in ipairs(gone) do
    redis.call('ZREM', base .. 'h:' .. name, member)
    redis.call('HINCRBY', base .. 'm:' .. name, 'held', whole(-string.match(member, '|(%d+)$')))
  end
end
local function keep(name, kept)
  redis.call('EXPIRE', base .. 'm:' .. name, kept)
  redis.call('EXPIRE', base .. 'h:' .. name, kept)
end
"""
_ENTER: Final = (
    _HEAD
    + """
local id, takes, slots, holds = a[1], a[2], a[3], a[4]
local spent, held, unknown = {}, {}, false
for i, h in ipairs(holds) do
  local key = base .. 'm:' .. h[1]
  if h[5] >= 0 then redis.call('HSETNX', key, 'spent', whole(h[5])) end
  lapse(h[1])
  local m = redis.call('HMGET', key, 'spent', 'held')
  spent[i], held[i] = tonumber(m[1] or -1), tonumber(m[2] or 0)
  if not m[1] then unknown = true end
end
if unknown then return cmsgpack.pack({'unknown', '', 0, 0, {}, {}, spent, held}) end
local used, busy = {}, {}
local kind, index, wait = '', 0, 0
for i, b in ipairs(takes) do
  used[i] = level(b[1], b[2])
  local missing = used[i] + math.min(b[3], b[2]) - b[2]
  if missing > 0.000001 then
    local ms = missing * 60000 / b[2]
    if kind == '' or ms > wait then kind, index, wait = 'take', i - 1, ms end
  end
end
for i, s in ipairs(slots) do
  local key = base .. 's:' .. s[1]
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  busy[i] = redis.call('ZCARD', key)
  if kind == '' and busy[i] >= s[2] then kind, index = 'slot', i - 1 end
end
for i, h in ipairs(holds) do
  if h[3] > h[4] and spent[i] + held[i] - h[4] + h[3] > h[2] then
    kind, index, wait = 'hold', i - 1, 0
    break
  end
end
if kind == '' then
  for i, b in ipairs(takes) do
    used[i] = used[i] + math.min(b[3], b[2])
    fill(b[1], b[2], used[i])
  end
  for i, s in ipairs(slots) do
    redis.call('ZADD', base .. 's:' .. s[1], now + lease, id)
    redis.call('PEXPIRE', base .. 's:' .. s[1], lease * 2)
    busy[i] = busy[i] + 1
  end
  for i, h in ipairs(holds) do
    local old = 0
    if h[4] > 0 then old = redis.call('ZREM', base .. 'h:' .. h[1], id .. '|' .. whole(h[4])) * h[4] end
    redis.call('ZADD', base .. 'h:' .. h[1], now + lease, id .. '|' .. whole(h[3]))
    redis.call('HINCRBY', base .. 'm:' .. h[1], 'held', whole(h[3] - old))
    held[i] = held[i] + h[3] - old
    keep(h[1], h[6])
  end
end
local left = {}
for i, b in ipairs(takes) do left[i] = b[2] - used[i] end
return cmsgpack.pack({kind == '' and 'in' or 'refused', kind, index, wait, left, busy, spent, held})
"""
)
_LEAVE: Final = (
    _HEAD
    + """
for _, e in ipairs(a) do
  for _, g in ipairs(e[2]) do fill(g[1], g[2], math.max(0, level(g[1], g[2]) + g[3])) end
  for _, name in ipairs(e[3]) do redis.call('ZREM', base .. 's:' .. name, e[1]) end
  for _, p in ipairs(e[4]) do
    local key = base .. 'm:' .. p[1]
    if redis.call('ZREM', base .. 'h:' .. p[1], e[1] .. '|' .. whole(p[2])) == 1 then
      redis.call('HINCRBY', key, 'held', whole(-p[2]))
    end
    if p[3] > 0 and redis.call('HEXISTS', key, 'spent') == 1 then redis.call('HINCRBY', key, 'spent', whole(p[3])) end
  end
end
return ''
"""
)
_RENEW: Final = (
    _HEAD
    + """
for _, e in ipairs(a) do
  for _, name in ipairs(e[2]) do
    redis.call('ZADD', base .. 's:' .. name, now + lease, e[1])
    redis.call('PEXPIRE', base .. 's:' .. name, lease * 2)
  end
  for _, h in ipairs(e[3]) do
    if redis.call('HEXISTS', base .. 'm:' .. h[1], 'spent') == 1 then
      local key, member = base .. 'h:' .. h[1], e[1] .. '|' .. whole(h[2])
      if redis.call('ZADD', key, now + lease, member) == 1 then
        redis.call('HINCRBY', base .. 'm:' .. h[1], 'held', whole(h[2]))
      end
    end
  end
end
return ''
"""
)
_encode = msgspec.msgpack.Encoder().encode
_verdict = msgspec.msgpack.Decoder(Verdict, strict=False).decode


class ValkeyCounters:
    """`Counters` over a Redis or Valkey server.

    Args:
        url: `redis://`, `rediss://` or `unix://`; never shown.
        prefix: what every key begins with.
        lease_s: as in `counters.py`.
    """

    shared = True

    def __init__(self, url: str, prefix: str, *, lease_s: float = LEASE_S) -> None:
        self._wire = ValkeyWire(url)
        self._base = f"{prefix}{{use}}:".encode()
        self._lease = b"%d" % int(lease_s * 1000)
        self._enter, self._leave, self._renew = Script(_ENTER), Script(_LEAVE), Script(_RENEW)
        self._leaving: list[Exit] = []
        self._sending: asyncio.Task[None] | None = None
        # Milliseconds that tests move the server's time by.
        self.ahead_ms = 0

    async def enter(self, entry: Entry) -> Verdict:
        """Take everything at once, or nothing.

        Nobody is refused by what turns of this process hold only because their ends are still to be told: a client that asks right
        behind its answer is no second one.
        """
        ended = [*self._leaving]
        verdict = _verdict(await self._run(self._enter, entry))
        if ended and verdict.outcome == "refused" and _gives_back(ended, entry, verdict):
            await self._tell()
            verdict = _verdict(await self._run(self._enter, entry))
        return verdict

    def leave(self, exit_: Exit) -> None:
        """Give back, and count what it came to, in a moment."""
        if len(self._leaving) < _MOST_WAITING:
            self._leaving.append(exit_)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="counters")

    async def renew(self, stays: Sequence[Stay]) -> None:
        """Give word."""
        for at in range(0, len(stays), _AT_ONCE):
            await self._run(self._renew, stays[at : at + _AT_ONCE])

    async def close(self) -> None:
        """Send what is to be sent, and close the connection."""
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=_CLOSE_S)
            self._sending.cancel()
        await self._wire.close()

    async def _send(self) -> None:
        await asyncio.sleep(_GATHER_S)
        await self._tell()

    async def _tell(self) -> None:
        while self._leaving:
            batch = self._leaving[:_AT_ONCE]
            del self._leaving[:_AT_ONCE]
            try:
                await self._run(self._leave, batch)
            except StoreUnavailable:
                # What these turns held lapses by itself. What they came to is in the database, and is read from there by a
                # server that has lost its memory.
                continue

    async def _run(self, script: Script, value: Any) -> bytes:
        return await self._wire.run(script, self._base, (_encode(value), self._lease, b"%d" % self.ahead_ms))


def _gives_back(exits: Sequence[Exit], entry: Entry, refused: Verdict) -> bool:
    """Whether one of these gives back some of what the entry was refused by."""
    if refused.kind == "slot":
        place = entry.slots[refused.index].name
        return any(place in each.slots for each in exits)
    if refused.kind == "hold":
        purse = entry.holds[refused.index].name
        return any(paid.name == purse and paid.held > paid.cost for each in exits for paid in each.paid)
    bucket = entry.takes[refused.index].name
    return any(given.name == bucket and given.amount < 0 for each in exits for given in each.given)
