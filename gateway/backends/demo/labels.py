"""Chinese words for keys and values that results often have. Pure data."""

from __future__ import annotations

from typing import Final

LABELS_ZH: Final[dict[str, str]] = {
    "expression": "算式", "query": "关键词", "status": "状态", "state": "状态", "total": "合计", "amount": "金额", "price": "价格", "currency": "币种", "tracking_no": "运单号",
    "tracking_number": "运单号", "items": "商品", "item": "商品", "carrier": "承运商", "location": "位置", "eta": "预计送达",
    "order_id": "订单号", "order": "订单", "id": "编号", "name": "名称", "quantity": "数量", "qty": "数量", "count": "数量", "city": "城市",
    "country": "国家", "temperature": "温度", "temp": "温度", "temp_c": "温度（摄氏度）", "condition": "天气", "conditions": "天气",
    "weather": "天气", "humidity": "湿度", "wind": "风", "time": "时间", "date": "日期", "datetime": "日期时间", "weekday": "星期",
    "timezone": "时区", "utc_offset": "UTC 偏移", "title": "标题", "text": "正文", "content": "内容", "url": "网址", "result": "结果", "value": "结果", "path": "路径",
    "size": "大小", "bytes": "字节", "files": "文件", "results": "结果", "created_at": "创建时间", "ordered_at": "下单时间", "updated_at": "更新时间",
    "shipped_at": "发货时间", "customer": "客户", "address": "地址", "phone": "电话", "email": "邮箱", "message": "消息", "score": "得分",
    "rate": "汇率", "unit_price": "单价", "sku": "货号", "description": "说明", "note": "备注", "notes": "笔记", "events": "记录",
}  # fmt: skip

VALUES_ZH: Final[dict[str, str]] = {
    "pending": "待处理", "paid": "已付款", "processing": "处理中", "packed": "已打包", "shipped": "已发货", "in_transit": "运输中",
    "in transit": "运输中", "out_for_delivery": "派送中", "out for delivery": "派送中", "delivered": "已送达", "cancelled": "已取消",
    "canceled": "已取消", "refunded": "已退款", "returned": "已退货", "sunny": "晴", "cloudy": "多云", "rain": "雨", "snow": "雪",
}  # fmt: skip
