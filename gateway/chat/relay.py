"""How a client's stream is written: one id, one creation time, one model name, whatever the upstreams called themselves.

Pure bytes. Chunks pass as they came but for those three values; only chunks that cannot be patched are decoded again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.chat.chunk import Chunk, Form, Run
from gateway.chat.usage import Usage

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

# What is replaced, and what may stand behind it.
_NAMES = (b'"id":', b'"created":', b'"model":')
_BEHIND = (b",", b"}", b" ")
_NAMED = re.compile(rb'"(?:id|created|model)":')
# The three as nearly everybody begins a chunk: in this order, with nothing nested between them.
_BEGINNING = re.compile(
    rb'\{"id": ?("[^"\\]*+"),([^{}[\]]*?)"created": ?(\d++),([^{}[\]]*?)"model": ?("[^"\\]*+")(?=[,} ])'
)

_encode = msgspec.json.Encoder().encode
_decode_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class StreamWriter:
    """Writes the frames of one answer.

    Args:
        answer_id: the answer's id.
        created: seconds since the epoch.
        model: the name the client is told.
        with_usage: whether the client asked for usage: its chunks then say `"usage": null`.
    """

    def __init__(self, answer_id: str, created: int, model: str, *, with_usage: bool = False) -> None:
        self.answer_id = answer_id
        self._head: dict[str, Any] = {
            "id": answer_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._with_usage = with_usage
        self._named = (b'"id":' + _encode(answer_id), b'"created":%d' % created, b'"model":' + _encode(model))
        self._seen: tuple[str | None, str | None, float | None] | None = None
        self._tokens: tuple[tuple[bytes, bytes], ...] | None = None
        self._form: Form | None = None
        self._around: tuple[bytes, bytes, bytes] | None = None

    def frames(self, chunks: Sequence[Chunk]) -> bytes:
        """The frames of chunks that came from an upstream."""
        out: list[bytes] = []
        run: list[bytes] = []
        for chunk in chunks:
            fields = chunk.fields
            seen = (fields.id, fields.model, fields.created)
            if seen != self._seen:
                if run:
                    out.append(self._patched(run))
                    run = []
                self._learn(seen, chunk.payloads[0])
            if chunk.run is not None:
                if run:
                    out.append(self._patched(run))
                    run = []
                out.append(self.run(chunk.run) or self._patched(chunk.payloads))
            elif self._tokens is None:
                out.append(b"data: " + self._rewritten(chunk.data) + b"\n\n")
            else:
                run.append(chunk.data)
        if run:
            out.append(self._patched(run))
        return out[0] if len(out) == 1 else b"".join(out)

    def run(self, run: Run) -> bytes | None:
        """The frames of a run; None where they have to be made one by one.

        What stands around its texts is patched once for all runs of a form.
        """
        around = self._around if self._form is run.form else self.around(run.form)
        if around is None:
            return None
        first, between, last = around
        return first + between.join(run.spelled) + last

    def around(self, form: Form) -> tuple[bytes, bytes, bytes] | None:
        """What stands before, between and behind the texts of chunks of a form; None where they have to be made one by one."""
        if self._form is not form:
            self._form = form
            self._around = self._patched_form(form)
        return self._around

    def chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        """The frame of a chunk the gateway makes itself."""
        body = {
            **self._head,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
        }
        if self._with_usage:
            body["usage"] = None
        return b"data: " + _encode(body) + b"\n\n"

    def usage(self, usage: Usage) -> bytes:
        """The last chunk of a stream whose client asked for usage."""
        return b"data: " + _encode({**self._head, "choices": [], "usage": usage.as_openai()}) + b"\n\n"

    def _learn(self, seen: tuple[str | None, str | None, float | None], data: bytes) -> None:
        """Find the three values in the bytes; where one does not stand there exactly once, chunks are decoded instead."""
        self._seen = seen
        self._tokens = None
        self._form = None
        answer_id, model, created = seen
        if answer_id is None or model is None or created is None:
            return
        said = (_encode(answer_id), b"%d" % created, _encode(model))
        begins = _BEGINNING.match(data)
        if begins is not None and begins.group(1, 3, 5) == said and len(_NAMED.findall(data)) == len(said):
            new_id, new_created, new_model = self._named
            named = b"{%b,%b%b,%b%b" % (new_id, begins[2], new_created, begins[4], new_model)
            self._tokens = ((begins[0], named),)
        else:
            self._tokens = self._apart(said, data)

    def _apart(self, values: tuple[bytes, ...], data: bytes) -> tuple[tuple[bytes, bytes], ...] | None:
        """What to replace where each of the values has a place of its own; None where one has not."""
        tokens: list[tuple[bytes, bytes]] = []
        for name, value, new in zip(_NAMES, values, self._named, strict=True):
            for old in (name + value, name + b" " + value):
                _, found, rest = data.partition(old)
                # The character behind belongs to the pattern: 12 is not the head of 123 or 12.5.
                behind = rest[:1]
                if found and behind in _BEHIND and old not in rest:
                    tokens.append((old + behind, new + behind))
                    break
            else:
                return None
        return tuple(tokens)

    def _patched_form(self, form: Form) -> tuple[bytes, bytes, bytes] | None:
        """What stands before, between and behind what a run varies; None where the three values cannot be replaced there."""
        # No JSON holds this byte.
        whole = form.before + b"\0" + form.inner + b"\0" + form.after
        patched = self._replaced([whole])
        if patched is None:
            return None
        first, inner, last = patched.split(b"\0")
        # What stands between text and padding is written as it came; the three values seldom stand there.
        return (first, last + first, last) if inner == form.inner else None

    def _patched(self, run: list[bytes]) -> bytes:
        # None: spaced in another way, or the same value stands in a nested object too.
        return self._replaced(run) or self._one_by_one(run)

    def _one_by_one(self, payloads: Sequence[bytes]) -> bytes:
        return b"".join([b"data: " + self._rewritten(data) + b"\n\n" for data in payloads])

    def _replaced(self, run: list[bytes]) -> bytes | None:
        """The frames of a run with the three values replaced; None where they do not stand once in each."""
        tokens = self._tokens
        if tokens is None:
            return None
        joined = b"data: " + b"\n\ndata: ".join(run) + b"\n\n"
        size = len(run)
        for old, new in tokens:
            if joined.count(old) != size:
                return None
            joined = joined.replace(old, new)
        return joined

    def _rewritten(self, data: bytes) -> bytes:
        top = _decode_top(data)
        head = self._head
        top |= {name: msgspec.Raw(_encode(head[name])) for name in ("id", "created", "model")}
        top.setdefault("object", msgspec.Raw(b'"chat.completion.chunk"'))
        return _encode(top)
