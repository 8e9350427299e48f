"""Words that mean the same for choosing a tool, in English and Chinese.

Pure data: a concept's name and the words that express it. English words stand as stems (`words.stem`), Chinese as phrases.
Does not know how text is cut into words: that is `words.py`.
"""

from __future__ import annotations

from typing import Final

# concept: (English stems, Chinese phrases)
CONCEPTS: Final[dict[str, tuple[str, str]]] = {
    "order": ("order purchase", "订单 订单号 购买"),
    "tracking": ("track tracking waybill", "运单 运单号 快递单号 物流单号 追踪 跟踪 单号"),
    "shipping": ("ship shipment shipping parcel package deliver delivery logistic courier", "物流 快递 包裹 发货 配送"),
    "location": ("where location whereabout position", "到哪 在哪 哪里 哪儿 位置 到哪里 到哪儿"),
    "eta": ("eta arrive arrival", "预计 送达 什么时候到 何时到 多久到 多久能到 几时到 到货"),
    "status": ("status state progress", "状态 进度"),
    "price": (
        "price cost total amount much expensive pay paid charge",
        "多少钱 价格 金额 合计 总价 总额 总共 一共 费用",
    ),
    "item": ("item product goods article", "商品 产品 货品 货物 买了什么"),
    "carrier": ("carrier", "承运商 承运 快递公司"),
    "currency": (
        "currency exchange dollar euro yuan yen usd eur cny",
        "汇率 货币 币种 换成 兑换 美元 欧元 人民币 日元",
    ),
    "weather": (
        "weather forecast rain sunny snow temperature climate hot cold",
        "天气 气温 温度 下雨 下雪 预报 多少度",
    ),
    "city": ("city town", "城市"),
    "time": ("time clock hour oclock timezone", "时间 几点 时区 时钟 钟点"),
    "date": ("date day today calendar week weekday", "日期 几号 几月 星期几 礼拜几 今天 日历"),
    "calculate": (
        "calculate calculation calculator compute math arithmetic sum plus minus multiply divide percent percentage",
        "计算 计算器 算 算术 等于 加 减 乘 除 百分之",
    ),
    "web": ("web webpage website page url link site http https", "网页 网址 网站 链接 页面"),
    "fetch": ("fetch download open load visit browse summarize summary", "抓取 打开 下载 访问 浏览 总结 概括"),
    "file": ("file folder directory document", "文件 文件夹 目录 文档"),
    "read": ("read content", "读 读取 阅读 内容"),
    "list": ("list show enumerate", "列出 显示 有哪些 列表"),
    "search": ("search find lookup query seek", "搜索 查找 搜 检索 查询 查一下 找"),
    "note": (
        "note memo notebook knowledge handbook manual documentation doc guide policy faq",
        "笔记 备忘 备忘录 知识库 手册 说明 指南 政策 规定 制度",
    ),
    "email": ("email mail inbox", "邮件 邮箱 电子邮件"),
    "send": ("send", "发送 发给 寄"),
    "message": ("message sms text", "消息 短信"),
    "user": ("user account profile", "用户 账户 账号"),
    "customer": ("customer client", "客户 顾客"),
    "stock": ("stock share ticker", "股票 股价"),
    "inventory": ("inventory warehouse", "库存 存货 仓库"),
    "refund": ("refund", "退款 退货"),
    "cancel": ("cancel cancellation", "取消 撤销"),
    "create": ("create add new make", "创建 新建 添加 新增"),
    "delete": ("delete remove erase", "删除 移除 清除"),
    "update": ("update change edit modify", "更新 修改 更改 编辑"),
    "remind": ("remind reminder alarm", "提醒 闹钟"),
    "meeting": ("meeting appointment event schedule", "会议 日程 预约"),
    "translate": ("translate translation", "翻译 译成 译为"),
    "news": ("news headline", "新闻 头条"),
    "invoice": ("invoice bill", "发票 账单"),
    "flight": ("flight fly plane airline", "航班 机票 飞机"),
    "hotel": ("hotel room", "酒店 宾馆"),
    "restaurant": ("restaurant dinner", "餐厅 餐馆 饭店"),
    "book": ("book reserve reservation booking", "预订 预定 订一"),
    "music": ("music song play", "音乐 歌曲 歌 播放"),
    "distance": ("distance far kilometer mile", "距离 多远 公里"),
    "convert": ("convert conversion", "转换 换算"),
    "random": ("random dice", "随机 骰子"),
    "image": ("image picture photo draw", "图片 照片 画"),
}

# What these ask for is also what a tool offers that speaks of the second set alone ("track a shipment").
IMPLIED: Final[dict[str, frozenset[str]]] = {
    "location": frozenset({"tracking", "shipping"}),
    "eta": frozenset({"tracking", "shipping"}),
    "carrier": frozenset({"tracking", "shipping"}),
}

# Verbs that half of all tools carry in their names: they decide between two tools, but never call one.
GENERIC: Final[frozenset[str]] = frozenset(
    "search list read fetch get query run do make check use show call set tool api "
    "lookup data info information current item text message".split()
)

# A tool named so changes something: it is only called when the question asks for exactly that.
ACTIONS: Final[frozenset[str]] = frozenset({"cancel", "delete", "refund", "update", "create", "book"})

# Who speaks of these asks for something a tool of their own would do.
TOPICS: Final[frozenset[str]] = frozenset(
    "weather time calculate translate news stock flight hotel restaurant music remind meeting".split()
)

# Nothing about a tool follows from these.
STOP_WORDS: Final[frozenset[str]] = frozenset(
    "a an the is are was were be been am do does did i me my mine you your we our it its he she they them this that "
    "these those of to in on at for from by with and or not no as if then than so but what which who whom whose how "
    "when why can could would should will shall may might must please tell give get want need know let us there here "
    "have has had about into out up down over any some all each every just also too very more most other use "
    "using used call example e.g eg such like one two only return returns returned given say says said ask asks asked "
    "hello hi hey thanks thank ok okay yes s t re ve ll d m".split()
)
