from __future__ import annotations

import json
import time
from base64 import b64encode
from email.utils import formatdate
from typing import Any

import pytest

from gateway.backends.secrets import Secrets
from gateway.backends.wire import error_from_frame, error_from_status, retry_after
from gateway.errors import (
    ContextTooLong,
    GatewayError,
    UpstreamBroken,
    UpstreamDenied,
    UpstreamError,
    UpstreamRefused,
    UpstreamUnavailable,
)

NONE = Secrets([])


def failed(status: int, body: Any = "", secrets: Secrets = NONE, **headers: str) -> GatewayError:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return error_from_status(status, named, raw, model="m", secrets=secrets)


def frame(secrets: Secrets = NONE, **said: Any) -> GatewayError:
    return error_from_frame(json.dumps({"error": said.pop("error", said)}).encode(), secrets=secrets)


def openai(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": None, "param": None, "code": None, **more}}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "17"}, 17),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "1700"}, 1.7),
        ({"retry-after-ms": "1700", "retry-after": "9"}, 1.7),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": " 4 "}, 4),
        ({"retry-after": "1e3"}, None),
        ({"retry-after": "1_000"}, None),
        ({"retry-after": "9" * 15}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "86400"}, 86400),
        ({"retry-after": "Mon, 01 Jan 0001 00:00:00 -0000"}, None),
        ({"retry-after": "Fri, 99 Foo 99999 99:99:99 GMT"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "Thu, 01 Jan 2150 00:00:00 GMT"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, None),
    ],
)
def test_waits_are_read_and_malformed_ones_ignored_B009_B016(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == (None if seconds is None else pytest.approx(seconds))


def test_wait_until_a_date_B009() -> None:
    seconds = retry_after({"retry-after": formatdate(time.time() + 100, usegmt=True)})
    assert seconds is not None
    assert 95 < seconds < 101


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (307, UpstreamBroken),
        (400, UpstreamRefused),
        (401, UpstreamDenied),
        (402, UpstreamDenied),
        (403, UpstreamDenied),
        (404, UpstreamRefused),
        (408, UpstreamUnavailable),
        (422, UpstreamRefused),
        (429, UpstreamUnavailable),
        (500, UpstreamUnavailable),
        (503, UpstreamUnavailable),
        (529, UpstreamUnavailable),
    ],
)
def test_status_says_what_it_means_and_whether_a_retry_helps(status: int, kind: type[UpstreamError]) -> None:
    error = failed(status, openai("words"))
    assert type(error) is kind
    assert error.retryable is not issubclass(kind, UpstreamRefused)


def test_upstream_s_words_and_fields_are_kept() -> None:
    error = failed(400, openai("invalid temperature", type="t", param="temperature", code="c"))
    assert isinstance(error, UpstreamRefused)
    assert (error.message, error.status, error.kind, error.param, error.code) == (
        "invalid temperature",
        400,
        "t",
        "temperature",
        "c",
    )
    assert failed(429, openai("slow down"), retry_after="17").retry_after_s == 17


LOOKING_LIKE_KEYS = [
    "Incorrect API key provided: sk-proj-abc123XYZ. See https://platform.example/keys.",
    "Incorrect API key provided: sk-ab1*****************************wXyZ",
    "Authentication Fails, Your api key: ****wXyZ is invalid",
    "API key not valid: AIzaSyA1234567890abcXYZ-_wXyZ",
    "The security token AKIAABCXYZ0123456789 included in the request is invalid",
    "invalid authorization: Bearer abcXYZ.123",
    "invalid header Bearer abcXYZ-123",
    '{"api_key": "abcXYZ123"}',
    "no access for token=abcXYZ123&model=1",
    "The key 0a1b2c3d4e5f60718293abcXYZ445566 has been revoked",
    "cannot connect to https://me:abcXYZ@host/v1",
    "bad token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhYmNYWVoifQ.abcXYZ",
]


@pytest.mark.parametrize("words", LOOKING_LIKE_KEYS)
def test_refused_credentials_are_told_in_the_upstream_s_words_but_for_what_looks_like_a_key(words: str) -> None:
    for status in (401, 403, 402):
        error = failed(status, openai(words))
        assert isinstance(error, UpstreamDenied)
        assert error.message.startswith("The upstream refused the gateway's credentials for `m`: ")
        assert error.status == status
        assert "***" in error.message
        for part in ("abcXYZ", "wXyZ", "ABCXYZ", "sk-ab"):
            assert part not in error.message
        assert words[:4] in error.message, "the words stay"


@pytest.mark.parametrize(
    "words",
    [
        "The model `Qwen/Qwen2.5-VL-72B-Instruct-AWQ` does not exist",
        "no model ft:gpt-4o-mini-2024-07-18:org::8abCdEfG",
        "Missing key: messages[0].content; unknown key 'response_format2'",
        "max_tokens: 4096 is above the limit of tokens: 2048",
        "request req_011CSHoEeqs5C35K2UUqR7Fy failed; trace 0123456789abcdef0123456789abcdef",
        "a key must be a string, a token is not",
    ],
)
def test_words_that_only_resemble_a_key_stay(words: str) -> None:
    assert failed(400, openai(words)).message == words


def test_what_a_page_says_is_trimmed_to_its_text() -> None:
    page = (
        "<!DOCTYPE html><html><head><title>502 Bad\n Gateway</title><style>b{}</style></head><body>nginx</body></html>"
    )
    assert failed(502, page).message == "The upstream of `m` answered 502: 502 Bad Gateway"
    bare = "<html><script>var a='<b>';</script><!-- no --><p>Sorry,\n<b>blocked</b></html>"
    assert failed(403, bare).message.endswith("for `m`: The upstream of `m` answered 403: Sorry, blocked")
    assert len(failed(500, "<p>" + "long " * 9000).message) < 600
    assert len(failed(400, openai("long " * 9000)).message) < 4100


def test_secret_at_the_edge_of_what_is_shown_is_not_shown_in_part() -> None:
    for size in range(480, 500):
        assert "TEST" not in failed(500, "x" * size + " TEST-SECRET-123 y", Secrets(["TEST-SECRET-123"])).message


def test_limit_that_time_does_not_lift_is_not_tried_again() -> None:
    spent = failed(429, openai("You exceeded your current quota", code="insufficient_quota"))
    assert (spent.retryable, failed(429, openai("slow down")).retryable) == (False, True)


@pytest.mark.parametrize(
    "body",
    ["", "<html><h1>404</h1></html>", "<", "{", "[]", '{"error":null}', '{"error":{}}'],
)
def test_body_without_words_names_the_model_and_the_status(body: str) -> None:
    error = failed(404, body)
    assert error.message == "The upstream of `m` answered 404."


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("404 page not found", "The upstream of `m` answered 404: 404 page not found"),
        ({"error": "model not found"}, "model not found"),
        ({"message": "no", "code": 404}, "no"),
        ([{"error": {"message": "from a list"}}], "from a list"),
        ({"detail": "x"}, "x"),
        ({"errors": [{"message": "first"}]}, "first"),
        ({"errors": ["plain"]}, "plain"),
        ({"status": 404, "error": "Not Found", "message": "no such model"}, "Not Found: no such model"),
        ({"error": "no such model", "message": "no such model"}, "no such model"),
        ({"error": {"code": 404}, "message": "outside"}, "outside"),
        ({"error": {"message": "Provider said no", "metadata": {"raw": "bad image"}}}, "Provider said no: bad image"),
        ({"message": {"detail": [{"loc": ["body", "n"], "msg": "too many"}]}}, "n: too many"),
        ({"detail": {"message": "inside"}}, "inside"),
        ({"detail": [{"loc": 5, "msg": "odd"}]}, "odd"),
        ({"Message": "as AWS writes it"}, "as AWS writes it"),
        ({"fault": {"a": 1}}, 'The upstream of `m` answered 404: {"fault": {"a": 1}}'),
    ],
)
def test_words_are_found_where_servers_put_them(body: Any, message: str) -> None:
    assert failed(404, body).message == message


def test_list_of_faults_is_told_whole_and_names_the_first_field() -> None:
    faults = [{"loc": ["body", "temperature"], "msg": "too high"}, {"loc": ["body", "messages", 0], "msg": "no"}]
    error = failed(422, {"detail": faults})
    assert isinstance(error, UpstreamRefused)
    told = (error.message, error.param, error.status)
    assert told == ("temperature: too high; messages.0: no", "temperature", 400)


def test_code_that_only_repeats_the_status_is_no_code() -> None:
    error = failed(404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}})
    assert isinstance(error, UpstreamRefused)
    assert (error.message, error.kind, error.code) == ("File Not Found", "not_found_error", None)


TOO_LONG = [
    openai("x", code="context_length_exceeded"),
    openai("x", type="exceed_context_size_error"),
    openai("Input tokens exceed the configured limit of 100000 tokens. Your messages resulted in 123456 tokens."),
    openai("The input is longer than the model's context length"),
    openai("prompt is too long: 210000 tokens > 200000 maximum"),
    openai("The prompt is too large for the model"),
    openai("This model's maximum context length is 8192 tokens."),
    openai("the request exceeds the available context size"),
    openai("prompt token count of 130000 exceeds the limit of 128000"),
    openai("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    openai("This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    openai("Range of input length should be [1, 30720]"),
    openai("Prompt exceeds max length"),
    openai("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease one of them"),
    openai("The decoder prompt (length 40000) is longer than the maximum model length of 32768."),
    openai("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 and 20"),
    openai("Your request exceeded model token limit: 8192"),
    openai("Request body too large for gpt-4o model. Max size: 8000 tokens.", code="tokens_limit_reached"),
    openai("the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model"),
    openai("Your prompt of 9000 tokens is larger than what this model takes"),
    openai("Prompt 超长"),
]


@pytest.mark.parametrize("body", TOO_LONG)
def test_prompt_that_does_not_fit_is_recognised_in_many_words_B012(body: Any) -> None:
    for status in (400, 413, 500):
        assert type(failed(status, body)) is ContextTooLong


@pytest.mark.parametrize(
    "body",
    [
        openai("invalid temperature"),
        openai("temperature 3 exceeds the limit of 2"),
        openai("Invalid 'tools[0].function.description': string too long.", code="string_above_max_length"),
        openai("max_tokens is too large: 100000. This model supports at most 4096 completion tokens."),
        openai("Invalid 'messages[0].name': string too long. Expected a string with maximum length 64."),
        openai("The image in the input exceeds the maximum size of 5 MB"),
    ],
)
def test_unrelated_refusals_are_not_taken_for_it_B012(body: Any) -> None:
    assert type(failed(400, body)) is UpstreamRefused


def test_overload_is_not_taken_for_it_either() -> None:
    assert type(failed(429, openai("too many tokens per minute"))) is UpstreamUnavailable


def test_error_frames_are_errors_of_a_stream() -> None:
    error = frame(message="overloaded", type="server_error", code="busy")
    assert isinstance(error, UpstreamBroken)
    assert (error.message, error.kind, error.code, error.status) == ("overloaded", "server_error", "busy", None)
    late = frame(message="overloaded", type="server_error", code=503)
    assert isinstance(late, UpstreamUnavailable)
    assert (late.message, late.kind, late.code, late.status) == ("overloaded", "server_error", None, 503)
    assert frame(error="words").message == "words"
    assert type(frame(message="maximum context length is 8")) is ContextTooLong
    empty: Any
    for empty in ({}, "", [], True, 5, {"message": None}, {"message": {}}):
        assert type(frame(error=empty)) is UpstreamBroken
        assert frame(error=empty).message


@pytest.mark.parametrize(
    ("said", "kind", "status"),
    [
        ({"code": 422}, UpstreamRefused, 400),
        ({"code": "429"}, UpstreamUnavailable, 429),
        ({"code": 401}, UpstreamDenied, 401),
        ({"type": "invalid_request_error"}, UpstreamRefused, 400),
        ({"type": "rate_limit_error", "code": "x"}, UpstreamUnavailable, 429),
        ({"code": "rate_limit_exceeded"}, UpstreamUnavailable, 429),
        ({"type": "overloaded_error"}, UpstreamUnavailable, 503),
        ({"type": "authentication_error"}, UpstreamDenied, 401),
        ({"code": 200}, UpstreamBroken, None),
        ({"code": 7.5}, UpstreamBroken, None),
        ({"type": "server_error"}, UpstreamBroken, None),
    ],
)
def test_error_frame_without_a_status_is_judged_by_its_own_words(
    said: dict[str, Any], kind: type[UpstreamError], status: int | None
) -> None:
    error = frame(message="words", **said)
    assert type(error) is kind
    assert (error.status, "words" in error.message) == (status, True)


def test_secrets_leave_in_no_spelling_B013() -> None:
    secret = "TEST/SECRET+123"
    secrets = Secrets([secret, "none", ""])
    spellings = [secret, "TEST%2FSECRET%2B123", b64encode(secret.encode()).decode()]
    for spelling in spellings:
        text = secrets.scrub(f"key {spelling} is none of yours")
        assert text.startswith("key ***")
        assert text.endswith("is none of yours")
        assert spelling not in failed(400, openai(f"bad key {spelling}"), secrets).message
        assert spelling not in frame(secrets, message=f"bad {spelling}").message
        other = failed(400, openai("bad", code=spelling, type=spelling, param=spelling), secrets)
        assert isinstance(other, UpstreamRefused)
        assert spelling not in f"{other.code} {other.kind} {other.param}"
        assert spelling not in failed(400, f"plain {spelling}", secrets).message
