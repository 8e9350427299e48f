"""What must not be read in an upstream's words: the credentials it was asked with, and whatever looks like some.

Pure. Knows how vendors' keys look and how libraries spell a value; does not know who is told.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus

from gateway.late import late

HIDDEN: Final = "***"
# Shorter ones are words (`none`) that would only make messages unreadable.
_SHORTEST: Final = 5
_LONGEST: Final = 4000

# Every repetition has a bound, so that no text takes longer than its length.
_KEYS: Final = late(
    r"""
      \b(?:sk|pk|rk|gsk|hf|xai|r8|pplx|nvapi|tgp|fw|csk|jina|ak|dsa?pi|pat)[-_](?=[\w*.-]{0,64}[\d*])[\w*.-]{6,256}
    | \bAIza[\w*-]{10,80}                                   # Google
    | \b(?:AKIA|ASIA)[A-Z0-9*]{8,40}                        # AWS
    | \b(?:gh[opsu]|github_pat|glpat|xox[abprs])[-_][\w*-]{10,256}
    | \bey[JA][\w*-]{6,2048}\.[\w*-]{2,4096}(?:\.[\w*-]{0,1024})?  # a signed token
    | [\w.-]{0,64}\*{3,128}[\w.*-]{0,128}                   # masked by the vendor, ends left to read
    | (?<=[\w]://)[^\s/@:]{1,128}:[^\s/@]{1,256}(?=@)         # a user and a password in an address
    """,
    re.VERBOSE,
)
# Behind such a word stands its value; one without a digit is a word of the sentence.
_NAMED: Final = late(
    r"""
    (\b(?:(?:x[-_])?(?:goog[-_])?api[-_\ ]?key|key|(?:access|auth|id|refresh|bearer|security|session)[-_\ ]?token|token
       |secret|password|passwd|credentials?|signature|authorization)
     (?:\ (?:id|provided|given|value|is|was|of)){0,2}
     ["'`]{0,2}\s{0,4}[:=]\s{0,4}["'`]{0,2}(?:(?:Bearer|Basic)\s{1,4})?
    |\b(?:Bearer|Basic)\s{1,4}
    |\b(?:api[-_\ ]?key|(?:access|auth)[-_\ ]?token)\ ["'`]{0,2})
    (?=[^\s"'`,;&<>(){}\[\]]{0,64}\d)[^\s"'`,;&<>(){}\[\]]{6,4096}
    """,
    re.VERBOSE | re.IGNORECASE,
)
# Long runs of letters and digits are keys where an upstream speaks of keys; elsewhere they are ids, which help.
_RUN: Final = late(r"(?<![\w-])(?!req_)(?=\w{0,64}\d)(?=\w{0,64}[A-Za-z])\w{24,512}(?![\w-])")


class Secrets:
    """Values that must not leave in a message, in any spelling a library might give them, and what looks like a key."""

    def __init__(self, values: Iterable[str]) -> None:
        found = {part for value in values for part in (value, *value.split()[1:]) if len(part) >= _SHORTEST}
        self._values = sorted({form for value in found for form in _spelled(value)}, key=len, reverse=True)

    def scrub(self, text: str, *, denied: bool = False) -> str:
        """The text without secrets, 4,000 characters of it at most; with `denied` it says what is wrong with a key."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        if len(text) > _LONGEST:
            # Behind its last whole word: half a key would not be recognised.
            text = text[:_LONGEST].rpartition(" ")[0] + " …"
        text = _NAMED.sub(rf"\1{HIDDEN}", _KEYS.sub(HIDDEN, text))
        return _RUN.sub(HIDDEN, text) if denied else text


def _spelled(value: str) -> Iterator[str]:
    yield value
    yield from (quote(value, safe=""), quote(value), quote_plus(value))
    yield re.sub("%[0-9A-F]{2}", lambda found: found.group().lower(), quote(value, safe=""))
    yield b64encode(value.encode()).decode().rstrip("=")
    yield json.dumps(value)[1:-1]
    yield value.replace("/", r"\/")
