"""The response object and its items, as OpenAI's schema has them.

Pure. Knows every field that has to be there; does not know how an answer came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.chat.usage import Usage

# Why an answer is not whole, by its finish reason.
INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response_object(
    response_id: str, created: int, model: str, echo: Mapping[str, Any], *, background: bool = False
) -> dict[str, Any]:
    """A response that has not begun to answer."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": background,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        **echo,
    }


def unended(response: Mapping[str, Any], status: str) -> dict[str, Any]:
    """A response that waits, or is made elsewhere: what an earlier end said of it does not hold."""
    nothing: dict[str, Any] = {"completed_at": None, "error": None, "incomplete_details": None, "output": []}
    return {**response, "status": status, **nothing}


def ended(
    response: Mapping[str, Any], output: Sequence[Any], finish_reason: str | None, usage: Usage, now: int
) -> dict[str, Any]:
    """The response at its end: completed, or incomplete where the answer was cut."""
    why = INCOMPLETE.get(finish_reason or "")
    return {
        **response,
        "status": "completed" if why is None else "incomplete",
        "completed_at": now if why is None else None,
        "incomplete_details": None if why is None else {"reason": why},
        "output": list(output),
        "usage": usage_object(usage),
    }


def failed(response: Mapping[str, Any], output: Sequence[Any], status: int, message: str) -> dict[str, Any]:
    """The response as it broke off; `status` is the HTTP status the error would have had."""
    code = "rate_limit_exceeded" if status == 429 else "invalid_prompt" if status == 400 else "server_error"
    return {**response, "status": "failed", "output": list(output), "error": {"code": code, "message": message}}


def cancelled(response: Mapping[str, Any], output: Sequence[Any]) -> dict[str, Any]:
    """The response that somebody gave up."""
    return {**response, "status": "cancelled", "output": list(output)}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def text_part(text: str, logprobs: Sequence[Any] = (), annotations: Sequence[Any] = ()) -> dict[str, Any]:
    """A piece of an answer in words."""
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": list(logprobs)}


def refusal_part(text: str) -> dict[str, Any]:
    """The model's words for not answering."""
    return {"type": "refusal", "refusal": text}


def logprobs_of(logprobs: Any) -> list[dict[str, Any]]:
    """Chat Completions' log probabilities in this API's form, every field present."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list):
        return []
    return [
        {**_one(each), "top_logprobs": [_one(top) for top in each.get("top_logprobs") or () if isinstance(top, dict)]}
        for each in content
        if isinstance(each, dict)
    ]


def _one(each: Mapping[str, Any]) -> dict[str, Any]:
    token = str(each.get("token", ""))
    probability = each.get("logprob")
    said = each.get("bytes")
    return {
        "token": token,
        "logprob": probability if isinstance(probability, (int, float)) else 0.0,
        "bytes": said if isinstance(said, list) else list(token.encode("utf-8", "surrogatepass")),
    }
