"""A long result, condensed by a model against the question; the whole of it stays to be read on in.

Knows from which size on, and that a model that fails changes nothing. Does not know models (`turn/extract.py` asks one).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.errors import GatewayError
from gateway.tools.result import Shown, extract_content

# A model that takes longer than this is not waited for.
EXTRACT_S: Final = 30.0

Condense = Callable[[str], Awaitable[str]]


async def condensed(
    shown: Shown,
    condense: Condense,
    over_bytes: int,
    max_bytes: int,
    handle_of: Callable[[str], str | None],
) -> tuple[Shown, str | None]:
    """The result as the model sees it then, and what was decided: `condensed`, `failed`, or None where it is short.

    Args:
        shown: the result as it would be seen.
        condense: answers what matters in a text; raises `GatewayError`.
        over_bytes: of the whole result, from which on it is condensed.
        max_bytes: most bytes of the content.
        handle_of: by what handle a whole result can be read on.
    """
    whole = shown.whole if shown.whole is not None else shown.content
    size = len(whole.encode())
    if size <= over_bytes:
        return shown, None
    try:
        async with asyncio.timeout(EXTRACT_S):
            text = (await condense(whole)).strip()
    except (GatewayError, TimeoutError):
        return shown, "failed"
    if not text:
        return shown, "failed"
    handle = shown.handle or handle_of(whole)
    return Shown(extract_content(text, size, handle, max_bytes), whole, handle), "condensed"
