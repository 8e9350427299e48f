"""What the words before a number say of it: that it is a phone number, or that it is an order's.

Pure; English and Chinese.
"""

from __future__ import annotations

import re
from typing import Final

# Characters before a number that are read.
_REACH: Final = 28

_LATIN: Final = "tel|telephone|phones?|mobile|cell|call|calling|fax|whats ?app|sms|hotline|dial|ring"
_HAN: Final = "电话|手机|致电|拨打|热线|传真|座机|联系方式|来电|短信|電話|手機"
_PHONE: Final = re.compile(rf"(?:\b(?:{_LATIN})\b|{_HAN})[^0-9\n]{{0,20}}$", re.IGNORECASE)
# The same for who looks quickly and over names of fields too: `customerPhone`, `phone_no`. On RE2.
PHONE_WORDS: Final = rf"(?:(?i:(?:^|[^A-Za-z])(?:{_LATIN})(?:[^A-Za-z0-9]|$))|[a-z](?:Tel|Phone|Mobile|Cell|Call|Fax|Sms|Hotline)(?:s|[^a-z])|{_HAN})"
_OTHER: Final = re.compile(
    r"(?:(?<![A-Za-z])(?:orders?|tracking|parcel|invoice|ticket|serial|sku|isbn|imei|timestamp|epoch|transaction|reference|ref|"
    r"case|batch|id|uid|version|build|no\.|nr\.)(?![A-Za-z])|#"
    r"|订单|单号|运单|快递|发票|流水|编号|序列|批次|时间戳|工单|货号|案件|版本|訂單|單號|編號)"
    r"[号码為为是]{0,2}[^0-9A-Za-z\n]{0,4}(?:is|was|code|no\.?|number)?[^0-9A-Za-z\n]{0,3}$",
    re.IGNORECASE,
)


def says_phone(text: str, start: int) -> bool:
    """Whether the words before `start` announce a phone number."""
    return _PHONE.search(text[max(0, start - _REACH) : start]) is not None


def says_other(text: str, start: int) -> bool:
    """Whether the words right before `start` announce a number of another sort, and none of a phone."""
    before = text[max(0, start - _REACH) : start]
    return _OTHER.search(before) is not None and _PHONE.search(before) is None
