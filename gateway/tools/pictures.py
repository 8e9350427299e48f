"""Pictures that tools return: shown to models that take images, described to all others.

Pure. Knows which kinds models take and how many of them; does not know where they came from.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

# What the large providers take alike.
_SHOWN: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_MOST: Final = 4
# Of base64, all pictures of one result together.
_MOST_CHARS: Final = 4 * 1024 * 1024
# A picture lies at the top of a result or one list below; longer lists are data.
_MOST_ITEMS: Final = 64


class Picture(msgspec.Struct, frozen=True):
    """A picture within a result. `data` is base64."""

    mime_type: str
    data: str


def without_pictures(value: Any, *, shown: bool) -> tuple[Any, tuple[str, ...]]:
    """A result with descriptions in its pictures' places, and the pictures that are shown beside it, as data URLs.

    `shown` says whether the model takes images at all.
    """
    if not _has_pictures(value):
        return value, ()
    urls: list[str] = []
    return _described(value, urls, shown=shown), tuple(urls)


def description(picture: Picture, said: str) -> dict[str, str]:
    """What stands in a picture's place."""
    size = len(picture.data) * 3 // 4
    return {
        "type": "image",
        "mime_type": picture.mime_type,
        "note": f"the tool returned this image ({size} bytes); {said}",
    }


def _has_pictures(value: Any) -> bool:
    if isinstance(value, Picture):
        return True
    if isinstance(value, dict) and isinstance(value.get("parts"), list):
        value = value["parts"]
    return isinstance(value, list) and len(value) <= _MOST_ITEMS and any(isinstance(item, Picture) for item in value)


def _described(value: Any, urls: list[str], *, shown: bool) -> Any:
    if isinstance(value, list):
        return [_described(item, urls, shown=shown) for item in value]
    if isinstance(value, dict) and isinstance(value.get("parts"), list):
        return {**value, "parts": _described(value["parts"], urls, shown=shown)}
    if not isinstance(value, Picture):
        return value
    room = _MOST_CHARS - sum(len(url) for url in urls)
    if shown and value.mime_type in _SHOWN and len(urls) < _MOST and len(value.data) <= room:
        urls.append(f"data:{value.mime_type};base64,{value.data}")
        return description(value, f"it is image {len(urls)} of this result, shown below")
    return description(value, "only its description is shown here")
