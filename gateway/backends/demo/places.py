"""Names the demo backend knows by heart: cities with their time zones, currencies, languages.

Pure data. A city that is missing here is still read from the text by its place in the sentence (`values.py`).
"""

from __future__ import annotations

from typing import Final

_CITIES: Final = """
Asia/Shanghai: shanghai beijing shenzhen guangzhou hangzhou china 上海 北京 深圳 广州 杭州 成都 武汉 南京 西安 重庆 天津 苏州 中国
Asia/Hong_Kong: hong_kong 香港
Asia/Taipei: taipei 台北
Asia/Tokyo: tokyo osaka kyoto japan 东京 大阪 京都 日本
Asia/Seoul: seoul korea 首尔 韩国
Asia/Singapore: singapore 新加坡
Asia/Bangkok: bangkok thailand 曼谷 泰国
Asia/Jakarta: jakarta 雅加达
Asia/Manila: manila 马尼拉
Asia/Kolkata: kolkata mumbai delhi new_delhi bangalore india 孟买 新德里 印度
Asia/Dubai: dubai abu_dhabi 迪拜
Asia/Karachi: karachi
Asia/Tehran: tehran 德黑兰
Asia/Jerusalem: jerusalem tel_aviv 耶路撒冷
Europe/London: london uk england 伦敦 英国
Europe/Dublin: dublin ireland 都柏林
Europe/Paris: paris lyon france 巴黎 法国
Europe/Berlin: berlin munich hamburg frankfurt germany 柏林 慕尼黑 法兰克福 德国
Europe/Madrid: madrid barcelona spain 马德里 巴塞罗那 西班牙
Europe/Rome: rome milan italy 罗马 米兰 意大利
Europe/Amsterdam: amsterdam 阿姆斯特丹
Europe/Brussels: brussels 布鲁塞尔
Europe/Vienna: vienna 维也纳
Europe/Zurich: zurich geneva switzerland 苏黎世 日内瓦
Europe/Stockholm: stockholm 斯德哥尔摩
Europe/Oslo: oslo 奥斯陆
Europe/Copenhagen: copenhagen 哥本哈根
Europe/Helsinki: helsinki 赫尔辛基
Europe/Warsaw: warsaw 华沙
Europe/Prague: prague 布拉格
Europe/Budapest: budapest 布达佩斯
Europe/Athens: athens 雅典
Europe/Lisbon: lisbon 里斯本
Europe/Istanbul: istanbul 伊斯坦布尔
Europe/Kyiv: kyiv kiev 基辅
Europe/Moscow: moscow 莫斯科
America/New_York: new_york nyc boston washington miami atlanta 纽约 波士顿 华盛顿
America/Chicago: chicago dallas houston 芝加哥
America/Denver: denver 丹佛
America/Los_Angeles: los_angeles san_francisco seattle san_diego las_vegas 洛杉矶 旧金山 西雅图
America/Toronto: toronto montreal 多伦多
America/Vancouver: vancouver 温哥华
America/Mexico_City: mexico_city 墨西哥城
America/Sao_Paulo: sao_paulo rio_de_janeiro 圣保罗
America/Argentina/Buenos_Aires: buenos_aires 布宜诺斯艾利斯
America/Bogota: bogota
America/Lima: lima 利马
Africa/Cairo: cairo egypt 开罗
Africa/Johannesburg: johannesburg cape_town 约翰内斯堡 开普敦
Africa/Lagos: lagos
Africa/Nairobi: nairobi 内罗毕
Australia/Sydney: sydney 悉尼
Australia/Melbourne: melbourne 墨尔本
Australia/Perth: perth
Pacific/Auckland: auckland wellington 奥克兰
Pacific/Honolulu: honolulu 檀香山
UTC: utc gmt 协调世界时
"""

# A city in lower case with blanks, or in Chinese, to its IANA time zone.
TIME_ZONES: Final[dict[str, str]] = {
    city.replace("_", " "): zone
    for zone, cities in (line.split(": ", 1) for line in _CITIES.strip().splitlines())
    for city in cities.split()
}

CURRENCIES: Final[dict[str, str]] = {
    name.replace("_", " "): code
    for code, names in {
        "USD": "usd dollar dollars us_dollar us_dollars 美元 美金",
        "EUR": "eur euro euros 欧元",
        "CNY": "cny rmb yuan renminbi 人民币",
        "JPY": "jpy yen 日元",
        "GBP": "gbp pound pounds 英镑",
        "HKD": "hkd 港币 港元",
        "CHF": "chf franc francs 瑞士法郎",
        "CAD": "cad 加元",
        "AUD": "aud 澳元",
        "INR": "inr rupee rupees 卢比",
        "KRW": "krw won 韩元",
        "SGD": "sgd 新币 新加坡元",
    }.items()
    for name in names.split()
}

# Name in lower case or in Chinese: (English name, ISO 639-1 code).
LANGUAGES: Final[dict[str, tuple[str, str]]] = {
    name: (english, code)
    for english, code, names in (
        ("English", "en", "english 英语 英文"),
        ("Chinese", "zh", "chinese mandarin 中文 汉语"),
        ("French", "fr", "french 法语 法文"),
        ("German", "de", "german 德语 德文"),
        ("Spanish", "es", "spanish 西班牙语"),
        ("Italian", "it", "italian 意大利语"),
        ("Japanese", "ja", "japanese 日语 日文"),
        ("Korean", "ko", "korean 韩语 韩文"),
        ("Russian", "ru", "russian 俄语"),
        ("Portuguese", "pt", "portuguese 葡萄牙语"),
        ("Arabic", "ar", "arabic 阿拉伯语"),
    )
    for name in names.split()
}
