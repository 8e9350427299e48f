"""Token counts: read from anything an upstream sends, summed over rounds."""

from __future__ import annotations

from typing import Any

import msgspec

# No conversation has as many; an upstream that says so would overflow what sums and databases hold.
_MOST_TOKENS = 2**40


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one answer, or of several added up.

    `cached_tokens`, `cache_write_tokens` and `prompt_audio_tokens` are part of `prompt_tokens`; the other details are part
    of `completion_tokens`.
    `estimated` says that an upstream gave no figures and these are the gateway's own estimate.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    cache_write_tokens: int = 0
    prompt_audio_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        """Add field by field; estimated if either is."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
            self.cache_write_tokens + other.cache_write_tokens,
            self.prompt_audio_tokens + other.prompt_audio_tokens,
            self.audio_tokens + other.audio_tokens,
            self.accepted_prediction_tokens + other.accepted_prediction_tokens,
            self.rejected_prediction_tokens + other.rejected_prediction_tokens,
        )

    def as_openai(self) -> dict[str, Any]:
        """The `usage` object of OpenAI's chat completion schema."""
        prompt = {"cached_tokens": self.cached_tokens, "audio_tokens": self.prompt_audio_tokens}
        if self.cache_write_tokens:
            prompt["cache_write_tokens"] = self.cache_write_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "prompt_tokens_details": prompt,
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "audio_tokens": self.audio_tokens,
                "accepted_prediction_tokens": self.accepted_prediction_tokens,
                "rejected_prediction_tokens": self.rejected_prediction_tokens,
            },
        }


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | float | None = None
    cache_write_tokens: int | float | None = 0
    reasoning_tokens: int | float | None = 0
    audio_tokens: int | float | None = 0
    accepted_prediction_tokens: int | float | None = 0
    rejected_prediction_tokens: int | float | None = 0


_NO_DETAILS = _Details()


class WireUsage(msgspec.Struct, gc=False):
    """`usage` as upstreams send it: any count may be missing, null or a float."""

    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    # What some servers say instead.
    input_tokens: int | float | None = None
    output_tokens: int | float | None = None
    cached_tokens: int | float | None = None
    total_tokens: int | float | None = None

    @property
    def blank(self) -> bool:
        """Whether it counts nothing: an estimate serves better. No answer takes no tokens at all, whatever servers say."""
        return not (self.total_tokens or self._prompt or self._completion)

    @property
    def _prompt(self) -> int | float | None:
        return self.input_tokens if self.prompt_tokens is None else self.prompt_tokens

    @property
    def _completion(self) -> int | float | None:
        return self.output_tokens if self.completion_tokens is None else self.completion_tokens

    def usage(self) -> Usage:
        """The same as whole numbers, never negative."""
        asked, answered = self.prompt_tokens, self.completion_tokens
        if answered is None:
            answered = self.output_tokens
        if asked is None and (asked := self.input_tokens) is None:
            asked = (self.total_tokens or 0) - (answered or 0)
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        if prompt is None and completion is None and self.cached_tokens is None:
            return Usage(_count(asked), _count(answered))
        prompt, completion = prompt or _NO_DETAILS, completion or _NO_DETAILS
        cached = self.cached_tokens if prompt.cached_tokens is None else prompt.cached_tokens
        return Usage(
            _count(asked),
            _count(answered),
            _count(cached),
            _count(completion.reasoning_tokens),
            False,
            _count(prompt.cache_write_tokens),
            _count(prompt.audio_tokens),
            _count(completion.audio_tokens),
            _count(completion.accepted_prediction_tokens),
            _count(completion.rejected_prediction_tokens),
        )


def _count(value: int | float | None) -> int:  # noqa: PYI041 - told apart below
    """A count as a whole number that can be added up: as it is where it is one, which most servers' are."""
    if type(value) is int and 0 <= value <= _MOST_TOKENS:
        return value
    return min(max(0, int(value)), _MOST_TOKENS) if value else 0
