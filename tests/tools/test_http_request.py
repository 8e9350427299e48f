from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, unquote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.tools.providers.http_operation import Operation, Placed
from gateway.tools.providers.http_request import HttpRequest, build_request
from gateway.tools.spec import InvalidArguments

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def made(
    *placed: Placed, path: str = "/a/{p}/b", body: Any = None, method: str = "GET", **arguments: Any
) -> HttpRequest:
    operation = Operation("t", "T.", method, path, {}, placed, body, "here", writes=False)
    return build_request(operation, "http://h.test/v1/", arguments)


IN_PATH = Placed("p", "path", "p", "simple", explode=False)


@given(TEXT)
@example("../admin")
@example("a/b?x=1#y")
@example("%2e%2e")
@example("..;/admin")
@example("\\..\\admin")
def test_b032_a_path_value_never_leaves_its_segment(value: str) -> None:
    assume(value not in {".", ".."})
    url = made(IN_PATH, p=value).url
    path = url.raw_path
    assert path.split("/")[:3] == ["", "v1", "a"]
    assert path.split("/")[4:] == ["b"]
    assert unquote(path.split("/")[3]) == value
    assert (url.raw_query_string, url.raw_fragment, url.host) == ("", "", "h.test")


@pytest.mark.parametrize("value", ["..", ".", "", None, []])
def test_b032_a_path_value_that_would_step_elsewhere_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArguments):
        made(IN_PATH, p=value)


@pytest.mark.parametrize("values", [("", "."), (".", ".")])
def test_b032_values_that_make_dots_together_are_refused(values: tuple[str, str]) -> None:
    placed = [Placed(name, "path", name, "simple", explode=False) for name in "pq"]
    with pytest.raises(InvalidArguments):
        made(*placed, path="/a/{p}{q}/b", p=values[0], q=values[1])


@given(st.dictionaries(TEXT, TEXT, max_size=4))
def test_query_values_arrive_as_they_were(values: dict[str, str]) -> None:
    placed = [Placed(f"a{n}", "query", name) for n, name in enumerate(values)]
    url = made(*placed, path="/a", **{f"a{n}": value for n, value in enumerate(values.values())}).url
    assert parse_qsl(url.raw_query_string, keep_blank_values=True) == list(values.items())


@pytest.mark.parametrize(
    ("placed", "value", "query"),
    [
        (Placed("q", "query", "q"), ["a,b", 1], "q=a%2Cb&q=1"),
        (Placed("q", "query", "q", "form", explode=False), ["a", "b"], "q=a,b"),
        (Placed("q", "query", "q", "pipeDelimited", explode=False), ["a", "b"], "q=a%7Cb"),
        (Placed("q", "query", "f", "deepObject"), {"a": 1, "b": True}, "f[a]=1&f[b]=true"),
        (Placed("q", "query", "f"), {"a": 1}, "a=1"),
        (Placed("q", "query", "q", "json"), {"a": 1}, "q=%7B%22a%22%3A1%7D"),
        (Placed("q", "query", "q"), None, ""),
        (Placed("q", "query", "q"), 1.5, "q=1.5"),
    ],
)
def test_lists_and_objects_are_written_by_their_style(placed: Placed, value: Any, query: str) -> None:
    assert made(placed, path="/a", q=value).url.raw_query_string == query


def test_bodies_are_json_or_a_form_or_text() -> None:
    parts = (Placed("a", "body", "A"), Placed("b", "body", "b"))
    sent = made(*parts, path="/a", body="json", method="POST", a="ä", b=[1])
    assert json.loads(sent.body or b"") == {"A": "ä", "b": [1]}
    assert sent.headers["Content-Type"] == "application/json"
    assert made(*parts, path="/a", body="form", method="POST", a="x y", b=[1, 2]).body == b"A=x%20y&b=1&b=2"
    whole = Placed("body", "body", "")
    assert made(whole, path="/a", body="json", method="POST", body_=0).body is None
    assert (
        build_request(
            Operation("t", "T.", "POST", "/a", {}, (whole,), "text", "here", writes=True), "http://h", {"body": "ä"}
        ).body
        == "ä".encode()
    )


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "订单", "\0"])
def test_a_header_value_holds_no_second_header(value: str) -> None:
    placed = Placed("h", "header", "X-H", "simple", explode=False)
    with pytest.raises(InvalidArguments, match="`h`"):
        made(placed, path="/a", h=value)
    assert made(placed, path="/a", h="fine").headers == {"X-H": "fine"}
