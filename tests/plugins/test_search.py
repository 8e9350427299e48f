from __future__ import annotations

from pathlib import Path

import pytest

from plugins import search
from plugins.search import read_notes, terms
from tests.tools.workshop import open_workshop

NOTES = Path(search.__file__).parent / "notes"


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("how do I return an article?", "Returns and refunds"),
        ("退货要多久退款", "退货与退款"),
        ("warranty of keyboards", "Warranty"),
        ("保修几个月", "保修政策"),
        ("shipping costs", "Shipping times"),
        ("add a route", "Adding a route to the gateway"),
    ],
)
async def test_the_note_that_answers_comes_first(query: str, title: str) -> None:
    async with open_workshop(places=[NOTES.parent / "search.py"]) as workshop:
        found = (await workshop.result("search_notes", query=query))["results"]
    assert found[0]["title"] == title
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)


async def test_the_limit_holds_and_is_bounded() -> None:
    async with open_workshop(places=[NOTES.parent / "search.py"]) as workshop:
        assert (
            len((await workshop.result("search_notes", query="order 退货 gateway shipping", limit=2))["results"]) == 2
        )
        assert "maximum" in str((await workshop.call("search_notes", {"query": "a", "limit": 11})).error)
        assert (await workshop.result("search_notes", query="zzz qqq"))["results"] == []


def test_a_rare_word_says_more_than_a_frequent_one(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One\ncommon common common")
    (tmp_path / "b.md").write_text("# Two\ncommon rare")
    (tmp_path / "c.md").write_text("# Three\ncommon other")
    assert next(note.title for _, note in read_notes(tmp_path).search("common rare", 3)) == "Two"
    assert read_notes(tmp_path / "missing").search("common", 3) == []


def test_terms_fold_width_case_and_plurals_and_pair_chinese_characters() -> None:
    assert terms("Ｏrders 订单号") == terms("order 订单号")
    assert set(terms("订单号")) == {"订单", "单号"}
    assert set(terms("the address of a class")) == {"address", "class"}
