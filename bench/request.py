"""The request that every subject gets: 2 KB, model `auto`, and a number in the prompt so that no two are alike.

A cache of decisions therefore never helps, as it would not with real prompts; where it shall, prompts come again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

KEY: Final = "sk-bench-0123456789abcdef"
PROMPT_BYTES: Final = 1800

_UNIT: Final = "Please compare the two plans below and say which one is cheaper for a team of nine. "
_MARK: Final = "00000000"


def requests(
    url: str,
    *,
    stream: bool,
    word: str,
    model: str = "auto",
    headers: Mapping[str, str] | None = None,
    different: int | None = None,
    prompt_bytes: int = PROMPT_BYTES,
    more: Mapping[str, object] | None = None,
) -> Callable[[], bytes]:
    """What makes the bytes of the next request to `url`.

    Args:
        url: the subject's base URL.
        stream: whether the answer is to be streamed.
        word: stands in the prompt, for a rule to find.
        model: whom it asks for.
        headers: further ones.
        different: how many prompts there are before they come again; by default no two are alike.
        prompt_bytes: length of the prompt.
        more: further fields of the request.
    """
    start = f"{word} {_MARK} "
    text = start + (_UNIT * (prompt_bytes // len(_UNIT) + 1))[: prompt_bytes - len(start)]
    fields: dict[str, object] = {"model": model, "temperature": 0.2, "max_tokens": 512, **(more or {})}
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    messages = [{"role": "system", "content": "You are a careful assistant."}, {"role": "user", "content": text}]
    body = json.dumps(fields | {"messages": messages}, separators=(",", ":"))
    parts = urlsplit(url)
    head = (
        f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n"
    ) + "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    before, after = (f"{head}\r\n{body}").encode().split(_MARK.encode())
    numbers = itertools.count() if different is None else itertools.cycle(range(different))
    return lambda: b"%b%08d%b" % (before, next(numbers), after)
