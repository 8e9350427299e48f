"""A running gateway, asked over HTTP by commands."""

from __future__ import annotations

from typing import Any

import aiohttp

from gateway.settings import Settings

_TIMEOUT_S = 30.0


class Unreachable(Exception):
    """The gateway did not answer, or not as a gateway does."""


def base_url(settings: Settings, given: str | None = None) -> str:
    """Where the gateway is, without `/v1`."""
    url = given or settings.gateway_url or "http://127.0.0.1:8080"
    return url.rstrip("/").removesuffix("/v1")


def auth_headers(settings: Settings) -> dict[str, str]:
    """The key's header, where there is a key."""
    return {"authorization": f"Bearer {settings.gateway_key}"} if settings.gateway_key else {}


async def post_json(settings: Settings, path: str, body: Any, timeout_s: float) -> tuple[int, dict[str, Any]]:
    """What a gateway answers to a POST: status and body. Raises `Unreachable`."""
    return await send_json(settings, "POST", path, body, timeout_s)


async def send_json(
    settings: Settings, method: str, path: str, body: Any, timeout_s: float = _TIMEOUT_S
) -> tuple[int, dict[str, Any]]:
    """What a gateway answers to a request with a body: status and body. Raises `Unreachable`."""
    url = base_url(settings) + path
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, url, json=body, headers=auth_headers(settings)) as response,
        ):
            answer: dict[str, Any] = await response.json()
            return response.status, answer
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Unreachable(
            f"the gateway at {base_url(settings)} cannot be reached: {str(error) or type(error).__name__}"
        ) from error


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
        raise Unreachable(
            f"the gateway at {base_url(settings)} cannot be reached: {str(error) or type(error).__name__}"
        ) from error
