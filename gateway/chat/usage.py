"""Token counts: read from anything an upstream sends, summed over rounds."""

from __future__ import annotations

from typing import Any

import msgspec

# No conversation has as many; an upstream that says so would overflow what sums and databases hold.
_MOST_TOKENS = 2**40


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one answer, or of several added up.

    `cached_tokens` are part of `prompt_tokens`; `reasoning_tokens` are part of `completion_tokens`.
    `estimated` says that an upstream gave no figures and these are the gateway's own estimate.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

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
        )

    def as_openai(self) -> dict[str, Any]:
        """The `usage` object of OpenAI's chat completion schema."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


class _Details(msgspec.Struct):
    cached_tokens: float | None = None
    reasoning_tokens: float | None = None


class WireUsage(msgspec.Struct):
    """`usage` as upstreams send it: any count may be missing, null or a float."""

    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None

    def usage(self) -> Usage:
        """The same as whole numbers, never negative."""
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        return Usage(
            _count(self.prompt_tokens),
            _count(self.completion_tokens),
            _count(prompt.cached_tokens) if prompt else 0,
            _count(completion.reasoning_tokens) if completion else 0,
        )


def _count(value: float | None) -> int:
    return min(max(0, int(value)), _MOST_TOKENS) if value else 0
