"""Cuts a sentence into the tokens of arithmetic: numbers, signs, and the words for them in English and Chinese.

Pure. What the tokens mean together is read in `expressions.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gateway.backends.demo.numerals import ENGLISH, HAN, numeral


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its kind (a group of the pattern below), its text, and where it stands."""

    kind: str
    text: str
    start: int
    end: int


# Order matters: longer words before their parts.
_PATTERN: Final = re.compile(
    r"""
    (?P<num>(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?=x\s*\d)
          | (?<=\dx)\d+(?:\.\d+)?(?![A-Za-z0-9_])
          | (?<![A-Za-z0-9_.])(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?![A-Za-z0-9_]) )
  | (?P<word>NUMERAL)
  | (?P<wan>[万亿])
  | (?P<pct>%|percent\b|per\ cent\b)
  | (?P<pctof>百分之)
  | (?P<power>\*\*|\^|(?:raised\ )?to\ the\ power\ (?:of\b)?)
  | (?P<squared>squared\b|的平方(?!根)|平方(?![根米公]))
  | (?P<cubed>cubed\b|的立方(?!根))
  | (?P<times>\*|×|·|multiplied\ by\b|times\b|乘以|乘上|乘|(?<=[\d\s])x(?=\s*\d))
  | (?P<over>/|÷|divided\ by\b|over\b|除以)
  | (?P<plus>\+|plus\b|added\ to\b|加上|加)
  | (?P<minus>-|−|–|minus\b|less\b|减去|减)
  | (?P<sumof>(?:the\ )?(?:sum|total)\ of\b|add(?:ing)?\ (?:up\ |together\ )?)
  | (?P<productof>(?:the\ )?product\ of\b)
  | (?P<averageof>(?:the\ )?(?:average|mean)\ of\b)
  | (?P<differenceof>(?:the\ )?difference\ (?:between|of)\b)
  | (?P<subtract>subtract\b)
  | (?P<multiply>multiply\b)
  | (?P<divide>divide\b)
  | (?P<halfof>half\ of\b)
  | (?P<doubleof>(?:twice|double)\b(?:\ of\b)?)
  | (?P<squareof>(?:the\ )?square\ of\b)
  | (?P<sumend>(?:的|之)(?:总)?和|相加|加起来|的总和)
  | (?P<productend>(?:的|之)(?:乘)?积|相乘)
  | (?P<differenceend>(?:的|之)差|相减)
  | (?P<averageend>的平均(?:数|值)?)
  | (?P<powerend>次方|次幂)
  | (?P<tip>(?:tip|tax|vat|discount|commission|interest)\b)
  | (?P<of>of\b|on\b)
  | (?P<off>off\b)
  | (?P<from>from\b)
  | (?P<by>by\b|to\b)
  | (?P<and>and\b|和|与|跟|、|,|&)
  | (?P<de>的)
  | (?P<open>\()
  | (?P<close>\))
  | (?P<space>[\s$€£¥]+)
  | (?P<other>.)
    """.replace("NUMERAL", f"{ENGLISH}|{HAN}"),
    re.VERBOSE | re.IGNORECASE,
)


def tokenise(text: str) -> list[Token]:
    """The tokens in order; white space and currency signs are left out, any other character is a token `other`.

    Numbers in words are tokens `num` like others, with their digits as text.
    """
    return [_token(match) for match in _PATTERN.finditer(text) if match.lastgroup != "space"]


def _token(match: re.Match[str]) -> Token:
    kind, text = str(match.lastgroup), match.group()
    if kind == "word":
        digits = numeral(text)
        kind, text = ("other", text) if digits is None else ("num", digits)
    return Token(kind, text, match.start(), match.end())
