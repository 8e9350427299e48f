from __future__ import annotations

import datetime as dt
import time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.clock import check, clock

ZONES = ["Asia/Shanghai", "America/New_York", "Europe/Berlin", "Asia/Kathmandu", "Pacific/Chatham", "UTC"]


@pytest.mark.parametrize("zone", ZONES)
def test_it_tells_the_time_of_a_zone(zone: str) -> None:
    before = int(time.time())
    told = clock(zone)
    moment = dt.datetime.fromisoformat(told["datetime"])
    assert before <= moment.timestamp() <= time.time()
    assert moment.utcoffset() == dt.datetime.fromtimestamp(moment.timestamp(), ZoneInfo(zone)).utcoffset()
    assert told["date"] == moment.date().isoformat()
    assert told["weekday"] == moment.strftime("%A")
    assert told["timezone"] == zone


@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("Tokyo", "Asia/Tokyo"),
        ("北京", "Asia/Shanghai"),
        ("new york", "America/New_York"),
        ("asia/shanghai", "Asia/Shanghai"),
        ("utc", "UTC"),
    ],
)
def test_cities_name_their_zone(name: str, zone: str) -> None:
    assert clock(name)["timezone"] == zone


def test_an_unknown_zone_is_an_error_that_suggests_one() -> None:
    with pytest.raises(ValueError, match="Asia/Shanghai"):
        clock("Asia/Shangai")
    with pytest.raises(ValueError, match="there is no time zone"):
        clock("../../etc/passwd")


@given(st.text(max_size=30))
def test_any_text_is_a_zone_or_refused(name: str) -> None:
    try:
        assert clock(name)["timezone"]
    except ValueError:
        return


def test_its_own_check_passes() -> None:
    check()
