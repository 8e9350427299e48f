"""What time it is, anywhere."""

from __future__ import annotations

import difflib
import functools
import time
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from gateway.tools import Tools, tool

_CITIES = {
    "北京": "Asia/Shanghai",
    "上海": "Asia/Shanghai",
    "中国": "Asia/Shanghai",
    "深圳": "Asia/Shanghai",
    "beijing": "Asia/Shanghai",
    "china": "Asia/Shanghai",
    "香港": "Asia/Hong_Kong",
    "台北": "Asia/Taipei",
    "东京": "Asia/Tokyo",
    "日本": "Asia/Tokyo",
    "首尔": "Asia/Seoul",
    "新加坡": "Asia/Singapore",
    "伦敦": "Europe/London",
    "巴黎": "Europe/Paris",
    "柏林": "Europe/Berlin",
    "莫斯科": "Europe/Moscow",
    "纽约": "America/New_York",
    "洛杉矶": "America/Los_Angeles",
    "san francisco": "America/Los_Angeles",
    "悉尼": "Australia/Sydney",
    "utc": "UTC",
    "gmt": "UTC",
}
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def check() -> None:
    """Raise where the time zone database is missing."""
    _zone("Asia/Shanghai")


@tool(check=check)
def clock(timezone: str = "UTC") -> dict[str, str]:
    """Tell the current date and time when the user asks what time, day or date it is (现在几点, 时间, 日期).

    timezone: a city or an IANA zone, for example Asia/Shanghai, Tokyo, 北京 or UTC
    """
    zone = _zone(timezone)
    now = datetime.fromtimestamp(int(time.time()), zone)
    return {
        "timezone": zone.key,
        "datetime": now.isoformat(),
        "date": now.date().isoformat(),
        "time": now.time().isoformat(),
        "weekday": _WEEKDAYS[now.weekday()],
        "utc_offset": now.strftime("%z"),
    }


def register(registry: Tools) -> None:
    """Add the clock."""
    registry.add(clock)


@functools.cache
def _zones() -> tuple[dict[str, str], dict[str, str]]:
    """Every zone by its path and by its city: "tokyo" is Asia/Tokyo. Read from the disk once."""
    known = {zone.lower().replace("_", " "): zone for zone in sorted(available_timezones())}
    return known, {path.rsplit("/", 1)[-1]: zone for path, zone in known.items() if "/" in path}


def _zone(name: str) -> ZoneInfo:
    wanted = name.strip().lower().replace("_", " ")
    if wanted in _CITIES:
        return ZoneInfo(_CITIES[wanted])
    known, cities = _zones()
    found = known.get(wanted) or cities.get(wanted)
    if found is None:
        close = difflib.get_close_matches(wanted, [*known, *cities], n=3)
        hint = f"; did you mean {', '.join(known.get(each) or cities[each] for each in close)}?" if close else ""
        raise ValueError(f"there is no time zone {name!r}{hint}")
    try:
        return ZoneInfo(found)
    except ZoneInfoNotFoundError as error:
        raise ValueError(f"there is no time zone {name!r}") from error
