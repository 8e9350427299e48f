from __future__ import annotations

import json
from typing import Any

import pytest

import gateway.errors
from gateway.api.errors import TABLE, describe, internal
from gateway.errors import (
    BodyTooLarge,
    ConfigError,
    ContextTooLong,
    GatewayError,
    HookFailed,
    InvalidRequest,
    NoSuchModel,
    NotAllowed,
    Problem,
    RateLimited,
    Unauthenticated,
    UnreadableBody,
    UpstreamBroken,
    UpstreamError,
    UpstreamHungUp,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)


def family(cls: type[GatewayError]) -> set[type[GatewayError]]:
    return {cls}.union(*(family(child) for child in cls.__subclasses__()))


def test_every_error_has_its_own_row() -> None:
    ours = {cls for cls in family(GatewayError) if cls.__module__.startswith("gateway.")}
    assert ours == set(TABLE)
    named = {
        value for value in vars(gateway.errors).values() if isinstance(value, type) and issubclass(value, GatewayError)
    }
    assert named == ours


def test_no_row_answers_422_and_only_a_defect_answers_500() -> None:
    assert {status for status, _, _ in TABLE.values() if status in (422, 500)} == {500}
    # A hook is part of the installation, so its failure is a defect here too.
    assert {cls for cls, (status, _, _) in TABLE.items() if status == 500} == {GatewayError, HookFailed}


ROWS: list[tuple[GatewayError, int, str, str | None]] = [
    (InvalidRequest("x"), 400, "invalid_request_error", None),
    (InvalidRequest("x", code="c"), 400, "invalid_request_error", "c"),
    (ContextTooLong("x"), 400, "invalid_request_error", "context_length_exceeded"),
    (BodyTooLarge("x"), 413, "invalid_request_error", "body_too_large"),
    (UnreadableBody("x"), 415, "invalid_request_error", "unsupported_encoding"),
    (Unauthenticated("x"), 401, "invalid_request_error", "invalid_api_key"),
    (NotAllowed("x"), 403, "invalid_request_error", "not_allowed"),
    (NoSuchModel("x"), 404, "invalid_request_error", "model_not_found"),
    (RateLimited("x"), 429, "rate_limit_error", "rate_limit_exceeded"),
    (UpstreamError("x"), 502, "upstream_error", "upstream_error"),
    (UpstreamBroken("x"), 502, "upstream_error", "upstream_error"),
    (UpstreamTimeout("x"), 504, "upstream_error", "upstream_timeout"),
    (UpstreamHungUp("x"), 502, "upstream_error", "upstream_error"),
    (UpstreamUnavailable("x", status=500), 502, "upstream_error", "upstream_error"),
    (UpstreamUnavailable("x", status=503), 503, "upstream_error", "upstream_unavailable"),
    (UpstreamUnavailable("x", status=429), 429, "rate_limit_error", "rate_limit_exceeded"),
    (UpstreamUnavailable("x", status=429, code="c", kind="k"), 429, "k", "c"),
    (UpstreamRefused("x", status=400, kind="k", code="c"), 400, "k", "c"),
    (UpstreamRefused("x", status=404), 404, "invalid_request_error", "not_found"),
    (UpstreamRefused("x", status=502), 502, "upstream_error", "upstream_error"),
]


@pytest.mark.parametrize(("error", "status", "kind", "code"), ROWS)
def test_error_is_answered_as_the_contract_says(error: GatewayError, status: int, kind: str, code: str | None) -> None:
    answer = describe(error)
    assert (answer.status, answer.type, answer.code) == (status, kind, code)
    body: dict[str, Any] = json.loads(answer.body)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert all(value is None or isinstance(value, str) for value in body["error"].values())


def test_param_is_the_client_s_field_or_the_upstream_s() -> None:
    assert describe(InvalidRequest("x", param="messages[0]")).param == "messages[0]"
    assert describe(UpstreamRefused("x", status=400, param="temperature")).param == "temperature"
    assert describe(ContextTooLong("x")).param == "messages"


def test_waits_are_whole_seconds_rounded_up_B009() -> None:
    for seconds, header in ((17.0, b"17"), (1.7, b"2"), (0.0, b"0")):
        error = UpstreamUnavailable("x", status=429, retry_after_s=seconds)
        assert (b"retry-after", header) in describe(error).headers
    assert describe(UpstreamUnavailable("x", status=429)).headers == ()


def test_sdks_are_told_when_a_retry_cannot_help() -> None:
    told = (b"x-should-retry", b"false")
    for error in (UpstreamRefused("x", status=502), UpstreamRefused("x", status=409), UpstreamRefused("x", status=408)):
        assert told in describe(error).headers
    for hopeful in (UpstreamBroken("x"), UpstreamUnavailable("x", status=503), InvalidRequest("x")):
        assert told not in describe(hopeful).headers


def test_every_problem_of_a_configuration_is_named() -> None:
    problems = (Problem("a.yaml", 1, "one"), Problem("b.yaml", 2, "two"))
    assert describe(ConfigError(problems)).message == "a.yaml:1: one\nb.yaml:2: two"


def test_defect_says_nothing_of_the_inside() -> None:
    assert json.loads(internal().body)["error"]["code"] == "internal_error"
