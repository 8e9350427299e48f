"""What a model writes in the ReAct protocol, taken apart while it comes: text, thoughts and tool calls.

Pure. However the text is cut, the same comes out. Only what may be protocol is held back, up to where that is clear.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from gateway.chat.blocks import ToolCall
from gateway.chat.react_calls import Tools, is_open, read_actions
from gateway.chat.react_labels import Label, begun_inside, input_inside, label_inside, label_of, line_labels

_FENCE = re.compile(r"[ \t]*`{3}\w{0,12}[ \t]*")
_FENCE_BEGUN = re.compile(r"[ \t]*`{1,3}\w{0,12}[ \t]*")
_THINK: Final = "<think>"
_THOUGHT: Final = "</think>"
_FENCE_MARK: Final = "```"
# A line of the answer's own lists, quotes and headings.
_LISTED = re.compile(r"[ \t]*[-*>#]+[ \t]")
# An observation a model made up, in the midst of an answer: only in exactly these words.
_OBSERVATION: Final = "Observation"
_LONGEST_LABEL: Final = 64


class Said(NamedTuple):
    """A piece of an answer: text, a thought, or a call."""

    kind: Literal["text", "thought", "call"]
    text: str = ""
    call: ToolCall | None = None


class ReactReader:
    """Reads one answer.

    Args:
        tools: what was offered.
        new_id: makes a call id.
        most_calls: how many actions of one answer count; 0 where it may call nothing.

    Attributes:
        over: whether nothing that still comes counts: the model goes on alone, with observations it makes up.
        called: whether a call was read.
        ended_itself: whether it was over before the model's answer was.
    """

    def __init__(self, tools: Tools, new_id: Callable[[], str], *, most_calls: int) -> None:
        self.over = False
        self.called = False
        self.ended_itself = False
        self._tools = tools
        self._new_id = new_id
        self._most_calls = most_calls
        self._mode: Literal["begin", "think", "text", "thought", "final", "action"] = "begin"
        self._rest = ""
        self._line_begins = True
        # The last character of this line that was gone over.
        self._before = ""
        # White space that shows only if something follows it in the same part.
        self._held = ""
        self._part_begins = True
        self._labelled = False
        self._wrapped = False
        # Within a fence of the final answer everything is the answer's.
        self._quoting = False
        # Behind an action that was none: its input is none either.
        self._idle = False
        self._has_text = False
        self._thoughts: list[str] = []
        self._out: list[Said] = []

    def feed(self, text: str) -> list[Said]:
        """Take in more of the answer; what of it is clear by now."""
        if not self.over and text:
            searched = len(self._rest) if self._mode == "action" else 0
            self._rest += text
            self._read(searched, whole=False)
        return self._taken()

    def close(self) -> list[Said]:
        """The answer is over: what was held back."""
        self.ended_itself = self.over
        if not self.over:
            self._read(len(self._rest), whole=True)
        if self._mode == "action":
            self._act()
        elif self._held and not self._labelled:
            self._out.append(Said("text", self._held))
        self.over = True
        if not self._has_text and not self.called and self._thoughts:
            # It has thought aloud and said nothing else: that is its answer.
            self._out.append(Said("text", "".join(self._thoughts)))
        return self._taken()

    def _taken(self) -> list[Said]:
        out, self._out = self._out, []
        return out

    def _read(self, searched: int, *, whole: bool) -> None:
        while not self.over and (self._rest or whole):
            before = (self._mode, self._rest, self._line_begins)
            match self._mode:
                case "begin":
                    self._begin(whole=whole)
                case "think":
                    self._think(whole=whole)
                case "action":
                    self._wait_for_end(searched)
                    return
                case _ if self._line_begins:
                    self._begin_line(whole=whole)
                case _:
                    self._go_on(whole=whole)
            if before == (self._mode, self._rest, self._line_begins):
                return

    def _begin(self, *, whole: bool) -> None:
        text = self._rest.lstrip()
        if text.startswith(_THINK):
            self._mode, self._rest, self._labelled = "think", text[len(_THINK) :], True
        elif whole or not _THINK.startswith(text):
            self._mode = "text"

    def _think(self, *, whole: bool) -> None:
        end = self._rest.find(_THOUGHT)
        if end >= 0:
            self._say("thought", self._rest[:end])
            self._rest = self._rest[end + len(_THOUGHT) :]
            self._enter("text")
            return
        cut = len(self._rest)
        if not whole:
            cut = next((at for at in range(max(0, cut - 7), cut) if _THOUGHT.startswith(self._rest[at:])), cut)
        self._say("thought", self._rest[:cut])
        self._rest = self._rest[cut:]

    def _begin_line(self, *, whole: bool) -> None:
        """Decide whether a line is protocol, if enough of it is there."""
        end = self._rest.find("\n")
        line = self._rest if end < 0 else self._rest[:end]
        line_is_whole = whole or end >= 0
        if self._mode == "final" and not self._wrapped and (quoted := self._quoted(line, line_is_whole)) is not False:
            self._line_begins = quoted is None
            return
        if self._mode == "text" and (fence := self._fence(line, end, whole=whole)) is not None:
            self._rest = self._rest if fence == "maybe" else self._rest[end + 1 :]
            self._wrapped = self._wrapped or fence == "label"
            return
        if self._wrapped and _FENCE_BEGUN.fullmatch(line):
            # The end of a fence around the whole answer, if nothing follows it.
            if line_is_whole:
                self._held += line
                self._rest, self._line_begins = self._rest[len(line) :], False
            return
        found = label_of(line, whole=line_is_whole)
        if found == "maybe":
            return
        if found is not None and self._mode == "final" and _LISTED.match(line):
            found = None
        if found is None or (decided := self._labels(found, end, whole=whole)) is False:
            self._line_begins = False
            self._idle = self._idle and line_is_whole and not line.strip()
        elif decided is None:
            return

    def _quoted(self, line: str, line_is_whole: bool) -> bool | None:
        """Whether a line of the final answer stands in a fence, or is its mark; None where that is not clear yet."""
        text = line.lstrip(" \t")
        if not line_is_whole and _FENCE_MARK.startswith(text):
            return None
        is_mark = text.startswith(_FENCE_MARK)
        quoted = self._quoting or is_mark
        self._quoting = self._quoting is not is_mark
        return quoted

    def _fence(self, line: str, end: int, *, whole: bool) -> Literal["maybe", "label"] | None:
        """Whether a line opens a fence around the protocol itself."""
        if end < 0:
            return "maybe" if not whole and _FENCE_BEGUN.fullmatch(line) else None
        if not _FENCE.fullmatch(line):
            return None
        next_end = self._rest.find("\n", end + 1)
        following = self._rest[end + 1 :] if next_end < 0 else self._rest[end + 1 : next_end]
        found = label_of(following, whole=whole or next_end >= 0)
        if found == "maybe" or (not following and next_end < 0 and not whole):
            return "maybe"
        return "label" if found is not None and found.kind in ("thought", "action", "final") else None

    def _labels(self, found: Label, end: int, *, whole: bool) -> bool | None:
        """Act on a label at the beginning of a line; False where it is text, None where more has to come."""
        if self._idle and found.kind in ("input", "observation"):
            if end < 0 and not whole:
                return None
            self._rest = "" if end < 0 else self._rest[end + 1 :]
            return True
        self._idle = False
        if found.kind == "observation":
            if self._mode == "thought" or self._rest.startswith(_OBSERVATION):
                self.over = True
                return True
            return False
        if found.kind == "action":
            return self._action(found.end, end, whole=whole)
        if found.kind == "input":
            return False
        if self._mode == "final":
            # Whatever a model adds to its final answer is not for the client.
            self.over = found.kind == "thought"
            return self.over
        self._rest = self._rest[found.end :]
        self._enter("thought" if found.kind == "thought" else "final", inside=True)
        return True

    def _action(self, at: int, end: int, *, whole: bool) -> bool | None:
        """Whether `Action:` is an action: by its name, or because an input follows. None: more has to come."""
        if end < 0 and not whole:
            return None
        header = self._rest[at:] if end < 0 else self._rest[at:end]
        following = "" if end < 0 else self._rest[end + 1 :].lstrip()
        if not header.strip():
            if not following:
                return None if not whole else False
            break_at = following.find("\n")
            if break_at < 0 and not whole:
                return None
            header = following if break_at < 0 else following[:break_at]
            following = "" if break_at < 0 else following[break_at + 1 :].lstrip()
        elif self._tools.is_none(header):
            self._rest = "" if end < 0 else self._rest[end + 1 :]
            self._labelled = self._idle = True
            return True
        if header.lstrip().startswith("`" * 3):
            if not following and not whole:
                return None
            certain = following.startswith("{")
        else:
            certain = self._tools.is_certain(header) or _has_input(header)
        if not certain:
            break_at = following.find("\n")
            label = label_of(following if break_at < 0 else following[:break_at], whole=whole or break_at >= 0)
            if label == "maybe" or (not following and not whole):
                return None
            certain = label is not None and label.kind == "input"
        if not certain:
            return False
        if self._mode == "final":
            self.over = True
        else:
            self._mode, self._labelled = "action", True
        return True

    def _go_on(self, *, whole: bool) -> None:
        """More of a line that is no protocol; a thought may end within it."""
        end = self._rest.find("\n")
        line = self._rest if end < 0 else self._rest[: end + 1]
        kind: Literal["text", "thought"] = "thought" if self._mode == "thought" else "text"
        if kind == "thought":
            found = self._end_of_thought(line, line_is_whole=whole or end >= 0)
            if found == "maybe" or isinstance(found, Label):
                return
            line = line[:found]
        self._say(kind, line)
        self._before = line[-1:] or self._before
        self._rest = self._rest[len(line) :]
        self._line_begins = end >= 0

    def _end_of_thought(self, line: str, *, line_is_whole: bool) -> Label | Literal["maybe"] | int:
        """Go over to what ends a thought within its line; else how much of the line is surely thought."""
        # What stands before decides whether a word begins here.
        text, shift = self._before + line, len(self._before)
        at = shift
        while (found := label_inside(text, at)) is not None:
            behind = text[found.end :]
            is_final = found.kind == "final"
            if is_final or not line_is_whole or self._tools.is_certain(behind) or _has_input(behind):
                self._say("thought", text[shift : found.start])
                self._rest = self._rest[found.start - shift :]
                if is_final:
                    self._rest = self._rest[found.end - found.start :]
                    self._enter("final", inside=True)
                elif line_is_whole:
                    self._mode, self._labelled = "action", True
                else:
                    self._before = text[found.start - 1 : found.start] or self._before
                    return "maybe"
                return found
            at = found.end
        return len(line) if line_is_whole else begun_inside(text) - shift

    def _wait_for_end(self, searched: int) -> None:
        """Of actions everything is needed; an observation that is made up ends them."""
        for label in line_labels(self._rest, self._rest.rfind("\n", 0, max(0, searched - _LONGEST_LABEL)) + 1):
            if label.kind == "observation" and not is_open(self._rest[: label.start]):
                self._rest = self._rest[: label.start]
                self.over = True
                return

    def _act(self) -> None:
        read = read_actions(self._rest, self._tools)
        if not read:
            self._labelled = False
            self._say("text", self._rest)
        # The first action decides: one that is an answer ends it, one that is a call comes first.
        if read and read[0].name is None:
            self._enter("final")
            self._say("text", read[0].arguments)
        for action in [each for each in read if each.name is not None][: self._most_calls]:
            if read[0].name is None:
                break
            assert action.name is not None
            call = ToolCall(self._new_id(), action.name, action.arguments, action.custom)
            self.called = True
            self._out.append(Said("call", call=call))
        self._rest = ""

    def _enter(self, mode: Literal["text", "thought", "final"], *, inside: bool = False) -> None:
        """Begin another part of the answer; `inside`: a label stands before it on its line."""
        self._mode = mode
        self._held, self._part_begins = "", True
        self._before = ""
        self._line_begins, self._labelled = not inside, True

    def _say(self, kind: Literal["text", "thought"], text: str) -> None:
        """Emit text; white space at its end waits for what follows, at the beginning of a part it goes."""
        if self._part_begins and self._labelled:
            text = text.lstrip()
        body = text.rstrip()
        if not body:
            self._held += text
            return
        if self._part_begins and (self._has_text if kind == "text" else self._thoughts):
            self._held = ("\n\n" if kind == "text" else "\n") + self._held.lstrip()
        self._part_begins = False
        shown, self._held = self._held + body, text[len(body) :]
        if kind == "text":
            self._has_text = True
        else:
            self._thoughts.append(shown)
        self._out.append(Said(kind, shown))


def _has_input(header: str) -> bool:
    """Whether the input of an action stands on the line of its name."""
    return input_inside(header, 0, len(header)) is not None
