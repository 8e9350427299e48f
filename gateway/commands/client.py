"""A running gateway, asked over HTTP by commands."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import aiohttp

from gateway.settings import Settings

_TIMEOUT_S = 30.0


class Unreachable(Exception):
    """The gateway did not answer, or not as a gateway does."""


class Refused(Exception):
    """The gateway said no."""


def over_http(settings: Settings) -> bool:
    """Whether the environment names a gateway and a key for it: then commands ask it, and else the database."""
    return settings.gateway_url is not None and settings.gateway_key is not None


def no_answer(url: str, error: Exception) -> Unreachable:
    """What to tell of a gateway that did not answer, or of something else that did."""
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error.strerror or type(error.os_error).__name__
        # asyncio's own words repeat the address.
        reason = "nothing listens there" if isinstance(error.os_error, ConnectionRefusedError) else reason
    elif isinstance(error, (aiohttp.ContentTypeError, ValueError)):
        reason = "what answers there is no gateway"
    elif isinstance(error, TimeoutError):
        reason = "it did not answer in time"
    else:
        reason = str(error) or type(error).__name__
    return Unreachable(f"The gateway at {url} cannot be reached: {reason}. GATEWAY_URL says where it is.")


def base_url(settings: Settings, given: str | None = None) -> str:
    """Where the gateway is, without `/v1`."""
    url = given or settings.gateway_url or "http://127.0.0.1:8080"
    return url.rstrip("/").removesuffix("/v1")


def auth_headers(settings: Settings) -> dict[str, str]:
    """The key's header, where there is a key."""
    return {"authorization": f"Bearer {settings.gateway_key}"} if settings.gateway_key else {}


async def send_json(
    settings: Settings,
    method: str,
    path: str,
    body: Any,
    timeout_s: float = _TIMEOUT_S,
    taken: Container[int] = (200,),
) -> dict[str, Any]:
    """What a gateway answers to a request with a body; a status that is not `taken` is a refusal.

    Raises:
        Unreachable: it does not answer.
        Refused: with its own words.
    """
    url = base_url(settings) + path
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, url, json=body, headers=auth_headers(settings)) as response,
        ):
            answer: dict[str, Any] = await response.json()
            status = response.status
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise no_answer(base_url(settings), error) from error
    if status not in taken:
        raise Refused(answer.get("error", {}).get("message", f"the gateway answered {status}"))
    return answer


async def get_json(settings: Settings, path: str) -> dict[str, Any] | None:
    """A resource; None where there is none. Raises `Unreachable`."""
    url = base_url(settings) + path
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, headers=auth_headers(settings)) as response,
        ):
            if response.status == 404:
                return None
            body: dict[str, Any] = await response.json()
            if response.status >= 400:
                raise Unreachable(body.get("error", {}).get("message", f"the gateway answered {response.status}"))
            return body
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise no_answer(base_url(settings), error) from error
