from __future__ import annotations

import json
import time
from base64 import b64encode
from email.utils import formatdate
from typing import Any

import pytest

from gateway.backends.wire import Secrets, error_from_frame, error_from_status, retry_after
from gateway.chat.chunk import ChunkError
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
        (403, UpstreamDenied),
        (404, UpstreamRefused),
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


def test_refused_credentials_are_the_gateway_s_fault_and_say_nothing_of_the_key() -> None:
    error = failed(401, openai("Incorrect API key provided: sk-abc"))
    assert isinstance(error, UpstreamDenied)
    assert (error.status, "sk-abc" in error.message, "`m`" in error.message) == (401, False, True)


@pytest.mark.parametrize(
    "body",
    ["", "<html><h1>404</h1></html>", "{", "[]", '{"error":null}', '{"error":{}}'],
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
]


@pytest.mark.parametrize("body", TOO_LONG)
def test_prompt_that_does_not_fit_is_recognised_in_many_words_B012(body: Any) -> None:
    for status in (400, 413):
        assert type(failed(status, body)) is ContextTooLong


@pytest.mark.parametrize(
    "body",
    [
        openai("invalid temperature"),
        openai("temperature 3 exceeds the limit of 2"),
        openai("Invalid 'tools[0].function.description': string too long.", code="string_above_max_length"),
    ],
)
def test_unrelated_refusals_are_not_taken_for_it_B012(body: Any) -> None:
    assert type(failed(400, body)) is UpstreamRefused


def test_overload_is_not_taken_for_it_either() -> None:
    assert type(failed(429, openai("too many tokens per minute"))) is UpstreamUnavailable


def test_error_frames_are_errors_of_a_stream() -> None:
    error = error_from_frame(ChunkError("overloaded", "server_error", "busy"), secrets=NONE)
    assert isinstance(error, UpstreamBroken)
    assert (error.message, error.kind, error.code, error.status) == ("overloaded", "server_error", "busy", None)
    late = error_from_frame(ChunkError("overloaded", "server_error", 503), secrets=NONE)
    assert isinstance(late, UpstreamUnavailable)
    assert (late.message, late.kind, late.code, late.status) == ("overloaded", "server_error", None, 503)
    assert type(error_from_frame(ChunkError("no", code=422), secrets=NONE)) is UpstreamRefused
    assert type(error_from_frame(ChunkError("no", code=401), secrets=NONE)) is UpstreamBroken
    assert error_from_frame("words", secrets=NONE).message == "words"
    assert type(error_from_frame(ChunkError("maximum context length is 8"), secrets=NONE)) is ContextTooLong
    assert error_from_frame(ChunkError(), secrets=NONE).message


def test_secrets_leave_in_no_spelling_B013() -> None:
    secret = "TEST/SECRET+123"
    secrets = Secrets([secret, "none", ""])
    spellings = [secret, "TEST%2FSECRET%2B123", b64encode(secret.encode()).decode()]
    for spelling in spellings:
        text = secrets.scrub(f"key {spelling} is none of yours")
        assert text.startswith("key ***")
        assert text.endswith("is none of yours")
        assert spelling not in failed(400, openai(f"bad key {spelling}"), secrets).message
        assert spelling not in error_from_frame(ChunkError(f"bad {spelling}"), secrets=secrets).message
        assert spelling not in failed(400, f"plain {spelling}", secrets).message
