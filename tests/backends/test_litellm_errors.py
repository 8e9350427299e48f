from __future__ import annotations

import inspect
from typing import Any

import pytest

from gateway.backends.litellm import _import_litellm
from gateway.backends.litellm_errors import translate
from gateway.backends.secrets import Secrets
from gateway.errors import (
    ContextTooLong,
    UpstreamBroken,
    UpstreamDenied,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)

SECRET = "sk-very-secret"

# Every exception that the installed litellm has, what it becomes, and with which status.
TABLE: dict[str, tuple[type[Exception], int | None]] = {
    "APIConnectionError": (UpstreamError, None),
    "APIError": (UpstreamUnavailable, 500),
    "APIResponseValidationError": (UpstreamBroken, None),
    "AuthenticationError": (UpstreamDenied, 401),
    "BadGatewayError": (UpstreamUnavailable, 502),
    "BadRequestError": (UpstreamRefused, 400),
    "BlockedPiiEntityError": (UpstreamRefused, 400),
    "BudgetExceededError": (UpstreamRefused, 400),
    "CallerCredentialAuthenticationError": (UpstreamDenied, 401),
    "CallerCredentialRateLimitError": (UpstreamUnavailable, 429),
    "ContentPolicyViolationError": (UpstreamRefused, 400),
    "ContextWindowExceededError": (ContextTooLong, None),
    "EndpointNotSupportedByModelError": (UpstreamRefused, 400),
    "GuardrailRaisedException": (UpstreamRefused, 400),
    "ImageFetchError": (UpstreamRefused, 400),
    "InternalServerError": (UpstreamUnavailable, 500),
    "InvalidRequestError": (UpstreamRefused, 400),
    "JSONSchemaValidationError": (UpstreamBroken, None),
    "LiteLLMUnknownProvider": (UpstreamError, None),
    "MalformedRequestFieldError": (UpstreamRefused, 400),
    "MidStreamFallbackError": (UpstreamUnavailable, 503),
    "MockException": (UpstreamUnavailable, 500),
    "ModelNotMappedError": (UpstreamBroken, None),
    "ModifyResponseException": (UpstreamBroken, None),
    "NotFoundError": (UpstreamRefused, 404),
    "OpenAIError": (UpstreamBroken, None),
    "PaymentRequiredError": (UpstreamDenied, 402),
    "PermissionDeniedError": (UpstreamDenied, 403),
    "RateLimitError": (UpstreamUnavailable, 429),
    "RejectedRequestError": (UpstreamRefused, 400),
    "SensitiveDataRouteException": (UpstreamBroken, None),
    "ServiceUnavailableError": (UpstreamUnavailable, 503),
    "Timeout": (UpstreamTimeout, None),
    "UnprocessableEntityError": (UpstreamRefused, 400),
    "UnsupportedEndpointError": (UpstreamRefused, 400),
    "UnsupportedParamsError": (UpstreamRefused, 400),
    "VectorStoreSearchError": (UpstreamRefused, 400),
}


def kinds() -> dict[str, type[Exception]]:
    library: Any = _import_litellm().exceptions
    found = {name: kind for name, kind in vars(library).items() if inspect.isclass(kind)}
    return {
        name: kind
        for name, kind in found.items()
        if issubclass(kind, Exception) and kind.__module__ == library.__name__ and not name.startswith("_")
    }


def made(kind: type[Exception]) -> Exception:
    """One of them, with words, a secret and an address in it."""
    library: Any = _import_litellm().exceptions
    status = 403 if kind is library.PermissionDeniedError else 422
    response = library.httpx.Response(status, request=library.httpx.Request("POST", "http://internal.example/v1"))
    known: dict[str, Any] = {
        "message": f"no such thing {SECRET} at http://internal.example/v1",
        "response": response,
        "status_code": 500,
        "request_data": {},
        "failures": [{"vector_store_id": "a", "error": "gone"}],
        "current_cost": 1.0,
        "max_budget": 1.0,
    }
    if kind is library.ModelNotMappedError:  # it has no signature of its own
        unmapped: Exception = kind(known["message"])
        return unmapped
    needed = [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and (parameter.default is parameter.empty or name == "message")
    ]
    error: Exception = kind(**{name: known.get(name, "x") for name in needed})
    return error


def test_every_exception_litellm_has_stands_in_the_table() -> None:
    assert kinds().keys() == TABLE.keys()


@pytest.mark.parametrize("name", TABLE)
def test_each_becomes_one_error_without_secrets(name: str) -> None:
    error = made(kinds()[name])
    expected, status = TABLE[name]
    translated = translate(error, model="asked", secrets=Secrets([SECRET]))
    assert type(translated) is expected
    assert getattr(translated, "status", None) == status
    for word in (SECRET, "internal.example", "litellm."):
        assert word not in translated.message
    assert "Traceback" not in translated.message
