"""Texts without secrets."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.models import GatewayConfig
from gateway.observe.redaction import HIDDEN, Redactor, secrets_of


@given(
    st.text(min_size=6, max_size=40, alphabet=st.characters(codec="utf-8")), st.text(max_size=10), st.text(max_size=10)
)
def test_no_form_of_a_secret_is_left(secret: str, before: str, after: str) -> None:
    redactor = Redactor([secret])
    forms = [secret, quote(secret, safe=""), quote_plus(secret), base64.b64encode(secret.encode()).decode().rstrip("=")]
    for form in forms:
        assert redactor.clean(f"{form}") == "[secret]"
        assert "[secret]" in redactor.clean(f"{before}{form}{after}")


def test_the_longer_of_two_secrets_goes_as_a_whole() -> None:
    assert Redactor(["abcdef", "abcdefghij"]).clean("x abcdefghij y") == "x [secret] y"


@pytest.mark.parametrize("word", ["none", "test", ""])
def test_short_words_are_no_secrets(word: str) -> None:
    assert Redactor([word]).clean("none of the tests") == "none of the tests"


def test_other_secrets_can_take_their_place() -> None:
    redactor = Redactor(["first-secret"])
    redactor.update(["second-secret"])
    assert redactor.clean("first-secret second-secret") == "first-secret [secret]"


def test_every_secret_of_a_configuration_is_known() -> None:
    config = GatewayConfig.model_validate(
        {
            "backends": {
                "a": {
                    "provider": "openai",
                    "model": "m",
                    "api_key": "secret-1",
                    "headers": {"x-key": "secret-2", "authorization": "Bearer secret-3"},
                    "base_url": "https://user:secret-4@host/v1?token=secret-5&n",
                }
            },
            "models": {"m": {"backends": ["a"]}},
            "router": {"default": "m"},
            "keys": {"admin_key": "secret-6", "static": {"app": {"key": "secret-7"}}},
        }
    )
    assert {f"secret-{number}" for number in range(1, 8)} <= set(secrets_of(config))


@pytest.mark.parametrize("count", [1, 2, 14, 15, 16, 60, 300])
def test_each_of_many_secrets_is_found_in_json(count: int) -> None:
    secrets = [f'key-"{number}"-{number * 7919:08x}' for number in range(count)]
    redactor = Redactor(secrets)
    clean = json.dumps({"message": "nothing of it \1\1\1\1\1\1\1\1"}).encode()
    assert redactor.clean_json(clean) is clean
    for secret in secrets:
        for said in (f"no such key: {secret}, {secrets[0]}", secret, f"{secret}{secrets[0]}"):
            cleaned = json.loads(redactor.clean_json(json.dumps({"message": said}).encode()))
            assert cleaned == {"message": said.replace(secret, HIDDEN).replace(secrets[0], HIDDEN)}


@given(
    st.lists(st.text(min_size=6, max_size=12, alphabet="abc-1"), min_size=1, max_size=40),
    st.text(alphabet="abc-1"),
    st.data(),
)
def test_a_json_text_with_a_secret_in_it_is_never_left_as_it_is(
    secrets: list[str], around: str, data: st.DataObject
) -> None:
    secret, redactor = data.draw(st.sampled_from(secrets)), Redactor(secrets)
    cleaned = redactor.clean_json(json.dumps(f"{around}{secret}{around}").encode())
    assert not any(secret in json.loads(cleaned) for secret in secrets)
