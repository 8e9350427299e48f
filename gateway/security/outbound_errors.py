"""How a request to the outside ends badly: refused here, or failed there."""

from __future__ import annotations


class OutboundRefused(Exception):
    """The guard does not let this through; the message says why and shows nothing of the far side.

    Attributes:
        answered: whether the far side had taken a request by then: its answer, or where that led, is what was refused.
    """

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class OutboundFailed(ConnectionError):
    """The far side could not be reached or broke off; another attempt may work.

    Attributes:
        sent: False where the request surely never reached it.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


def refusal_in(error: BaseException) -> OutboundRefused | None:
    """The guard's own word, wherever a library has wrapped it."""
    seen: BaseException | None = error
    for _ in range(8):
        if isinstance(seen, OutboundRefused) or seen is None:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
