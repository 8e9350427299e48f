"""The patterns of pins that are found without any configuration: tag, RE2, and what is shown first.

Facts that people come back to: orders, customers, dates, regions, channels, names, amounts; in English and Chinese.
"""

from __future__ import annotations

from typing import Final

# What is found without any configuration; configured tags of the same name take its place.
OWN: Final = (
    ("order", r"(?i)\b((?:SO|PO|ORD|INV|DD|RMA)[-_ ]?\d[\d-]{3,24})\b", 5),
    ("order", r"(?i)(?:\border(?: (?:number|no\.?|id))?|订单号?|单号)\s*(?:is|=|:|：|#|为|是)?\s*#?([A-Z]{0,6}-?\d[\w-]{3,24})", 5),
    (
        "customer number",
        (r"(?i)(?:\b(?:customer|client|account|member|contract)[ -](?:number|no\.?|id)|客户号|客户编号|账号|会员号|合同号)"
        r"\s*(?:is|=|:|：|#|为|是)?\s*#?([\w-]*\d[\w-]{0,24})"),
        5,
    ),
    (
        "date range",
        (r"(?i)\b(\d{4}-\d{2}-\d{2}(?:\s*(?:to|until|till|-|–|~|/)\s*\d{4}-\d{2}-\d{2})?|(?:last|this|past|previous)"
        r" (?:week|month|quarter|year|\d+ (?:days|weeks|months))|(?:Q[1-4]|H[12])[ /-]?(?:20)?\d{2}|"
        r"(?:January|February|March|April|May|June|July|August|September|October|November|December) (?:\d{1,2},? )?20\d{2})\b"),
        4,
    ),
    ("date range", r"(上周|本周|上个?月|本月|这个月|上季度|本季度|去年|今年|\d{4}年(?:\d{1,2}月)?(?:\d{1,2}日)?(?:[至到-]\d{1,2}[月日]\d{0,2}日?)?)", 4),
    ("region", r"(?i)\b((?:(?:North|South|East|West|Central|Northeast|Northwest|Southeast|Southwest)(?:ern)? (?:China|Europe|America|Asia|Africa|Coast))|EMEA|APAC|LATAM|DACH)\b", 4),
    ("region", r"(华[东南西北中]|东北|西北|西南|东南|长三角|珠三角)", 4),
    ("channel", r"(?i)\b(online|offline|retail|wholesale|e-?commerce|app store|WeChat|Tmall|JD\.com|Amazon|Douyin)\b channel", 3),
    ("channel", r"(?i)\bchannels?\s*(?:is|=|:)\s*([\w .+-]{2,40})", 3),
    ("channel", r"(天猫|京东|抖音|拼多多|微信|线上|线下)(?:渠道|店|平台)", 3),
    ("name", r"(?:[Mm]y name is|[Ii] am called|[Cc]all me) ((?:\p{L}[\p{L}'’.-]*)(?: \p{Lu}[\p{L}'’.-]*){0,3})", 4),
    ("name", r"(?:我叫|我的名字是|我是)([\p{Han}]{2,4})(?:[，,。.！!]|$)", 4),
    ("amount", r"(?i)((?:USD|EUR|CNY|RMB|GBP|US\$|[$€£¥￥])\s?\d[\d,.]*(?:\s?(?:k|m|bn|million|thousand|万|亿))?\b)", 2),
    ("amount", r"(?i)(\d[\d,.]*\s?(?:USD|EUR|CNY|RMB|GBP|dollars|euros|yuan|万元|亿元|元|欧元|美元))", 2),
)  # fmt: skip
