"""Messages and request fields with placeholders in them.

Knows Chat Completions' shapes: which strings are texts, which are names or ids, whose results a tool message holds. Does not know
backends.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.chat.blocks import Message
from gateway.chat.codecs.chat_completions import decode_message, encode_message
from gateway.security.masking.masking import Masking
from gateway.security.masking.placeholders import LOOKALIKE, PLACEHOLDER, bare
from gateway.security.masking.values import Values

_decode = msgspec.json.decode
_encode = msgspec.json.encode

# Fields of a request that are numbers, switches or names of the API's own.
_SETTINGS: Final = frozenset(
    "frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens modalities n "
    "parallel_tool_calls presence_penalty prompt_cache_retention reasoning_effort seed service_tier store stream "
    "stream_options temperature tool_choice top_logprobs top_p verbosity top_k min_p".split()
)
# Fields that hold schemas: their numbers are limits, and names in them are what the model is to write.
# Whose messages are the client's own words.
_CLIENTS: Final = frozenset({"user", "system", "developer"})
_JOINS: Final = re.compile(r"[_-]")
_SCHEMAS: Final = frozenset({"tools", "response_format", "functions"})


class Conversation:
    """The messages of one turn, as they are and as a model sees them. Remembers what it has looked at.

    Args:
        masking: the turn's values.
    """

    def __init__(self, masking: Masking) -> None:
        self.masking = masking
        # By identity, with the message itself, so that no other one can have its place.
        self._looked: dict[int, Message] = {}
        self._suspect: set[int] = set()
        self._made: dict[int, tuple[int, Message, Message]] = {}
        self._fields: dict[bytes, bool] = {}

    def learn(self, messages: Iterable[Message], fields: Mapping[str, msgspec.Raw]) -> bool:
        """Look for what is private; whether anything has to be replaced."""
        tools: dict[str, str] = {}
        any_found = False
        for message in messages:
            if message.tool_calls:
                tools.update({call.id: call.name for call in message.tool_calls})
            if id(message) not in self._looked:
                self._looked[id(message)] = message
                if self._is_suspect(message):
                    self._suspect.add(id(message))
                    self._learn(message, tools)
            any_found = any_found or id(message) in self._suspect
        for name, raw in fields.items():
            if name in _SETTINGS:
                continue
            encoded = bytes(raw)
            if encoded not in self._fields:
                detector = self.masking.detector
                suspect = self._fields[encoded] = detector is not None and detector.suspects(encoded)
                if suspect:
                    self._field(name, encoded, Values(self.masking, escape=None))
            any_found = any_found or self._fields[encoded]
        return any_found or self.masking.known > 0

    def masked(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages as a model sees them."""
        while True:
            known = self.masking.known
            made = self._all_masked(messages)
            # What was found only once something else was replaced may stand in messages before.
            if known == self.masking.known:
                return made

    def _all_masked(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        tools: dict[str, str] = {}
        out = []
        for message in messages:
            if message.tool_calls:
                tools.update({call.id: call.name for call in message.tool_calls})
            known = self._made.get(id(message))
            if known is None or known[0] != self.masking.known:
                known = (self.masking.known, message, self._masked(message, tools))
                self._made[id(message)] = known
            out.append(known[2])
        return tuple(out)

    def masked_fields(self, fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """The request's other fields as a model's server sees them."""
        values = Values(self.masking, escape=True)
        return {
            name: raw if name in _SETTINGS else msgspec.Raw(self._field(name, bytes(raw), values))
            for name, raw in fields.items()
        }

    def refused(self, messages: Iterable[Message], fields: Mapping[str, msgspec.Raw]) -> set[str]:
        """The kinds of what a client said that is private; what tools and models said does not count. Comes after `learn`."""
        with self.masking.noting() as kinds:
            for message in messages:
                if message.role in _CLIENTS:
                    self._masked(message, {})
            self.masked_fields(fields)
        return kinds - {LOOKALIKE}

    def _is_suspect(self, message: Message) -> bool:
        masking = self.masking
        if (masking.fields or masking.secrets_of is not None) and (message.role == "tool" or message.tool_calls):
            return True
        return masking.detector is not None and masking.detector.suspects(encode_message(message))

    def _learn(self, message: Message, tools: Mapping[str, str]) -> None:
        masked_wire(_decode(encode_message(message)), Values(self.masking, escape=None), self.masking, tools)

    def _masked(self, message: Message, tools: Mapping[str, str]) -> Message:
        wire = _decode(encode_message(message))
        made = masked_wire(wire, Values(self.masking, escape=True), self.masking, tools)
        if made == wire and id(message) not in self._suspect:
            return message
        # What looked suspicious is written anew all the same: fields that are there twice are so no more.
        return decode_message(_encode(made))

    def _field(self, name: str, encoded: bytes, values: Values) -> bytes:
        read = _decode(encoded)
        if name in _SCHEMAS:
            made = values.strings(read, lambda key: key in {"name", "type", "required", "$ref", "pattern"})
        elif isinstance(read, (str, dict, list)):
            made = values.value(read, label=name)
        else:
            return encoded
        return encoded if made == read and not self._fields.get(encoded) else _encode(made)


def masked_wire(wire: dict[str, Any], values: Values, masking: Masking, tools: Mapping[str, str]) -> dict[str, Any]:
    """A message's JSON object through `values`; `tools` are the names of tools by call ids."""
    out: dict[str, Any] = {}
    for key, item in wire.items():
        if key in {"role", "type"}:
            out[key] = item
        elif key in {"name", "tool_call_id", "id"} and isinstance(item, str):
            out[key] = _bare(item, values)
        elif key == "content" and isinstance(item, str) and wire.get("role") in {"tool", "function"}:
            out[key] = values.json_text(item, secrets_of(masking, tools.get(wire.get("tool_call_id", ""))))
        elif key == "content" and isinstance(item, list):
            out[key] = [_part(part, values) for part in item]
        elif key == "tool_calls" and isinstance(item, list):
            out[key] = [masked_call(call, values, masking) for call in item]
        elif key == "function_call" and isinstance(item, dict):
            out[key] = _function(item, values, masking)
        else:
            out[key] = values.strings(item)
    return out


def _part(part: Any, values: Values) -> Any:
    if not isinstance(part, dict):
        return values.strings(part)
    return {
        key: item if key in {"type", "input_audio", "detail"} else values.strings(item, lambda key: key == "detail")
        for key, item in part.items()
    }


def masked_call(call: Any, values: Values, masking: Masking) -> Any:
    """A call as it stands in a message."""
    if not isinstance(call, dict):
        return call
    out = dict(call)
    if isinstance(call.get("id"), str):
        out["id"] = _bare(call["id"], values)
    if isinstance(call.get("function"), dict):
        out["function"] = _function(call["function"], values, masking)
    if isinstance(call.get("custom"), dict):
        out["custom"] = values.strings(call["custom"], lambda key: key == "name")
    return out


def _function(function: dict[str, Any], values: Values, masking: Masking) -> dict[str, Any]:
    secrets = secrets_of(masking, function.get("name"))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        return {**function, "arguments": values.json_text(arguments, secrets)}
    return {**function, "arguments": values.value(arguments, secrets)} if arguments is not None else function


def secrets_of(masking: Masking, tool: Any) -> Collection[str]:
    """Paths of what is private in what a tool is given and returns, by its name; none where that is no name."""
    if masking.secrets_of is None or not isinstance(tool, str):
        return ()
    return masking.secrets_of(tool)


def _bare(name: str, values: Values) -> str:
    """A name or an id: what stands for it has to be one too."""
    # What joins the words of a name joins those of an order's number elsewhere.
    values.learn(_JOINS.sub(" ", name))
    made = values.text(name)
    return name if made == name else PLACEHOLDER.sub(lambda match: bare(match.group()), made)
