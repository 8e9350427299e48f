"""Bodies of the gateway's own endpoints, read into what they have to be.

Knows how a mistake in one is told. Does not know what any of them means.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gateway.errors import InvalidRequest

T = TypeVar("T")


def decoded(body: bytes, kind: type[T]) -> T:
    """A body as this type.

    Raises:
        InvalidRequest: it is none; names the field, where one is at fault.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        where = str(error).rpartition("at `$.")[2].rstrip("`") if "at `$." in str(error) else None
        raise InvalidRequest(f"The body is not what is expected here: {error}.", param=where) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is no JSON: {error}.") from error
