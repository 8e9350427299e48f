"""The request that every subject gets: 2 KB, model `auto`, and a number in the prompt so that no two are alike.

A cache of decisions therefore never helps, as it would not with real prompts.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

KEY: Final = "sk-bench-0123456789abcdef"
PROMPT_BYTES: Final = 1800

_UNIT: Final = "Please compare the two plans below and say which one is cheaper for a team of nine. "
_MARK: Final = "00000000"


def requests(url: str, *, stream: bool, word: str) -> Callable[[], bytes]:
    """What makes the bytes of the next request to `url`; `word` stands in the prompt, for a rule to find."""
    start = f"{word} {_MARK} "
    text = start + (_UNIT * (PROMPT_BYTES // len(_UNIT) + 1))[: PROMPT_BYTES - len(start)]
    fields = {"model": "auto", "temperature": 0.2, "max_tokens": 512}
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    messages = [{"role": "system", "content": "You are a careful assistant."}, {"role": "user", "content": text}]
    body = json.dumps(fields | {"messages": messages}, separators=(",", ":"))
    parts = urlsplit(url)
    head = (
        f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    before, after = (head + body).encode().split(_MARK.encode())
    numbers = itertools.count()
    return lambda: b"%b%08d%b" % (before, next(numbers), after)
