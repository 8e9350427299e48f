"""Days told from today: "tomorrow", "后天", and what a clock's answer makes of them.

Pure. Knows the words and the calendar; today is whatever a tool's result says it is.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Any, Final

from gateway.backends.demo.words import Language

_DAYS: Final[dict[str, int]] = {
    "day after tomorrow": 2,
    "day before yesterday": -2,
    "tomorrow": 1,
    "yesterday": -1,
    "大后天": 3,
    "后天": 2,
    "前天": -2,
    "明天": 1,
    "明日": 1,
    "昨天": -1,
    "昨日": -1,
}
_DAY: Final = re.compile("|".join(sorted(_DAYS, key=len, reverse=True)), re.IGNORECASE)
_WEEKDAYS: Final[dict[Language, tuple[str, ...]]] = {
    "en": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "zh": ("星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期日"),
}
# Words that say which day is meant, not what is asked about it.
DAY_WORDS: Final = frozenset({"tomorrow", "yesterday", "after", "before"})


def other_day(question: str, result: dict[str, Any], language: Language) -> str | None:
    """The day the question asks for, where the result tells today's `date` and `weekday`; None for today itself."""
    asked = _DAY.search(question)
    if asked is None or "weekday" not in result:
        return None
    try:
        today = date.fromisoformat(str(result.get("date")))
        day = today + timedelta(days=_DAYS[asked.group().lower()])
    except (ValueError, OverflowError):
        return None
    weekday = _WEEKDAYS[language][day.weekday()]
    if language == "zh":
        return f"{asked.group()}：{weekday}，{day.isoformat()}"
    return f"{asked.group().lower()}: {weekday}, {day.isoformat()}"
