"""The vault: what placeholders stood for, sealed, for as long as traces tell of them.

Knows AES-GCM: a value that was moved to another owner or another placeholder does not open. Does not know who may ask.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from gateway.clock import Clock
from gateway.security.masking.placeholders import LOOKALIKE, OPENING
from gateway.security.masking.secret import Secret
from gateway.store.value_records import PrivateValues, ValueRow

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE: Final = 12
_DAY_S: Final = 86_400.0
# What looked like a placeholder in somebody's own text: there is nothing behind it to be told.
_NO_VALUE: Final = f"{OPENING}{LOOKALIKE}:"


class Vault:
    """Keeps and tells values.

    Args:
        store: where they are kept.
        secret: what they are sealed with.
        keep_days: for how long.
        clock: for ages.
    """

    def __init__(
        self, store: PrivateValues, secret: Callable[[], Secret], keep_days: Callable[[], float], clock: Clock
    ) -> None:
        self._store = store
        self._secret = secret
        self._keep_days = keep_days
        self._clock = clock

    async def keep(self, values: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        """Keep what owners' placeholders stand for.

        Raises:
            StoreUnavailable: they could not be kept.
        """
        until = self._clock.now() + self._keep_days() * _DAY_S
        rows = [
            ValueRow(
                owner=owner, placeholder=placeholder, sealed=self._sealed(owner, placeholder, value), expires_at=until
            )
            for owner, of_owner in values
            for placeholder, value in of_owner.items()
            if not placeholder.startswith(_NO_VALUE)
        ]
        if rows:
            await self._store.keep(rows)

    async def reveal(self, placeholder: str, owner: str) -> str | None:
        """What an owner's placeholder stands for, or None: it is not kept any more, or was never theirs.

        Raises:
            StoreUnavailable: nobody can say.
        """
        row = await self._store.get(placeholder, owner)
        if row is None or row.expires_at < self._clock.now():
            return None
        return self.opened(row)

    async def newest(self, owner: str, names: Collection[str], limit: int) -> list[ValueRow]:
        """An owner's values whose placeholders have these names, sealed; the newest, where there are more than `limit`.

        Raises:
            StoreUnavailable: nobody can say.
        """
        beginnings = [f"{OPENING}{name}:" for name in names]
        now = self._clock.now()
        return [row for row in await self._store.newest(owner, beginnings, limit) if row.expires_at >= now]

    def opened(self, row: ValueRow) -> str | None:
        """The value in it, or None: it was sealed with another secret."""
        # Cryptography that nobody loads who masks nothing.
        from cryptography.exceptions import InvalidTag

        nonce, sealed = row.sealed[:_NONCE], row.sealed[_NONCE:]
        try:
            plain = _cipher(self._secret().sealing(row.owner)).decrypt(
                nonce, sealed, _bound(row.owner, row.placeholder)
            )
        except InvalidTag:  # sealed with another secret
            return None
        return plain.decode("utf-8", "surrogatepass")

    def _sealed(self, owner: str, placeholder: str, value: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        plain = value.encode("utf-8", "surrogatepass")
        return nonce + _cipher(self._secret().sealing(owner)).encrypt(nonce, plain, _bound(owner, placeholder))


def _bound(owner: str, placeholder: str) -> bytes:
    return f"{owner}\0{placeholder}".encode("utf-8", "surrogatepass")


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)
