"""What a failure means for the next attempt, and how long to wait before it.

Pure. Knows the family of upstream errors; does not know backends or clocks.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from gateway.errors import (
    ContextTooLong,
    GatewayError,
    QueueFull,
    UpstreamBroken,
    UpstreamDenied,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)

# Backoff: before the nth retry, anything up to 0.25 s * 2^(n-1), 8 s at most ("full jitter": waits that are spread
# evenly keep clients that failed together from coming back together).
_BACKOFF_S: Final = 0.25
_LONGEST_BACKOFF_S: Final = 8.0
# On top of a time that the upstream itself named: everybody it told the same would come back in the same moment.
_JITTER_S: Final = 0.25


class Verdict(NamedTuple):
    """What a failure means.

    Attributes:
        kind: one word for traces and metrics.
        again: the same backend may be asked again.
        elsewhere: another backend may do better.
        fault: it was the backend's fault, and counts for its breaker.
        key: it was about the key that was used, its limit or its rights.
    """

    kind: str
    again: bool
    elsewhere: bool
    fault: bool
    key: bool = False


_REFUSED: Final = Verdict("refused", again=False, elsewhere=False, fault=False)


def verdict(error: GatewayError) -> Verdict:
    """Judge a failure. A request that is wrong is wrong everywhere; all else may go better elsewhere."""
    match error:
        case ContextTooLong():
            return Verdict("too_long", again=False, elsewhere=True, fault=False)
        case UpstreamDenied():
            return Verdict("denied", again=False, elsewhere=True, fault=False, key=True)
        case UpstreamRefused(status=404 | 405):
            # Not the client's words but this backend's model or address is unknown there.
            return Verdict("not_found", again=False, elsewhere=True, fault=False)
        case UpstreamRefused():
            return _REFUSED
        case UpstreamUnavailable(status=429):
            return Verdict("limited", again=error.retryable, elsewhere=True, fault=False, key=True)
        case QueueFull():
            return Verdict("queue_full", again=False, elsewhere=True, fault=False)
        case UpstreamTimeout():
            return Verdict("timeout", again=error.retryable, elsewhere=error.retryable, fault=True)
        case UpstreamBroken():
            return Verdict("broken", again=error.retryable, elsewhere=error.retryable, fault=True)
        case UpstreamError():
            return Verdict("unavailable", again=error.retryable, elsewhere=error.retryable, fault=True)
    return _REFUSED


def backoff_s(error: GatewayError, failures: int, dice: random.Random) -> float:
    """Seconds to wait after this many failures of a backend in a row (1 for the first).

    A time that the upstream named comes first, and each failure's own: the last one counts, not the first.
    """
    if error.retry_after_s is not None:
        return error.retry_after_s + dice.uniform(0, _JITTER_S)
    return dice.uniform(0, min(_LONGEST_BACKOFF_S, _BACKOFF_S * 2.0 ** (failures - 1)))
