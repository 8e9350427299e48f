"""What is left to a caller, as OpenAI's headers say it."""

from __future__ import annotations

from gateway.api.http import Headers
from gateway.turn.context import Standing


def standing_headers(standing: Standing | None) -> Headers:
    """The `x-ratelimit-*` headers; none where nothing is limited."""
    headers: Headers = []
    if standing is None:
        return headers
    if (requests := standing.requests) is not None:
        headers += [
            (b"x-ratelimit-limit-requests", b"%d" % requests.limit),
            (b"x-ratelimit-remaining-requests", b"%d" % _whole(requests.left)),
            (b"x-ratelimit-reset-requests", _span(requests.whole_in_s)),
        ]
    if (tokens := standing.tokens) is not None:
        headers += [
            (b"x-ratelimit-limit-tokens", b"%d" % tokens.limit),
            (b"x-ratelimit-remaining-tokens", b"%d" % _whole(tokens.left)),
            (b"x-ratelimit-reset-tokens", _span(tokens.whole_in_s)),
        ]
    return headers


def _whole(left: float) -> int:
    # As the counters have it: what is missing by next to nothing is not missing.
    return int(left + 1e-6)


def _span(seconds: float) -> bytes:
    """As in `1m30s`, `12s` or `250ms`."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    minutes, rest = divmod(round(seconds), 60)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
