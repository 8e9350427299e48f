"""What an owner's tools said in confidence before: recognised where a client sends an answer back in which it stands.

No detector knows such values, and what the tool said need not be in the request any more: clients send a part of a conversation, or
change its beginning. Looks at what models said alone, so that no ordinary word of a client's is hidden for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Protocol

from cachetools import LRUCache, TTLCache

from gateway.chat.blocks import Message
from gateway.security.masking.messages import Conversation
from gateway.security.masking.placeholders import said_name
from gateway.store.value_records import ValueRow

_OWNERS: Final = 10_000
# Written behind: by then the vault has it.
_KEPT_S: Final = 60.0
_MOST: Final = 500
_OPENED: Final = 50_000


class TellsValues(Protocol):
    """Where values are kept: the vault."""

    async def newest(self, owner: str, names: Collection[str], limit: int) -> list[ValueRow]:
        """An owner's values whose placeholders have these names. Raises `StoreUnavailable`."""
        ...

    def opened(self, row: ValueRow) -> str | None:
        """The value in it."""
        ...


class Recollection:
    """Remembers for all turns of this process, and asks the vault for what others remember."""

    def __init__(self) -> None:
        self._vault: TellsValues | None = None
        self._new: TTLCache[str, dict[str, str]] = TTLCache(_OWNERS, _KEPT_S)
        self._opened: LRUCache[tuple[str, str], tuple[bytes, str | None]] = LRUCache(_OPENED)

    def open(self, vault: TellsValues) -> None:
        """Ask this one from now on."""
        self._vault = vault

    def note(self, owner: str, value: str, kind: str) -> None:
        """A value that was said in confidence."""
        noted = self._new.get(owner, {})
        if len(noted) < _MOST:
            self._new[owner] = {**noted, value: kind} if value not in noted else noted

    async def recall(self, owner: str, private: Conversation, messages: Iterable[Message]) -> None:
        """Let a turn know those that stand in what models said before.

        Raises:
            StoreUnavailable: nobody can say.
        """
        masking = private.masking
        said = [message.text for message in messages if message.role == "assistant" and message.text]
        if not said or not masking.declared:
            return
        known = dict(self._new.get(owner, {}))
        if self._vault is not None:
            for row in await self._vault.newest(owner, masking.declared.keys(), _MOST):
                if (value := self._value(row)) is not None:
                    known.setdefault(value, masking.declared[said_name(row.placeholder)])
        for value, kind in known.items():
            if any(value in text for text in said):
                masking.know(value, kind)

    def _value(self, row: ValueRow) -> str | None:
        assert self._vault is not None
        place = (row.owner, row.placeholder)
        found = self._opened.get(place)
        if found is None or found[0] != row.sealed:
            found = self._opened[place] = (row.sealed, self._vault.opened(row))
        return found[1]
