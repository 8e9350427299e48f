"""Whether a text only makes sense after the one before it: "and the week before?", 「那上周呢？」.

Knows how such texts begin or end in a few languages. Does not know routes; a short text that stands for itself ("thanks",
"tell me a joke") is none of them.
"""

from __future__ import annotations

import re

_MAX_CHARS = 60
_FOLLOWS = re.compile(
    r"^(?:and|but|or|also|then|what about|how about|what if|same (?:for|with|thing)|the same|not that"
    r"|instead|which one|why(?: not)?\W*$|how so|und|aber|et|mais|y|pero|e|ma|а|и)\b"
    r"|^(?:那|还有|那么|或者|换成|改成|只要|为什么|では|じゃあ|それ)"
    r"|^why(?: not)?\W*$|呢[?？。!！]*$|^(?:그럼|그리고)",
)


def follows(text: str) -> bool:
    """Whether a normalised text leans on the turn before it."""
    return len(text) <= _MAX_CHARS and _FOLLOWS.search(text) is not None
