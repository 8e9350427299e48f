"""What an MCP server's answer to a call becomes for the model.

Pure, save for the SDK's types. A result that the server calls an error never looks like a success, whatever else is in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from mcp import types

from gateway.tools.outcome import CallFailed
from gateway.tools.pictures import Picture, without_pictures

# JSON in a longer text stays a text: reading it would hold up the event loop.
_MAX_READ_CHARS: Final = 65_536


def value_of(result: types.CallToolResult) -> Any:
    """The result as a JSON value: structured content where there is some, else the texts and what stands for other parts.

    Raises:
        CallFailed: the server says that the call failed; the message is its own.
    """
    parts = [_part(block) for block in result.content]
    if result.is_error:
        parts, _ = without_pictures(parts, shown=False)
        texts = [part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts]
        said = "\n".join(text for text in texts if text.strip())
        if not said and result.structured_content is not None:
            said = json.dumps(result.structured_content, ensure_ascii=False)
        raise CallFailed(said or "the tool failed and did not say why")
    structured = result.structured_content
    if structured is None:
        return _joined(parts)
    # Servers repeat structured content as text for clients that do not know it; other parts are not in it.
    others = [part for part in parts if not isinstance(part, str)]
    return {"result": structured, "parts": others} if others else structured


def _joined(parts: Sequence[Any]) -> Any:
    if not parts:
        return None
    if all(isinstance(part, str) for part in parts):
        return _read(parts[0]) if len(parts) == 1 else "\n".join(parts)
    return parts[0] if len(parts) == 1 else list(parts)


def _read(text: str) -> Any:
    """A text that is a JSON object or list as its value: it can be shortened without being broken then."""
    if len(text) <= _MAX_READ_CHARS and text.lstrip()[:1] in {"{", "["}:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _part(block: types.ContentBlock) -> Any:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent():
            return Picture(block.mime_type, block.data)
        case types.AudioContent():
            return {"type": block.type, "mime_type": block.mime_type, "note": _unseen(block.type, block.data)}
        case types.ResourceLink():
            link = {"type": "resource_link", "uri": str(block.uri), "name": block.name, "mime_type": block.mime_type}
            return {key: value for key, value in {**link, "description": block.description}.items() if value}
        case types.EmbeddedResource():
            return _resource(block.resource)


def _resource(resource: types.TextResourceContents | types.BlobResourceContents) -> Any:
    about = {"type": "resource", "uri": str(resource.uri)}
    if resource.mime_type:
        about["mime_type"] = resource.mime_type
    if isinstance(resource, types.TextResourceContents):
        return {**about, "text": resource.text}
    return {**about, "note": _unseen("file", resource.blob)}


def _unseen(kind: str, encoded: str) -> str:
    return f"the tool returned this {kind} ({len(encoded) * 3 // 4} bytes); only its description is shown here"
