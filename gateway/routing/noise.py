"""What programs add to a user's message: reminders, listings and retrieved passages in tags of their own.

Coding agents and templates put them beside the question. They say much about the program and nothing about where the
question belongs. Pure; knows names of tags, does not know routes.
"""

from __future__ import annotations

import re

_TAGS = (
    "additional_data",
    "attached_files",
    "command-message",
    "command-name",
    "context",
    "context_files",
    "current_file",
    "documents",
    "environment_context",
    "environment_details",
    "file_content",
    "git_status",
    "ide_opened_file",
    "ide_selection",
    "local-command-stdout",
    "open_and_recently_viewed_files",
    "project_layout",
    "system-reminder",
    "user_info",
    "user_instructions",
    "user_rules",
    "workspace_info",
)
_OPENS = re.compile(rf"<({'|'.join(_TAGS)})(?:\s[^<>]*)?>", re.IGNORECASE)
# What stands inside these is the question itself; the tags alone are taken out.
_WRAPS = re.compile(r"</?(?:task|user_query|user_message|question|feedback|answer)>", re.IGNORECASE)

# What is routed on at most (see `text.both_ends`), and tags that are tried in a few milliseconds.
_END_CHARS = 50_000
_MOST_TAGS = 10_000


def without_noise(text: str) -> str:
    """The text with spaces in the place of what programs added, so that positions stay true. Linear in its length.

    A block that is opened and not closed stays: it may be the user's own.
    """
    if "<" not in text:
        return text
    if len(text) > 2 * _END_CHARS and text.count("<") > _MOST_TAGS:
        # Megabytes of markup: only its ends are routed on, and trying each `<` of it would stop everybody.
        return without_noise(text[:_END_CHARS]) + text[_END_CHARS:-_END_CHARS] + without_noise(text[-_END_CHARS:])
    parts: list[str] = []
    unclosed: set[str] = set()
    lowered: str | None = None
    done = position = 0
    while (opened := _OPENS.search(text, position)) is not None:
        position = opened.end()
        tag = opened[1].lower()
        if tag in unclosed:
            continue
        if lowered is None:
            lowered = _lower(text)
        begins = lowered.find(f"</{tag}>", position)
        if begins < 0:
            unclosed.add(tag)
            continue
        position = begins + len(tag) + 3
        parts += [text[done : opened.start()], " " * (position - opened.start())]
        done = position
    parts.append(text[done:])
    return _WRAPS.sub(lambda tag: " " * len(tag[0]), "".join(parts))


def _lower(text: str) -> str:
    """ASCII letters alone are lowered, so that every character stays where it is: `İ`.lower() is two."""
    return text.translate(_LOWERED)


_LOWERED = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
