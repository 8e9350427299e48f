"""Weights that packages carry: found without importing the package, and trusted by their SHA-256 alone."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from importlib.util import find_spec
from pathlib import Path

from gateway.routing.encoder import EncoderFailed


def packaged(package: str, distribution: str, name: str, sha256: str) -> Path:
    """The path of a file inside an installed package, once its digest is known to be right. Blocks; reads the file.

    Raises:
        EncoderFailed: the package is not installed, or the file is missing or not the one that was reviewed.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise EncoderFailed(f"package {distribution!r} is not installed")
    path = Path(spec.origin).parent / name
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EncoderFailed(f"{distribution}: {name} cannot be read: {error.strerror}") from error
    if found != sha256:
        raise EncoderFailed(f"{distribution}: {name} is not the reviewed file: SHA-256 {found}, expected {sha256}")
    return path


def give_back() -> None:
    """Give the system the memory back that reading weights took and using them does not: a quarter of what is held then.

    Where the C library is not glibc, it does so by itself or not at all.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
