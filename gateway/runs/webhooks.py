"""Tells webhooks of the end of a run, by Standard Webhooks (https://www.standardwebhooks.com): signed, and again until it is heard.

Knows the signature and what counts as heard. When it is tried again is `followers.py`'s, that it is, the worker's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.clock import Clock
from gateway.config.runs import WebhookConfig, signing_key
from gateway.errors import NotFound, UpstreamError, UpstreamRefused, UpstreamTimeout, UpstreamUnavailable
from gateway.runs.followers import Delivery
from gateway.runs.run import Attempt, Done
from gateway.store.run_records import RunRow

if TYPE_CHECKING:
    import aiohttp

# Seconds a receiver has to answer.
TIMEOUT_S: Final = 15.0
# What a receiver says that wants to hear no more of it.
_GONE: Final = 410


class WebhookHandler:
    """Delivers one event to one webhook.

    Args:
        webhooks: by name, as they are now.
        clock: for the time that is signed.
    """

    def __init__(self, webhooks: Callable[[], Mapping[str, WebhookConfig]], clock: Clock) -> None:
        self._webhooks = webhooks
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def execute(self, run: RunRow, attempt: Attempt) -> Done:
        """Send it.

        Raises:
            NotFound: the configuration does not name the webhook any more.
            UpstreamError: it was not heard; tried again, but for a receiver that is gone.
        """
        delivery = msgspec.json.decode(run.body, type=Delivery)
        webhook = self._webhooks().get(delivery.webhook)
        if webhook is None:
            raise NotFound(f"There is no webhook {delivery.webhook!r} any more.")
        body = msgspec.json.encode(delivery.content)
        headers = signed(webhook.secret, delivery.content["id"], int(self._clock.now()), body)
        # Most gateways have no webhooks, and the client is a tenth of a start.
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        try:
            async with self._session.post(webhook.url, data=body, headers=headers, allow_redirects=False) as response:
                status = response.status
        except TimeoutError as error:
            raise UpstreamTimeout(f"The webhook {delivery.webhook!r} did not answer within {TIMEOUT_S:g} s.") from error
        except aiohttp.ClientError as error:
            raise UpstreamUnavailable(
                f"The webhook {delivery.webhook!r} cannot be reached: {type(error).__name__}."
            ) from error
        if status == _GONE:
            raise UpstreamRefused(f"The webhook {delivery.webhook!r} is gone (410).")
        if not 200 <= status < 300:
            raise UpstreamError(f"The webhook {delivery.webhook!r} answered {status}.")
        return Done(msgspec.json.encode({"status": status, "attempt": attempt.number}))

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()


def signed(secret: str, id: str, timestamp: int, body: bytes) -> dict[str, str]:  # noqa: A002 - the standard's word
    """The headers of a delivery; `secret` as the configuration has it."""
    digest = hmac.digest(signing_key(secret), f"{id}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "content-type": "application/json",
        "user-agent": "hermes-gateway",
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
