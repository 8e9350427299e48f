"""What must outlive a process so that nothing is done twice and nothing is lost: turns, effects, hidden rounds.

Knows the records and what their stores promise. Does not know SQL, nor when a turn writes what: that is the turn's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

TurnStatus = Literal["running", "answered", "failed"]
EffectStatus = Literal["started", "done", "failed", "unknown"]


class TurnRow(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that another request may join.

    Attributes:
        turn_id: the trace id of its first attempt; later attempts keep it.
        key: the `Idempotency-Key`, or None; one turn of an owner per key.
        body_hash: hex SHA-256 of what was asked.
        status: `running`, `answered` or `failed`.
        delivered: whether the answer's last byte was handed to the client's connection.
        retried: whether it was begun by a client's retry.
        holder: the process that runs it; see `held_until`.
        held_until: seconds since the epoch after which another may take a running turn over.
        http_status: of the answer, once there is one.
        answer: the whole answer's body in Chat Completions' form, once there is one.
        meta: JSON value: what the answer's headers say.
    """

    turn_id: str
    owner: str
    key: str | None
    body_hash: str
    status: TurnStatus = "running"
    delivered: bool = False
    retried: bool = False
    holder: str
    held_until: float
    http_status: int | None = None
    answer: bytes | None = None
    meta: Any = None
    created_at: float
    updated_at: float


class EffectRow(msgspec.Struct, frozen=True, kw_only=True):
    """One effect: what a writing tool was asked to do, and what came of it.

    Attributes:
        id: names it to operators.
        effect_key: hex SHA-256 of what makes it this effect; one effect of an owner per key.
        arguments: JSON text, canonical.
        status: `started` until it is known how it ended; `unknown` where that cannot be known by the gateway.
        content: what the model sees of the outcome.
        note: who settled it and why, or what a probe said.
        holder: the process that does it, until `held_until` (seconds since the epoch) at the latest.
        undo: JSON text of what the tool that undoes it is called with, where there is one and that is known.
    """

    id: str
    effect_key: str
    owner: str
    turn_id: str
    trace_id: str
    round: int
    position: int
    tool: str
    spec_hash: str
    arguments: str
    arguments_hash: str
    status: EffectStatus = "started"
    content: str | None = None
    note: str | None = None
    holder: str
    held_until: float
    started_at: float
    finished_at: float | None = None
    undo: str | None = None


class HiddenRow(msgspec.Struct, frozen=True, kw_only=True):
    """The rounds behind one visible assistant message.

    Attributes:
        anchor: the thread's hash up to and with the visible message.
        visible: the hash of the visible message alone.
        digest: hex SHA-256 of `messages`: two threads of equal words may hide different rounds.
        messages: JSON list of the messages, in Chat Completions' form, that stand in the visible one's place.
        call_ids: ids of the calls in the visible message.
    """

    owner: str
    anchor: str
    visible: str
    digest: str
    messages: bytes
    call_ids: tuple[str, ...] = ()
    created_at: float


class Turns(Protocol):
    """Turns that can be joined. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def begin(
        self, row: TurnRow, *, since: float | None = None, hasty: bool = False, keys_since: float = 0.0
    ) -> TurnRow | None:
        """Commit a new turn and answer None; or, where its key is taken or its id known, the turn that is there.

        With `since`, in the same transaction, a rival counts too: a turn without a key that was asked the same and begun
        since then. To a retry that is any that is not delivered, to a first request only one that a retry has begun.
        A `hasty` commit may be lost when the machine stops, unless another one followed it.

        A key that a background run was asked for with since `keys_since` is answered as a turn that asked something else.
        """
        ...

    async def get(self, turn_id: str, owner: str | None) -> TurnRow | None:
        """One turn."""
        ...

    async def by_key(self, owner: str, key: str) -> TurnRow | None:
        """The owner's turn of this idempotency key."""
        ...

    async def by_body(self, owner: str, body_hash: str, *, since: float) -> Sequence[TurnRow]:
        """The owner's turns without a key that were asked this since then and are not delivered, the newest first."""
        ...

    async def take(self, turn_id: str, holder: str, *, seen: TurnRow, until: float, now: float) -> bool:
        """Become the holder of a turn as it was seen; False where somebody else was quicker."""
        ...

    async def keep(self, turn_id: str, holder: str, *, until: float) -> bool:
        """Hold on to a running turn; False where it is somebody else's by now."""
        ...

    async def end(
        self,
        turn_id: str,
        holder: str,
        *,
        status: TurnStatus,
        http_status: int,
        answer: bytes,
        meta: Any,
        now: float,
        hasty: bool = False,
    ) -> bool:
        """Commit how a turn ended; False where it is somebody else's by now. `hasty`: see `begin`."""
        ...

    async def delivered(self, turn_id: str) -> None:
        """Note that the client has the answer."""
        ...

    async def forget(self, turn_id: str) -> None:
        """Forget one turn: its key is free again."""
        ...

    async def prune(self, *, before: float) -> int:
        """Forget turns that began before; how many went."""
        ...


class Effects(Protocol):
    """The ledger. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def start(self, row: EffectRow) -> EffectRow | None:
        """Commit that an effect is about to happen and answer None; or the effect of this key that is there."""
        ...

    async def finish(
        self,
        id: str,  # noqa: A002 - the contract's word
        *,
        status: EffectStatus,
        content: str,
        note: str | None,
        now: float,
        undo: str | None = None,
    ) -> bool:
        """Commit how an effect ended; False where it had ended before."""
        ...

    async def restart(self, id: str, *, seen: EffectRow, row: EffectRow) -> bool:  # noqa: A002 - the contract's word
        """Begin an effect anew that has not happened: one that failed, or whose probe says so. False where it changed since it was seen."""
        ...

    async def get(self, id: str, owner: str | None) -> EffectRow | None:  # noqa: A002 - the contract's word
        """One effect."""
        ...

    async def of_turn(self, turn_id: str, owner: str | None) -> Sequence[EffectRow]:
        """A turn's effects, in the order of their calls."""
        ...

    async def newest(
        self, owner: str | None, *, status: EffectStatus | None = None, limit: int, after: str | None = None
    ) -> Sequence[EffectRow]:
        """The newest first, at most `limit`, older than the effect `after`."""
        ...

    async def lapse(self, *, before: float, content: str, note: str, now: float) -> int:
        """Count effects as `unknown` that were held until before then and whose end nobody wrote down; how many there were.

        Who makes one of them after all may still finish it.
        """
        ...

    async def prune(self, *, before: float) -> int:
        """Forget effects that ended before then; those whose outcome is not known stay. How many went."""
        ...


class Hidden(Protocol):
    """Hidden rounds. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def keep(self, rows: Sequence[HiddenRow]) -> None:
        """Commit the rounds behind these messages, all or none; the same again changes nothing."""
        ...

    async def find(self, owner: str, anchors: Sequence[str], call_ids: Sequence[str]) -> Sequence[HiddenRow]:
        """The owner's rows with one of these anchors or of these call ids, the newest first."""
        ...

    async def prune(self, *, before: float) -> int:
        """Forget rounds kept before then; how many went."""
        ...
