"""Clocks that stand still until a test moves them."""

from __future__ import annotations

import asyncio


class HandClock:
    """`Clock`, moved by hand; `sleep` moves it too and returns at once."""

    def __init__(self, now: float = 1_750_000_000.0) -> None:
        self.at = now

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


class SteppingClock(HandClock):
    """As above; who sleeps lets the others run."""

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        await asyncio.sleep(0)
