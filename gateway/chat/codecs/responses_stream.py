"""A response as it comes into being: items out of chunks and tool calls, and the typed events that tell of them.

Pure. Knows the order of OpenAI's events and that every number follows the last. What may be seen is decided before; who reads
the frames, and whether they are kept, is decided behind.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.chat.blocks import Message, Reasoning, Refusal, Text
from gateway.chat.chunk import Chunk
from gateway.chat.codecs.responses_answer import (
    INCOMPLETE,
    ended,
    failed,
    logprobs_of,
    refusal_part,
    text_part,
)
from gateway.chat.codecs.responses_thoughts import sealed
from gateway.chat.deltas import CallPiece, CallTracker, calls_of, content_text
from gateway.chat.usage import Usage

_encode = msgspec.json.Encoder().encode
# Deltas are padded to a multiple of this many characters.
_PADDED: Final = 16


class Shown(msgspec.Struct, frozen=True):
    """What of an answer its client wants to see.

    Attributes:
        summary: reasoning as a summary instead of as it is.
        sealed_thoughts: reasoning as `encrypted_content` too.
        logprobs: log probabilities of text.
        obfuscate: padded deltas.
        spaces: namespace and name of tools that are offered under a flat name.
    """

    summary: bool = False
    sealed_thoughts: bool = False
    logprobs: bool = False
    obfuscate: bool = False
    spaces: Mapping[str, tuple[str, str]] = {}


class ResponseWriter:
    """Builds one response.

    Args:
        response: the response object before its answer.
        shown: what its client wants to see.
        new_id: makes a call id where none came.
        told: whether there is anybody to tell: without, items are built and no events.

    Attributes:
        output: the items, as they are so far.
        number: the number of the next event.
        round: which model call what comes belongs to.
    """

    def __init__(
        self, response: Mapping[str, Any], shown: Shown, new_id: Callable[[], str], *, told: bool = True
    ) -> None:
        self.output: list[dict[str, Any]] = []
        self.number = 0
        self.round = 1
        self._response = dict(response)
        self._key = str(response["id"]).removeprefix("resp_")
        self._shown = shown
        self._new_id = new_id
        self._told = told
        self._frames: list[bytes] = []
        # The item that takes words, and the place of its latest part.
        self._open: _Words | None = None
        self._tracker: CallTracker | None = None
        self._calls: dict[int, _Arguments] = {}
        self._own: dict[str, int] = {}
        self._begun = False

    def take(self) -> list[bytes]:
        """The frames made since this was asked last."""
        frames, self._frames = self._frames, []
        return frames

    @property
    def begun(self) -> bool:
        """Whether there is anything to see."""
        return self._begun

    def response(self) -> dict[str, Any]:
        """The response as it is now."""
        return {**self._response, "output": list(self.output)}

    def queued(self) -> None:
        """Say that the response waits."""
        self._response["status"] = "queued"
        self._tell("response.created", response=self.response())
        self._tell("response.queued", response=self.response())
        self._response["status"] = "in_progress"

    def begin(self) -> None:
        """Say that the response has begun, unless that was said."""
        if not self._begun:
            self._begun = True
            if self.number == 0:
                self._tell("response.created", response=self.response())
            self._tell("response.in_progress", response=self.response())

    def begin_round(self, number: int) -> None:
        """What comes belongs to another model call: its words are an item of their own."""
        if number != self.round:
            self._close_words()
            self.round = number

    def feed(self, chunks: Sequence[Chunk]) -> None:
        """Take in visible chunks. Words that arrived together become one delta."""
        for chunk in chunks:
            for choice in chunk.choices:
                delta = choice.delta
                if choice.index or delta is None:
                    continue
                if thought := delta.reasoning_content or delta.reasoning:
                    self.add_thought(thought)
                if delta.content:
                    said = delta.content if isinstance(delta.content, str) else content_text(delta.content)
                    self.add_text(said, _logprobs(chunk) if self._shown.logprobs else ())
                if delta.refusal:
                    self.add_refusal(delta.refusal)
                for call in calls_of(delta):
                    self._tracker = self._tracker or CallTracker(self._new_id)
                    if (piece := self._tracker.add(call)) is not None:
                        self._piece(piece)
        if self._open is not None:
            self._say()

    def whole(self, message: Message, logprobs: Sequence[Any] = (), annotations: Sequence[Any] = ()) -> None:
        """Take in a message at once."""
        for block in message.blocks:
            match block:
                case Reasoning(text=text) if text:
                    self.add_thought(text)
                case Text(text=text) if text:
                    self.add_text(text, logprobs, annotations)
                case Refusal(text=text) if text:
                    self.add_refusal(text)
        for position, call in enumerate(message.tool_calls):
            self._piece(CallPiece(position, True, call.id, call.name, call.arguments, call.custom))
        if self._open is not None:
            self._say()

    def add_text(self, text: str, logprobs: Sequence[Any] = (), annotations: Sequence[Any] = ()) -> None:
        """Take in words of the answer."""
        if text or logprobs:
            self._words("text").add(text, logprobs)
            if annotations and self._open is not None:
                self._open.annotations += annotations

    def add_refusal(self, text: str) -> None:
        """Take in words of a refusal."""
        self._words("refusal").add(text)

    def add_thought(self, text: str) -> None:
        """Take in reasoning."""
        self._words("thought").add(text)

    def own_call(self, call_id: str, label: str, name: str, arguments: str) -> None:
        """A tool of the gateway's own begins to run."""
        self._close_words()
        index = self._new_item(
            "mcp",
            type="mcp_call",
            call_id=call_id,
            server_label=label,
            name=name,
            arguments="",
            approval_request_id=None,
            output=None,
            error=None,
        )
        item = self.output[index]
        self._own[call_id] = index
        self._tell("response.mcp_call.in_progress", output_index=index, item_id=item["id"])
        self._delta("response.mcp_call_arguments.delta", arguments, output_index=index, item_id=item["id"])
        item["arguments"] = arguments
        self._tell("response.mcp_call_arguments.done", output_index=index, item_id=item["id"], arguments=arguments)

    def own_request(self, approval_id: str, label: str, name: str, arguments: str) -> None:
        """A call of a tool of the gateway's own waits for a human."""
        self._close_words()
        self.begin()
        index = len(self.output)
        item = {
            "id": approval_id,
            "type": "mcp_approval_request",
            "server_label": label,
            "name": name,
            "arguments": arguments,
        }
        self.output.append(item)
        self._tell("response.output_item.added", output_index=index, item=item)
        self._tell("response.output_item.done", output_index=index, item=item)

    def own_result(self, call_id: str, content: str, error: str | None) -> None:
        """It has run; `content` is what the model sees of it. Nothing, where it never began."""
        index = self._own.pop(call_id, None)
        if index is None:
            return
        item = self.output[index]
        item["status"] = "completed" if error is None else "failed"
        if error is None:
            item["output"] = content
        else:
            item["error"] = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": error}]}
            item["output"] = content
        word = "completed" if error is None else "failed"
        self._tell(f"response.mcp_call.{word}", output_index=index, item_id=item["id"])
        self._tell("response.output_item.done", output_index=index, item=item)

    def end(self, finish_reason: str | None, usage: Usage, now: int) -> dict[str, Any]:
        """Close what is open and say how it ended; the response at its end."""
        self.begin()
        self._close(cut=(finish_reason or "") in INCOMPLETE)
        response = ended(self._response, self.output, finish_reason, usage, now)
        self._tell(f"response.{response['status']}", response=response)
        return response

    def fail(self, status: int, message: str, code: str | None, param: str | None) -> dict[str, Any]:
        """Say that it broke off; the response as it is then. Numbers go on, and nothing comes behind it."""
        self.begin()
        self._close(cut=True)
        response = failed(self._response, self.output, status, message)
        self._tell("error", code=code, message=message, param=param)
        self._tell("response.failed", response=response)
        return response

    def break_off(self) -> list[dict[str, Any]]:
        """Close what is open without a word of how it ended; the items."""
        self._close(cut=True)
        return self.output

    def resume(self, output: Sequence[dict[str, Any]], number: int, *, begun: bool) -> None:
        """Go on where another process was cut off: with its items, and the numbers behind its last.

        Items that are not complete stay so; whoever follows is told.
        """
        self.output = [dict(item) for item in output]
        self.number = number
        self._begun = begun
        for index, item in enumerate(self.output):
            if item.pop("untold", False):
                self._tell("response.output_item.done", output_index=index, item=item)

    def retell(self, index: int, item: Mapping[str, Any]) -> None:
        """Tell of an item that is complete."""
        started = {"status": "in_progress"} if "status" in item else {}
        blank = {**item, **started, **{n: [] for n in ("content", "summary") if n in item}}
        where: dict[str, Any] = {"output_index": index, "item_id": item["id"]}
        self._tell("response.output_item.added", output_index=index, item=blank)
        for place, part in enumerate(item.get("content") or () if item["type"] == "message" else ()):
            spot = {**where, "content_index": place}
            text = part["type"] == "output_text"
            empty = text_part("") if text else refusal_part("")
            self._tell("response.content_part.added", **spot, part=empty)
            if text:
                logprobs = part.get("logprobs", [])
                self._tell("response.output_text.delta", **spot, delta=part["text"], logprobs=logprobs)
                self._tell("response.output_text.done", **spot, text=part["text"], logprobs=logprobs)
            else:
                self._tell("response.refusal.delta", **spot, delta=part["refusal"])
                self._tell("response.refusal.done", **spot, refusal=part["refusal"])
            self._tell("response.content_part.done", **spot, part=part)
        if item["type"] == "function_call":
            said = item["arguments"]
            self._tell("response.function_call_arguments.delta", **where, delta=said)
            self._tell("response.function_call_arguments.done", **where, name=item["name"], arguments=said)
        self._tell("response.output_item.done", output_index=index, item=item)

    def last_instead(self, response: Mapping[str, Any]) -> list[bytes]:
        """The last event with another response, in the place of one that nobody has seen."""
        self.number -= 1
        self.last(response)
        return self.take()

    def last(self, response: Mapping[str, Any]) -> None:
        """Tell how a response ended."""
        status = response["status"]
        if status in ("completed", "incomplete", "failed"):
            self._tell(f"response.{status}", response=response)

    def _words(self, kind: str) -> _Words:
        if self._open is not None and self._open.kind == kind:
            return self._open
        if self._open is not None and {self._open.kind, kind} == {"text", "refusal"}:
            # Both are parts of one message.
            self._close_part()
            index, parts = self._open.index, len(self.output[self._open.index]["content"])
            return self._open_part(kind, index, parts)
        self._close_words()
        if kind == "thought":
            index = self._new_item("rs", type="reasoning", summary=[], content=[], encrypted_content=None)
            self._thought_begins(index)
            self._open = _Words(kind, index, 0)
            return self._open
        index = self._new_item("msg", type="message", role="assistant", content=[])
        return self._open_part(kind, index, 0)

    def _open_part(self, kind: str, index: int, place: int) -> _Words:
        item = self.output[index]
        part = text_part("") if kind == "text" else refusal_part("")
        self._tell(
            "response.content_part.added", output_index=index, content_index=place, item_id=item["id"], part=part
        )
        self._open = _Words(kind, index, place)
        return self._open

    def _thought_begins(self, index: int) -> None:
        if self._shown.summary:
            part = {"type": "summary_text", "text": ""}
            self._tell(
                "response.reasoning_summary_part.added",
                output_index=index,
                summary_index=0,
                item_id=self.output[index]["id"],
                part=part,
            )

    def _say(self) -> None:
        """Tell of the words that have come since the last delta."""
        words = self._open
        if words is None or not (words.fresh or words.fresh_logprobs):
            return
        delta, logprobs = words.said()
        where: dict[str, Any] = {"output_index": words.index, "item_id": self.output[words.index]["id"]}
        if words.kind == "text":
            self._delta("response.output_text.delta", delta, **where, content_index=words.place, logprobs=logprobs)
        elif words.kind == "refusal":
            self._delta("response.refusal.delta", delta, **where, content_index=words.place)
        elif self._shown.summary:
            self._delta("response.reasoning_summary_text.delta", delta, **where, summary_index=0)
        else:
            self._delta("response.reasoning_text.delta", delta, **where, content_index=0)

    def _close_part(self) -> None:
        self._say()
        words = self._open
        assert words is not None
        item = self.output[words.index]
        where: dict[str, Any] = {"output_index": words.index, "item_id": item["id"]}
        text = "".join(words.all)
        if words.kind == "thought":
            self._close_thought(item, text, where)
            return
        where["content_index"] = words.place
        if words.kind == "text":
            part = text_part(text, words.logprobs, words.annotations)
            self._tell("response.output_text.done", **where, text=text, logprobs=words.logprobs)
        else:
            part = refusal_part(text)
            self._tell("response.refusal.done", **where, refusal=text)
        item["content"].append(part)
        self._tell("response.content_part.done", **where, part=part)

    def _close_thought(self, item: dict[str, Any], text: str, where: Mapping[str, Any]) -> None:
        if self._shown.summary:
            part = {"type": "summary_text", "text": text}
            self._tell("response.reasoning_summary_text.done", **where, summary_index=0, text=text)
            self._tell("response.reasoning_summary_part.done", **where, summary_index=0, part=part)
            item["summary"].append(part)
        else:
            self._tell("response.reasoning_text.done", **where, content_index=0, text=text)
            item["content"].append({"type": "reasoning_text", "text": text})
        if self._shown.sealed_thoughts:
            item["encrypted_content"] = sealed(text)

    def _close_words(self, *, cut: bool = False) -> None:
        if self._open is None:
            return
        self._close_part()
        index = self._open.index
        self._open = None
        self._item_done(index, cut=cut)

    def _close(self, *, cut: bool) -> None:
        self._close_words(cut=cut)
        for call in self._calls.values():
            item = self.output[call.index]
            text = "".join(call.text)
            where: dict[str, Any] = {"output_index": call.index, "item_id": item["id"]}
            if item["type"] == "function_call":
                # Arguments that strict clients can read, where the model wrote none.
                if not text.strip() and not cut:
                    text = "{}"
                    self._delta("response.function_call_arguments.delta", text, **where)
                item["arguments"] = text
                self._tell("response.function_call_arguments.done", **where, name=item["name"], arguments=text)
            else:
                item["input"] = text
                self._tell("response.custom_tool_call_input.done", **where, input=text)
            self._item_done(call.index, cut=cut)
        self._calls.clear()
        self._tracker = None
        for index in self._own.values():
            self._item_done(index, cut=True)
        self._own.clear()

    def _item_done(self, index: int, *, cut: bool) -> None:
        item = self.output[index]
        item["status"] = "incomplete" if cut else "completed"
        self._tell("response.output_item.done", output_index=index, item=item)

    def _piece(self, piece: CallPiece) -> None:
        call = self._calls.get(piece.position)
        if call is None:
            self._close_words()
            call = _Arguments(self._new_call(piece))
            self._calls[piece.position] = call
        if piece.fragment:
            call.text.append(piece.fragment)
            where: dict[str, Any] = {"output_index": call.index, "item_id": self.output[call.index]["id"]}
            kind = "custom_tool_call_input" if piece.custom else "function_call_arguments"
            self._delta(f"response.{kind}.delta", piece.fragment, **where)

    def _new_call(self, piece: CallPiece) -> int:
        space = self._shown.spaces.get(piece.name)
        named = {"name": piece.name} if space is None else {"namespace": space[0], "name": space[1]}
        if piece.custom:
            return self._new_item("ctc", type="custom_tool_call", call_id=piece.id, **named, input="")
        return self._new_item("fc", type="function_call", call_id=piece.id, **named, arguments="")

    def _new_item(self, prefix: str, **fields: Any) -> int:
        self.begin()
        index = len(self.output)
        item = {"id": f"{prefix}_{self._key}_{self.round}_{index}", "status": "in_progress", **fields}
        self.output.append(item)
        self._tell("response.output_item.added", output_index=index, item=item)
        return index

    def _delta(self, kind: str, delta: str, **fields: Any) -> None:
        if self._shown.obfuscate:
            padding = random.choices(string.ascii_letters, k=_PADDED - len(delta) % _PADDED)  # noqa: S311 - hides a length
            fields["obfuscation"] = "".join(padding)
        self._tell(kind, delta=delta, **fields)

    def _tell(self, kind: str, **fields: Any) -> None:
        if not self._told:
            return
        event = {"type": kind, "sequence_number": self.number, **fields}
        self.number += 1
        self._frames.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(event)))


def told_again(response: Mapping[str, Any]) -> list[bytes]:
    """The events of a response that is over, as they might have come."""
    writer = ResponseWriter({**response, "output": [], "status": "in_progress", "usage": None}, Shown(), str)
    writer.begin()
    for index, item in enumerate(response["output"]):
        writer.retell(index, item)
    writer.last(response)
    return writer.take()


class _Words:
    """Words of one kind that are being said."""

    __slots__ = ("all", "annotations", "fresh", "fresh_logprobs", "index", "kind", "logprobs", "place")

    def __init__(self, kind: str, index: int, place: int) -> None:
        self.kind = kind
        self.index = index
        self.place = place
        self.all: list[str] = []
        self.fresh: list[str] = []
        self.logprobs: list[Any] = []
        self.fresh_logprobs: list[Any] = []
        self.annotations: list[Any] = []

    def add(self, text: str, logprobs: Sequence[Any] = ()) -> None:
        """Take in some more."""
        self.fresh.append(text)
        self.fresh_logprobs += logprobs

    def said(self) -> tuple[str, list[Any]]:
        """What has come since this was asked last."""
        delta, logprobs = "".join(self.fresh), self.fresh_logprobs
        self.all.append(delta)
        self.logprobs += logprobs
        self.fresh, self.fresh_logprobs = [], []
        return delta, logprobs


class _Arguments:
    __slots__ = ("index", "text")

    def __init__(self, index: int) -> None:
        self.index = index
        self.text: list[str] = []


def _logprobs(chunk: Chunk) -> list[dict[str, Any]]:
    all_choices = [msgspec.json.decode(one.data).get("choices") for one in chunk.singles]
    return [each for choices in all_choices if choices for each in logprobs_of(choices[0].get("logprobs"))]
