"""JSON values with placeholders in them.

Knows that a field's name says something of its value, which strings are texts and which are not. Does not know messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import msgspec

from gateway.security.masking.masking import Masking

_decode = msgspec.json.decode
_encode = msgspec.json.encode

# What is no text: pictures, sound, and what providers have sealed.
_SEALED: Final = frozenset({"signature", "thought_signature", "encrypted_content", "redacted_content", "b64_json"})
_PICTURE: Final = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.+=-]+)*;base64,[A-Za-z0-9+/=_-]*")
_SHORTEST_NUMBER: Final = 1_000_000
# Larger ones are not exact as floating-point numbers.
_LONGEST_NUMBER: Final = 1e19
# What a schema shows of values, whatever the fields in it are called.
_SAMPLES: Final = frozenset({"default", "const", "enum", "example", "examples"})


class Values:
    """Walks through JSON values for one turn, to learn what is private or to replace it.

    Args:
        masking: the turn's values.
        escape: as in `Masking.masked`; None to learn only.
    """

    def __init__(self, masking: Masking, *, escape: bool | None) -> None:
        self._masking = masking
        self._learns = escape is None
        self._escape = bool(escape)

    def text(self, text: str, label: str = "") -> str:
        """A text."""
        if self._learns:
            self._masking.learn(text, label)
            return text
        return self._masking.masked(text, label, escape=self._escape)

    def learn(self, text: str) -> None:
        """Another way to read a text: what is private in it is known from now on. Replaces nothing."""
        if self._learns:
            self._masking.learn(text)

    def whole(self, value: Any, kind: str) -> Any:
        """A value that is private as a whole: every text and number in it."""
        if isinstance(value, dict):
            return {key: self.whole(item, kind) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.whole(item, kind) for item in value]
        if value is None or isinstance(value, bool) or value == "":
            return value
        text = value if isinstance(value, str) else str(value)
        if self._learns:
            self._masking.know_field(text, kind)
            return value
        return self._masking.placeholder(text, kind)

    def value(self, value: Any, secrets: Collection[str] = (), path: str = "", label: str = "") -> Any:
        """A JSON value whose numbers count too. `secrets` are paths of what is private in it as a whole."""
        if isinstance(value, dict):
            return {
                self._key(key): self._item(key, item, secrets, f"{path}.{key}" if path else key)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item, secrets, path, label) for item in value]
        if isinstance(value, str):
            return self.json_text(value, secrets, label, path)
        if isinstance(value, float) and abs(value) < _LONGEST_NUMBER and value.is_integer():
            # Tables turn columns of numbers into such.
            whole = self.value(int(value), secrets, path, label)
            return value if whole == value else whole
        if isinstance(value, int) and abs(value) >= _SHORTEST_NUMBER and not isinstance(value, bool):
            said = str(value)
            made = self.text(said, label)
            return value if made == said else made
        return value

    def json_text(self, text: str, secrets: Collection[str] = (), label: str = "", path: str = "") -> str:
        """A text that may be JSON: then what is in it, as that stands there; `path` is where the text itself stands."""
        if text[:1] in _BEGINS or text.lstrip()[:1] in _BEGINS:
            try:
                read = _decode(text)
                made = self.value(read, secrets, path)
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                self._learn_fields(text, secrets)
                return self.text(text, label)
            if self._learns or (made == read and self.text(text) == text):
                return text
            # Also where only the text had something: in a field that is there twice, say.
            return _encode(made).decode()
        return self.text(text, label)

    def _learn_fields(self, text: str, secrets: Collection[str]) -> None:
        """What private fields hold in a text that was JSON once: one that was cut, or several in one."""
        names = {secret.rpartition(".")[2]: "private" for secret in secrets}
        for name, value in _FIELD.findall(text) if names or self._masking.fields else ():
            if (kind := self._masking.fields.get(name.lower()) or names.get(name)) is not None:
                self._masking.know_field(value, kind)

    def strings(self, value: Any, skip: Callable[[str], bool] = lambda _: False) -> Any:
        """A JSON value in which only strings are texts: a schema, say."""
        if isinstance(value, dict):
            return {key: self._string_item(key, item, skip) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.strings(item, skip) for item in value]
        if isinstance(value, str) and not (value.startswith("data:") and _PICTURE.fullmatch(value)):
            return self.text(value)
        return value

    def _string_item(self, key: str, item: Any, skip: Callable[[str], bool]) -> Any:
        # A parameter may be called as the schema's own words are: then it is described here.
        if not isinstance(item, dict) and (key in _SEALED or skip(key)):
            return item
        return self.value(item) if key in _SAMPLES and not isinstance(item, str) else self.strings(item, skip)

    def _key(self, key: Any) -> Any:
        return self.text(key) if isinstance(key, str) else key

    def _item(self, key: str, item: Any, secrets: Collection[str], path: str) -> Any:
        if (kind := self._masking.fields.get(key.lower())) is not None:
            return self.whole(item, kind)
        if secrets and _names(secrets, path):
            return self.whole(item, "private")
        return self.value(item, secrets, path, key)


_BEGINS: Final = frozenset("{[")
# A field of JSON with its text, however deep the JSON was in others and wherever it was cut.
_FIELD: Final = re.compile(r'\\*"([^"\\]+)\\*"\s*:\s*\\*"([^"\\]+)')


def _names(secrets: Iterable[str], path: str) -> bool:
    """Whether a path is one of those, wherever it begins."""
    return any(path == secret or path.endswith(f".{secret}") for secret in secrets)
