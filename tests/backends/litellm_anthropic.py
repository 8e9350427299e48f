"""Anthropic's Messages API, by the types of the `anthropic` package."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming

from gateway.config.models import BackendConfig
from tests.backends import anthropic_wire as wire
from tests.backends.litellm_dialect import Asked, Said
from tests.backends.sdk_types import reader
from tests.replies import Reply, Step, stream
from tests.upstream import UpstreamRequest

_KEY = "sk-ant-very-secret"
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


class AnthropicDialect:
    """Claude at Anthropic itself."""

    name = "anthropic"
    secrets = (_KEY,)
    overloaded = 529
    too_long = "prompt is too long: 210000 tokens > 200000 maximum"

    def __init__(self) -> None:
        self._whole = reader(MessageCreateParamsNonStreaming)
        self._streamed = reader(MessageCreateParamsStreaming)

    def config(self, port: int, **settings: Any) -> BackendConfig:
        given = {"model": "claude-sonnet-4-5", "api_key": _KEY, "base_url": f"http://127.0.0.1:{port}"}
        return BackendConfig(provider="anthropic", **{**given, **settings})

    def read(self, request: UpstreamRequest) -> Asked:
        assert (request.method, request.path) == ("POST", "/v1/messages")
        assert request.headers["x-api-key"] == _KEY
        raw = request.json
        streams = bool(raw.get("stream"))
        # What the SDK sends from its `extra_body`: here a client's own field, and what older models still take.
        older = ("temperature", "top_p", "top_k", "output_format")
        extras = {name: raw.pop(name) for name in ("something_new", *older) if name in raw}
        (self._streamed if streams else self._whole)(json.dumps(raw).encode())
        asked = Asked(raw["model"], streams, max_tokens=raw["max_tokens"], stop=raw.get("stop_sequences", []))
        form = raw.get("output_config", {}).get("format") or extras.pop("output_format", {})
        asked.schema = form.get("schema")
        asked.extras = extras
        system = raw.get("system", "")
        asked.system = system if isinstance(system, str) else "".join(part["text"] for part in system)
        asked.tools = [tool["name"] for tool in raw.get("tools", ())]
        for message in raw["messages"]:
            parts = message["content"]
            parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
            asked.turns.append((message["role"], [part["type"] for part in parts]))
            for part in parts:
                self._part(part, asked)
        return asked

    def _part(self, part: dict[str, Any], asked: Asked) -> None:
        match part["type"]:
            case "image":
                asked.images.append(b64decode(part["source"]["data"]))
            case "thinking":
                asked.thoughts.append((part["thinking"], part["signature"]))
            case "tool_result":
                said = part["content"]
                asked.results[part["tool_use_id"]] = said if isinstance(said, str) else said[0]["text"]

    def whole(self, said: Said) -> Reply:
        return wire.whole(*_blocks(said), tokens=_tokens(said), end=_end(said), **_usage(said))

    def steps(self, said: Said) -> list[bytes]:
        return wire.events(*_blocks(said), tokens=_tokens(said), end=_end(said), **_usage(said))

    def streamed(self, steps: Sequence[Step]) -> Reply:
        return stream(*steps)

    def refusal(self, status: int, words: str, **headers: str) -> Reply:
        return wire.refusal(status, _KINDS[status], words, **headers)

    def fault(self, words: str) -> bytes:
        return wire.event("error", error={"type": "overloaded_error", "message": words})


def _tokens(said: Said) -> tuple[int, int]:
    # Here the cached part is counted apart from the rest of the prompt.
    return said.tokens[0] - said.cached, said.tokens[1]


def _usage(said: Said) -> dict[str, Any]:
    usage: dict[str, Any] = {}
    if said.cached:
        usage |= {"cache_read_input_tokens": said.cached, "cache_creation_input_tokens": 0}
    if said.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": said.reasoning}
    return usage


def _end(said: Said) -> str:
    return {"length": "max_tokens", "filter": "refusal", "": ""}[said.end]


def _blocks(said: Said) -> list[wire.Block]:
    blocks = [wire.thinking(said.thought, said.signature)] if said.thought else []
    blocks += [wire.text(said.text)] if said.text else []
    return blocks + [wire.use(call_id, name, **arguments) for call_id, name, arguments in said.calls]
