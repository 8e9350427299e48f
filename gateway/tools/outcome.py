"""A call before and after: what hooks see, and what came of it. Pure values."""

from __future__ import annotations

from typing import Any

import msgspec


class Call(msgspec.Struct, frozen=True):
    """A call whose arguments were found valid, as hooks see it."""

    id: str
    name: str
    arguments: dict[str, Any]


class Outcome(msgspec.Struct, frozen=True):
    """What came of one call.

    Attributes:
        call_id: pairs it with the call.
        name: the name the model used.
        ok: whether the tool ran and returned.
        content: what the model sees: `{"ok": true, "result": ...}` or `{"ok": false, "error": ...}` as compact JSON.
        fatal: why the turn has to end, or None.
        seconds: how long it took, waiting included.
        arguments: as they were validated, or None where they never were.
        error: what went wrong, or None.
        escalate: whether this tool's arguments have been wrong in an earlier round of the turn too: the model that `escalate`
            names may do better.
        pictures: what the model is shown beside the content, as data URLs.
        approval: the approval that the call waits for, or None.
        mendable: whether the model may mend a failure, with other arguments or later.
        uncertain: whether it may have taken effect although no answer came.
        bare: the content without the note that it repeats an earlier one, where it has that note.
    """

    call_id: str
    name: str
    ok: bool
    content: str
    fatal: str | None = None
    seconds: float = 0.0
    arguments: Any = None
    error: str | None = None
    escalate: bool = False
    bare: str | None = None
    pictures: tuple[str, ...] = ()
    approval: str | None = None
    mendable: bool = False
    uncertain: bool = False

    @property
    def result(self) -> str:
        """What came of the call, the same for the same: what repetition is told by."""
        return self.content if self.bare is None else self.bare


class Done(msgspec.Struct, frozen=True):
    """How a tool that was started ended.

    Attributes:
        ok: whether it returned.
        content: what the model sees.
        error: what went wrong, or None.
        fatal: why the turn has to end, or None.
        whole: the whole text of a result that was shortened, or None.
        handle: what the content says the whole can be read on by, or None.
        pictures: what the model is shown beside the content, as data URLs.
        full: everything that the tool returned, where the model is not shown every field of it, or None.
        uncertain: whether it may have taken effect although no answer came.
        replayed: whether this was done before, and is told again.
        mendable: whether the model may mend it, with other arguments or later.
        undo: JSON text of what undoes it is called with, where something does.
        approval: the approval that it waits for, so that nothing was done yet; or None.
    """

    ok: bool
    content: str
    error: str | None = None
    fatal: str | None = None
    whole: str | None = None
    uncertain: bool = False
    replayed: bool = False
    handle: str | None = None
    full: str | None = None
    pictures: tuple[str, ...] = ()
    mendable: bool = False
    undo: str | None = None
    approval: str | None = None


class CallFailed(Exception):
    """A call ends in an error result; the message is what the model sees."""


class OutcomeUnknown(CallFailed):
    """A call was sent and no answer came: whether it took effect is not known."""


class AnswerUnreadable(CallFailed):
    """The far side took a call and answered what cannot be used: a reading tool has failed, and of a writing one nobody can
    say that it did not happen.
    """


class NotBegun(CallFailed):
    """A call that waited for its turn here, and whose time was over before it began: nothing happened."""


class TransportFailed(ConnectionError):
    """A tool's far side could not be reached, or did not answer as it should; its message is what the model sees.

    What trips a server's breaker: nothing that the far side says properly, such as a 404, is one of these.

    Attributes:
        processed: False where the call surely had no effect (connection refused, 429), so that writing tools may try again;
            True where it may have had one.
        retry_after_s: seconds the far side asked to wait, or None.
    """

    def __init__(self, message: str, *, processed: bool = True, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.processed = processed
        self.retry_after_s = retry_after_s


def words_of(error: BaseException) -> str:
    """An exception's message alone; its type where it has none, or where telling it fails too."""
    try:
        return str(error).strip() or type(error).__name__
    except Exception:  # noqa: BLE001 - foreign code: an exception's own `__str__`
        return type(error).__name__
