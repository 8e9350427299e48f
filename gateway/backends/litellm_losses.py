"""What litellm would leave out of a request without a word, refused instead: the client is told which field it was.

Pure. Knows the providers whose protocols are not OpenAI's, as the pinned litellm writes them; a field that litellm itself
refuses is not repeated here. Hints that change no answer's meaning (an image's `detail`, a message's `name`, a function's
`strict`) may be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.errors import UpstreamRefused

_CLAUDE: Final = frozenset({"anthropic", "bedrock"})
_GEMINI: Final = frozenset({"gemini", "vertex_ai", "vertex_ai_beta"})
_TRANSLATED: Final = _CLAUDE | _GEMINI
# Kinds of content that each of them passes on; what else there is of them disappears.
_PARTS: Final = frozenset(
    {"text", "input_text", "output_text", "image_url", "file", "document", "thinking", "redacted_thinking"}
)


def refuse_losses(provider: str, model: str, fields: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what this provider would never hear of.

    Args:
        provider: litellm's name of it.
        model: the name the client knows.
        fields: the request's other fields, those that configuration drops left out.
        messages: in Chat Completions' form.

    Raises:
        UpstreamRefused: with status 400 and the field's name.
    """
    if provider not in _TRANSLATED:
        return
    for param, what in (*_lost_fields(provider, fields), *_lost_of_messages(provider, messages)):
        raise UpstreamRefused(f"The provider of `{model}` has no {what}.", status=400, param=param)


def said_as_text(provider: str, messages: Sequence[dict[str, Any]]) -> None:
    """Write refusals as the text they were: no provider but OpenAI has a word for them."""
    if provider not in _TRANSLATED:
        return
    for message in messages:
        if message.get("role") != "assistant":
            continue
        parts = message.get("content")
        if isinstance(parts, list):
            message["content"] = [
                {"type": "text", "text": part.get("refusal") or ""} if part.get("type") == "refusal" else part
                for part in parts
            ]
        if refusal := message.pop("refusal", None):
            message["content"] = message.get("content") or refusal


def _lost_fields(provider: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "user" in fields and provider != "anthropic":
        yield "user", "parameter `user`"
    metadata = fields.get("metadata")
    if (
        provider == "anthropic"
        and metadata is not None
        and not (isinstance(metadata, dict) and set(metadata) == {"user_id"})
    ):
        yield "metadata", "`metadata` but a `user_id`"
    if provider in _GEMINI and fields.get("parallel_tool_calls") is False:
        yield "parallel_tool_calls", "way to ask for one call at a time"
    form = fields.get("response_format")
    if (
        provider in _CLAUDE
        and isinstance(form, dict)
        and form.get("type") == "json_object"
        and "response_schema" not in form
    ):
        yield "response_format", "`json_object` without a schema; `json_schema` is understood"
    if "stream_options" in fields:
        yield "stream_options", "option of streams but `include_usage`"
    tools = fields.get("tools") or ()
    # Beside functions, Gemini is offered nothing else.
    alone = provider in _GEMINI and not any("function" in tool for tool in tools)
    if provider in _GEMINI and not alone and "web_search_options" in fields:
        yield "web_search_options", "search beside functions"
    for index, tool in enumerate(tools):
        kind = tool.get("type")
        # Anthropic's own tools have names beside their types.
        own = "function" in tool or alone or (provider == "anthropic" and "name" in tool)
        if kind in ("custom", "mcp") or not own:
            yield f"tools[{index}].type", f"tools of the type `{kind}`"


def _lost_of_messages(provider: str, messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.get("audio"):
            yield f"{where}.audio", "memory of what it said aloud"
        for position, call in enumerate(message.get("tool_calls") or ()):
            if call.get("type") == "custom":
                yield f"{where}.tool_calls[{position}].type", "custom tool calls"
        content = message.get("content")
        for position, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type")
            if kind not in _PARTS and not (kind == "input_audio" and provider in _GEMINI):
                yield f"{where}.content[{position}].type", f"content of the type `{kind}`"
