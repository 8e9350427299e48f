"""Cuts text into what it is about: English stems and Chinese phrases, mapped onto shared concepts.

Pure. Knows normalisation, language and concepts; does not know tools or values in the text (`values.py`).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final, Literal

from gateway.backends.demo.lexicon import CONCEPTS, STOP_WORDS

Language = Literal["en", "zh"]

HAN: Final = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HAN_RUN: Final = re.compile(f"[{HAN}]+")
_KANA: Final = re.compile("[\u3040-\u30ff]")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD: Final = re.compile(r"[a-z]+(?:'[a-z]+)?")
_FULL_STOPS: Final = str.maketrans(
    {"，": ", ", "、": " 、 ", "；": "; ", "。": ". ", "？": "? ", "！": "! ", "：": ": "}
)

_PHRASES: Final = {phrase: concept for concept, (_, zh) in CONCEPTS.items() for phrase in zh.split()}
_LONGEST_PHRASE: Final = max(map(len, _PHRASES))


def normalise(text: str) -> str:
    """Full-width forms made plain. A full-width comma gains a space, so that it never joins two numbers into one."""
    return unicodedata.normalize("NFKC", text.translate(_FULL_STOPS))


def language_of(text: str) -> Language:
    """Chinese if there is any Chinese in it, else English. Japanese counts as English: nothing here speaks it."""
    return "zh" if _HAN_RUN.search(text) and not _KANA.search(text) else "en"


def stem(word: str) -> str:
    """An English word without its endings: near enough for "orders" and "order" to meet."""
    word = word.removesuffix("'s")
    for ending, replacement in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("es", "e"), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: len(word) - len(ending)] + replacement
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeioulsz":
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 4 else word


_STEMS: Final = {stem(word): concept for concept, (en, _) in CONCEPTS.items() for word in en.split()}


@functools.lru_cache(maxsize=4096)
def concepts(text: str) -> frozenset[str]:
    """What a text is about. `name_parts`, `camelCase` and sentences alike; words without meaning are left out."""
    text = _CAMEL.sub(" ", unicodedata.normalize("NFKC", text)).lower().replace("_", " ").replace("-", " ")
    found: set[str] = set()
    for match in _WORD.finditer(text):
        word = match.group()
        if word in STOP_WORDS:
            # "where" and "much" carry meaning and are not among them.
            continue
        root = stem(word)
        concept = _STEMS.get(root, root)
        if concept not in STOP_WORDS:
            found.add(concept)
    for run in _HAN_RUN.findall(text):
        found |= _chinese(run)
    return frozenset(found)


def _chinese(run: str) -> set[str]:
    found: set[str] = set()
    for start in range(len(run)):
        for size in range(min(_LONGEST_PHRASE, len(run) - start), 0, -1):
            concept = _PHRASES.get(run[start : start + size])
            if concept is not None:
                found.add(concept)
                break
        if start + 1 < len(run):
            found.add(run[start : start + 2])
    return found
