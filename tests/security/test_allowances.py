"""Whose day it is."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gateway.config.models import GatewayConfig
from gateway.security.allowances import Allowances


def at(zone: str, text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Santiago", "Pacific/Kiritimati"])
def test_a_day_is_the_zones_and_a_clock_that_is_put_back_is_in_the_day_before(zone: str) -> None:
    config = GatewayConfig.model_validate(
        {
            "backends": {"b": {"provider": "demo"}},
            "models": {"m": {"backends": ["b"]}},
            "router": {"default": "m"},
            "budgets": {"timezone": zone},
        }
    )
    allowances = Allowances(config, {})
    # Santiago's clocks skip the first hour of the 6th of September 2026, Berlin's the third of the 29th of March.
    for day, before in (("2026-09-06", "2026-09-05"), ("2026-03-29", "2026-03-28"), ("2026-01-01", "2025-12-31")):
        assert allowances.today(at(zone, f"{day}T03:30:00")).day == day
        assert allowances.today(at(zone, f"{before}T23:59:59")).day == before
        assert allowances.today(at(zone, f"{day}T01:00:00")).names["month"] == day[:7]
