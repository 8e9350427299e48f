"""The secret that placeholders are made with, and values sealed.

Knows where it comes from: the environment, else a file of its own beside the database, made when it is first needed. Does not
know what is sealed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from sqlalchemy.engine import make_url

from gateway.errors import ConfigError, Problem

VARIABLE: Final = "GATEWAY_PRIVACY_KEY"
_BYTES: Final = 32


class Secret:
    """What an owner's keys are derived from."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def minting(self, owner: str) -> bytes:
        """The key of an owner's placeholders."""
        return self._derived("placeholder", owner)

    def sealing(self, owner: str) -> bytes:
        """The key that an owner's values are sealed with: 32 bytes."""
        return self._derived("seal", owner)

    def _derived(self, use: str, owner: str) -> bytes:
        return hmac.digest(self._secret, f"{use}\0{owner}".encode("utf-8", "surrogatepass"), hashlib.sha256)


def fresh_secret() -> Secret:
    """One that nobody else has, for as long as this process lives."""
    return Secret(secrets.token_bytes(_BYTES))


def read_secret(said: str | None, database: str) -> Secret:
    """The secret of this gateway.

    Args:
        said: the environment's, or None.
        database: the URL of the database.

    Raises:
        ConfigError: replicas that share a database have to be told; or the file can be neither read nor made.
    """
    if said:
        return Secret(hashlib.sha256(said.encode("utf-8", "surrogatepass")).digest())
    url = make_url(database)
    if url.get_backend_name() != "sqlite":
        text = (
            f"masking needs {VARIABLE}, the same for every replica: a long random text. Without it each would make placeholders "
            "of its own"
        )
        raise ConfigError((Problem("environment", 0, text),))
    if url.database in {None, "", ":memory:"}:
        return fresh_secret()
    path = Path(str(url.database)).with_suffix(".privacy-key")
    try:
        return Secret(_kept(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        text = f"the privacy key can be neither read nor made: {why}; name one in {VARIABLE}"
        raise ConfigError((Problem(str(path), 0, text),)) from error


def _kept(path: Path) -> bytes:
    """The file's bytes; where there is none it is made, whole or not at all: workers start at the same time."""
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
    finally:
        made.unlink()
    return _read(path)


def _read(path: Path) -> bytes:
    secret = bytes.fromhex(path.read_text().strip())
    if len(secret) != _BYTES:
        raise ValueError("it does not hold a key")
    return secret
