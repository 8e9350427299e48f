"""What stands within an item of the Responses API: parts of content, outputs of tools, names and arguments.

Pure. Errors name the place in OpenAI's notation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.chat.blocks import Audio, Block, Image, Refusal, Text, Unknown
from gateway.errors import InvalidRequest

Item = dict[str, Any]

_encode = msgspec.json.Encoder().encode


def content_of(item: Item, where: str, role: str) -> list[Block]:
    """A message's content as blocks. Raises `InvalidRequest`, as everything here does."""
    content = item.get("content")
    if isinstance(content, str):
        return [Text(content)] if content or role != "assistant" else []
    if not isinstance(content, list):
        raise InvalidRequest(f"`{where}.content` must be a string or a list of parts.", param=f"{where}.content")
    return [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]


def _part(part: Any, where: str) -> Block:
    if not isinstance(part, dict):
        raise InvalidRequest(f"`{where}` must be an object.", param=where)
    kind = part.get("type")
    match kind:
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return Text(text_of(part, "text", where, empty=True))
        case "refusal":
            return Refusal(text_of(part, "refusal", where, empty=True))
        case "input_image" | "image_url":
            return _image(part, where)
        case "input_audio":
            audio = part.get("input_audio")
            if not isinstance(audio, dict) or not isinstance(audio.get("data"), str):
                raise InvalidRequest(f"`{where}.input_audio.data` must be a string.", param=f"{where}.input_audio")
            return Audio(audio["data"], str(audio.get("format", "")))
        case "input_file":
            return _file(part, where)
    expected = "input_text, input_image, input_file, input_audio, output_text or refusal"
    raise InvalidRequest(f"`{where}.type` is {kind!r}; expected {expected}.", param=f"{where}.type")


def _image(part: Mapping[str, Any], where: str) -> Image:
    url: Any = part.get("image_url")
    detail: Any = part.get("detail")
    if isinstance(url, dict):  # Chat Completions' form
        url, detail = url.get("url"), url.get("detail", detail)
    if not isinstance(url, str) or not url:
        if part.get("file_id"):
            raise InvalidRequest(
                f"`{where}.file_id`: no files are kept here; send the image as `image_url`.", param=f"{where}.file_id"
            )
        raise InvalidRequest(f"`{where}.image_url` must be a string.", param=f"{where}.image_url")
    return Image(url, detail if isinstance(detail, str) else None)


def _file(part: Mapping[str, Any], where: str) -> Unknown:
    for name in ("file_id", "file_url"):
        if part.get(name):
            raise InvalidRequest(
                f"`{where}.{name}`: no files are kept or fetched here; send the file as `file_data`.",
                param=f"{where}.{name}",
            )
    data = text_of(part, "file_data", where)
    named = part.get("filename")
    file = {"file_data": data, **({"filename": named} if isinstance(named, str) else {})}
    return Unknown("file", {"type": "file", "file": file})


def output_of(item: Item, where: str) -> tuple[str, tuple[str, list[Image]]]:
    """A call's id, and what came of it: text, and images apart."""
    call_id = call_id_of(item, where)
    output = item.get("output")
    if isinstance(output, str):
        return call_id, (output, [])
    if isinstance(output, dict):
        kind = output.get("type")
        if kind == "computer_screenshot":
            return call_id, ("(an image)", [_image(output, f"{where}.output")])
        return call_id, (_encode(output).decode(), [])
    if not isinstance(output, list):
        raise InvalidRequest(f"`{where}.output` must be a string or a list of parts.", param=f"{where}.output")
    if item.get("type") == "shell_call_output":
        return call_id, (_encode(output).decode(), [])
    blocks = [_part(part, f"{where}.output[{index}]") for index, part in enumerate(output)]
    for index, block in enumerate(blocks):
        if not isinstance(block, (Text, Image)):
            raise InvalidRequest(
                f"`{where}.output[{index}]` must be text or an image.", param=f"{where}.output[{index}].type"
            )
    texts = [block.text for block in blocks if isinstance(block, Text)]
    images = [block for block in blocks if isinstance(block, Image)]
    return call_id, ("\n".join(texts) or ("(an image)" if images else ""), images)


def call_id_of(item: Item, where: str) -> str:
    """The call that an output belongs to."""
    # Of this kind alone the id is the call's.
    by_id = item.get("type") == "local_shell_call_output" and "call_id" not in item
    return text_of(item, "id" if by_id else "call_id", where)


def space_of(item: Item, where: str) -> str | None:
    """The namespace of a call, or None."""
    space = item.get("namespace")
    if space is not None and not isinstance(space, str):
        raise InvalidRequest(f"`{where}.namespace` must be a string.", param=f"{where}.namespace")
    return space


def arguments_of(item: Item, where: str) -> str:
    """A call's arguments as text, `{}` where there are none."""
    arguments = item.get("arguments")
    if isinstance(arguments, dict):
        return _encode(arguments).decode()
    text = text_of(item, "arguments", where, empty=True)
    return text if text.strip() else "{}"


def text_of(value: Mapping[str, Any], name: str, where: str, *, empty: bool = False) -> str:
    """A field that has to be text."""
    found = value.get(name)
    if not isinstance(found, str):
        raise InvalidRequest(f"`{where}.{name}` must be a string.", param=f"{where}.{name}")
    if not found and not empty:
        raise InvalidRequest(f"`{where}.{name}` is empty.", param=f"{where}.{name}")
    return found
