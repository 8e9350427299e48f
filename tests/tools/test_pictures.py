from __future__ import annotations

from typing import Any

from gateway.tools.pictures import Picture, without_pictures

PNG = Picture("image/png", "AAAA")


def test_pictures_are_taken_out_and_described_in_their_places() -> None:
    value, urls = without_pictures({"result": {"n": 1}, "parts": [PNG, {"type": "audio"}]}, shown=True)
    assert urls == ("data:image/png;base64,AAAA",)
    assert value["result"] == {"n": 1}
    assert (
        value["parts"][0]["note"] == "the tool returned this image (3 bytes); it is image 1 of this result, shown below"
    )
    assert value["parts"][1] == {"type": "audio"}


def test_to_who_takes_no_images_they_are_described() -> None:
    value, urls = without_pictures(PNG, shown=False)
    assert (urls, value["type"], "only its description" in value["note"]) == ((), "image", True)


def test_no_more_and_no_larger_ones_are_shown_than_models_take() -> None:
    many: list[Any] = [PNG] * 6
    value, urls = without_pictures(many, shown=True)
    assert (len(urls), "only its description" in value[4]["note"]) == (4, True)
    large = Picture("image/png", "A" * 3_000_000)
    assert len(without_pictures([large, large, PNG], shown=True)[1]) == 2
    assert without_pictures(Picture("image/tiff", "AAAA"), shown=True)[1] == ()


def test_other_results_are_the_same_object() -> None:
    for value in ({"parts": [1]}, [1, 2], "text", None, [{"a": PNG}]):
        assert without_pictures(value, shown=True)[0] is value
