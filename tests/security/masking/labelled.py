"""Texts with what is private in them marked `<kind|value>`, as people write in Chinese and English, and texts with nothing of the
sort: orders, times, versions, addresses of machines.

The numbers are made up, or those that issuers publish for tests.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.security.masking.found import Found

MARKED: Final = (
    "Please call me at <phone|13812345678> tomorrow.",
    "我的手机号是<phone|13912345678>，请联系我。",
    "电话：<phone|138-1234-5678>",
    "联系 <phone|+86 138 1234 5678> 即可",
    "手机<phone|１３８１２３４５６７８>，晚上打。",
    "手机<phone|１３８－１２３４－５６７８>",
    "座机<phone|０１０－６５５２９９８８>",
    "公司电话<phone|010-65529988>转 8001",
    "上海办公室 <phone|(021) 6234 5678>",
    "客服热线<phone|400-820-8820>",
    "深圳 <phone|0755-88888888>",
    "电话<phone|62345678>",
    "请拨打<phone|8613812345678>",
    "<phone|15012345678>或<phone|18612345678>都可以",
    "订单 20240318001234 的收件人电话是<phone|17712345678>",
    '{"order_id": "13800138000", "phone": "<phone|13700137000>"}',
    "+8613512345678 是他的号码".replace("+8613512345678", "<phone|+8613512345678>"),
    "My number: <phone|(415) 555-2671>.",
    "Reach me on <phone|415-555-2671> or <phone|415.555.2672>",
    "phone <phone|4155552671>",
    "my number is <phone|13812345678>",
    "Berlin office: <phone|+49 30 123456>, tonight",
    "London: <phone|+44 20 7946 0958>",
    "London: <phone|020 7946 0958>",
    "mobile <phone|07911 123456>",
    "Paris <phone|+33 1 42 68 53 00>",
    "dial <phone|0044 20 7946 0958>",
    "WhatsApp <phone|+1 (212) 736-5000>",
    "call <phone|1-800-275-2273>",
    "身份证号<id_number|11010519491231002X>",
    "身份证：<id_number|310101199001011234>。",
    "ID card <id_number|110105 19491231 002X>",
    "证件号<id_number|１１０１０５１９４９１２３１００２Ｘ>",
    "卡号 <bank_card|6222 0212 3456 7890 128>",
    "银行卡<bank_card|6222021234567890128>，工商银行",
    "Pay with <bank_card|4111 1111 1111 1111> please",
    "card <bank_card|5500-0000-0000-0004>, exp 09/30",
    "amex <bank_card|378282246310005>",
    "amex <bank_card|3782 822463 10005>",
    "visa <bank_card|4242424242424242>.",
    "卡号：<bank_card|４１１１　１１１１　１１１１　１１１１>",
    "IBAN <iban|DE89 3704 0044 0532 0130 00> thanks a lot",
    "to <iban|GB82WEST12345698765432>",
    "IBAN: <iban|FR14 2004 1010 0505 0001 3M02 606>.",
    "iban <iban|nl91abna0417164300>",
    "Write to <email|sam.roe@example.org>.",
    "邮箱是<email|sam@example.com>。",
    "邮箱<email|li.wei+shop@mail.example.cn>，谢谢",
    "<<email|bob_smith@sub.example.co.uk>>",
    "mailto:<email|a.b@example.io>?subject=x",
    "https://x.test/u?mail=<email|sam%40example.com>&a=1",
    "邮箱：<email|ｓａｍ＠example.com>",
    "`<email|root@example.net>`",
    "cc <email|josé.garcía@example.es>",
    "Zeroes between: <phone|138\u200b1234\u200b5678>",
)

PLAIN: Final = (
    "order 20240318123456",
    "订单号：13800138000 已发货",
    "订单20240318001234什么时候到？",
    "运单号 75312345678901",
    "快递单号：SF1234567890123",
    "order number 13812345678",
    "tracking number 4111111111111111",
    "SO-2024-0318 and SO-13800138000",
    "It is 1711111111 now",
    "ts=1711111111111",
    "at 2024-03-18 12:30:45.123456",
    "2024-03-18T12:30:45Z",
    "2024年3月18日 12点30分",
    "from 2026-09-30 to 2026-10-01",
    "09/30/2026, 10/01/2026",
    "version 1.13812345678",
    "pi is 3.14159265358979",
    "logo@2x.png",
    "react@18.2.0 and @types/node@20.1.1",
    "192.168.100.200 and 10.0.0.1:8080",
    "a1b2c3d4-1234-5678-9abc-1234567890ab",
    "commit 9c9c3d2a1f4455667788990011223344aabbccdd",
    "1,234,567,890 yuan",
    "总价 1234567.89 元",
    "git@github.com:owner/repo.git",
    "ISBN 978-7-111-54742-6",
    "100-200-3000 items",
    "123456789012",
    "0.13812345678",
    "SKU 6901234567892",
    "tracking 1Z999AA10123456784",
    "GPU 4090 24576MiB 535.104.05",
    "10000000000 rows in 13800138 ms",
    "编号 4242424242424242",
    "#4111111111111111",
    "DE89 is a code, GB82 too",
    "chapters 12 34 56 78",
    "身份证号 110105194912310021 校验错",
    "card 4111 1111 1111 1112",
    "见第3章第12节，共 1200 页",
    "port 8080, pid 12345, uid 1000",
    "id: 13812345678",
    "a@b",
    "someone @ somewhere.com",
    "x = y @ z.T",
    "2 + 2 = 4; 1024 * 768 = 786432",
    "eth0 00:1a:2b:3c:4d:5e",
    "0x13812345678ABCDEF",
    "2024031812304512",
    "6011 is a number",
)

_MARK: Final = re.compile(r"<([a-z_]+)\|([^>]+)>")


def read(marked: str) -> tuple[str, list[Found]]:
    """The text without marks, and what was marked."""
    text, found, place = "", [], 0
    for mark in _MARK.finditer(marked):
        text += marked[place : mark.start()]
        found.append(Found(len(text), len(text) + len(mark.group(2)), mark.group(1)))
        text += mark.group(2)
        place = mark.end()
    return text + marked[place:], found
