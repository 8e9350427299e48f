"""What somebody wants searched, translated or said: the text of a question without the asking.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.backends.demo.slots import Slot

_POLITE: Final = re.compile(
    r"^(?:\s*(?:please|hi|hello|hey|can you|could you|would you|will you|i want you to|i'd like you to|i want to|then|and|also|"
    r"请问|请|帮我|麻烦|帮忙|你能|能不能|可以|我想|然后|再)[\s,]*)+",
    re.IGNORECASE,
)
_SEARCH: Final = re.compile(
    r"^(?:(?:search|look|find|query|google|check|browse|ask|tell me|show me|what do)\b.*?\b(?:for|about|on|regarding|say about|mentions?|with)\s+"
    r"|(?:what|which|do|does|is|are)\b.*?\b(?:notes?|documents?|files?|knowledge base|handbook|manual|documentation|guide)\b.*?\b(?:say|have|mention|contain)?\b.*?\b(?:about|on|regarding|for)\s+"
    r"|(?:search|find|look up|query|google)\s+(?:my |the |our )?(?:notes?|files?|documents?|web|internet|knowledge base)?\s*(?:[:]\s*)?)",
    re.IGNORECASE,
)
_SEARCH_ZH: Final = re.compile(
    r"^.*?(?:搜索一下|查找一下|检索一下|搜一下|查一下|找一下|搜索|查找|检索|搜|查|找)(?:一?下)?(?:我的|关于|有关)*\s*(?:笔记|文件|文档|知识库)?(?:里|中)?(?:的|关于|有关)*\s*[::]?\s*|^(?:关于|有关|有没有|有无|是否有)\s*"
)
_TAIL: Final = re.compile(
    r"\s*(?:\b(?:in|from|on) (?:my|the|our) (?:notes?|files?|documents?|web|internet|knowledge base)|\bplease|\bfor me)\s*$|(?:的)?(?:笔记|资料|内容|信息|吗|呢)$",
    re.IGNORECASE,
)
_ASK: Final = re.compile(
    r"^(?:what(?:'s| is| are| does| do)\s+(?:our|the|my|your|a)?\s*|(?:is|are) there (?:any |a )?(?:\w+ )?(?:on|about|for)\s+|tell me about\s+|how (?:do|can|does) (?:i|we|one)\s+)",
    re.IGNORECASE,
)
_ASK_TAIL_ZH: Final = re.compile(r"(?:是什么|是怎样的|怎么写的|怎么办|怎么样|有哪些|是多少|如何)$")
_SAY: Final = re.compile(
    r"^(?:(?:translate|repeat|echo|say|summarize|summarise|analyze|analyse|send|post|write|remember|save|note(?: down)?|classify)\b(?:\s+(?:the (?:text|sentence|message)|this|that|it))?\s*[:]?\s*"
    r"|(?:翻译|重复|总结|概括|分析|发送|写|记住|记下|保存)(?:一下|这句话)?\s*[::]?\s*)",
    re.IGNORECASE,
)
_INTO: Final = re.compile(
    r"\s+(?:to|into|in)\s+(?:English|Chinese|French|German|Spanish|Italian|Japanese|Korean|Russian|Portuguese|Arabic)\s*[?.!]*$|(?:翻译)?[成为].{1,4}[语文]\s*$",
    re.IGNORECASE,
)


def query_text(text: str, slot: Slot) -> str:
    """The part of `text` for a free-text parameter. Never longer than the text; empty only if the text is."""
    whole = text.strip(" \n?.!;,")
    cut = _POLITE.sub("", whole)
    colon = re.match(r"^[^:]{2,40}:\s+(.+)$", cut, re.DOTALL)
    if colon:
        return colon.group(1).strip(" \"'“”")
    searches = slot.words & {"query", "q", "keyword", "keywords", "search", "term", "topic", "关键词", "查询"}
    if searches:
        shorter = _ASK_TAIL_ZH.sub("", _TAIL.sub("", _ASK.sub("", _SEARCH_ZH.sub("", _SEARCH.sub("", cut)))))
    else:
        shorter = _INTO.sub("", _SAY.sub("", cut))
    return shorter.strip(" \n?.!;,\"'“”") or cut or whole
