from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.chat.codecs.chat_completions import decode_request
from gateway.chat.parameters import renamed, with_defaults


def raw(**fields: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


def plain(fields: Any) -> dict[str, Any]:
    return {name: msgspec.json.decode(value) for name, value in fields.items()}


def test_nothing_changes_where_nothing_is_configured() -> None:
    fields = raw(max_completion_tokens=5, x={"a": None})
    assert renamed(fields, (), {}) is fields
    assert with_defaults(fields, {}) is fields


def test_client_s_value_goes_before_the_operator_s_under_either_name_of_a_limit() -> None:
    assert plain(with_defaults(raw(temperature=1), raw(temperature=0, seed=7))) == {"temperature": 1, "seed": 7}
    for mine, yours in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        assert plain(with_defaults(raw(**{mine: 5}), raw(**{yours: 100}))) == {mine: 5}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 6}, {"max_tokens": 6}),
        ({"user": "u", "seed": 1}, {"seed": 1}),
        ({}, {}),
    ],
)
def test_fields_are_dropped_and_renamed_as_configured(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    assert plain(renamed(raw(**fields), {"user"}, {"max_completion_tokens": "max_tokens"})) == sent


def test_name_mapped_to_itself_stays() -> None:
    assert plain(renamed(raw(a=1), (), {"a": "a"})) == {"a": 1}


def test_options_of_a_stream_travel_but_for_usage_which_is_the_gateway_s() -> None:
    def read(**more: Any) -> Any:
        asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
        return decode_request(msgspec.json.encode(asked))

    both = read(stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert both.include_usage
    assert plain(both.fields) == {"stream_options": {"include_obfuscation": False}}
    for options in ({"include_usage": True}, {"include_usage": False}, {}, None):
        assert plain(read(stream=True, stream_options=options).fields) == {}
