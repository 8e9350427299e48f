"""OpenAI's models at Azure, by the types of the `openai` package."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from gateway.config.models import BackendConfig
from tests.backends.litellm_dialect import Asked, Said, halves
from tests.backends.sdk_types import reader
from tests.replies import Reply, Step, body, call, stream
from tests.upstream import UpstreamRequest

_KEY = "azure-very-secret"
_PATH = "/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21"


class AzureDialect:
    """A deployment named `my-gpt`."""

    name = "azure"
    secrets = (_KEY,)
    overloaded = 503
    too_long = "This model's maximum context length is 128000 tokens. However, your messages resulted in 210000 tokens."

    def __init__(self) -> None:
        self._whole = reader(CompletionCreateParamsNonStreaming)
        self._streamed = reader(CompletionCreateParamsStreaming)

    def config(self, port: int, **settings: Any) -> BackendConfig:
        given = {"model": "my-gpt", "api_key": _KEY, "base_url": f"http://127.0.0.1:{port}"}
        params = {"api_version": "2024-10-21", **settings.pop("params", {})}
        return BackendConfig(provider="azure", params=params, **{**given, **settings})

    def read(self, request: UpstreamRequest) -> Asked:
        assert (request.method, request.path) == ("POST", _PATH)
        assert request.headers["api-key"] == _KEY
        raw = request.json
        streams = bool(raw.get("stream"))
        extras = {name: raw.pop(name) for name in ("something_new",) if name in raw}
        (self._streamed if streams else self._whole)(json.dumps(raw).encode())
        assert raw.get("stream_options") == ({"include_usage": True} if streams else None)
        asked = Asked("my-gpt", streams, max_tokens=raw.get("max_tokens"), stop=raw.get("stop", []))
        asked.extras = extras
        asked.tools = [tool["function"]["name"] for tool in raw.get("tools", ())]
        asked.schema = raw.get("response_format", {}).get("json_schema", {}).get("schema")
        for message in raw["messages"]:
            if message["role"] == "system":
                asked.system += message["content"]
                continue
            said: Any = message.get("content") or []
            kinds = ["text"] if isinstance(said, str) else [part["type"] for part in said]
            asked.turns.append((message["role"], kinds + ["tool_call"] * len(message.get("tool_calls") or ())))
            if message["role"] == "tool":
                asked.results[message["tool_call_id"]] = said
            for part in said if isinstance(said, list) else ():
                if part["type"] == "image_url":
                    asked.images.append(b64decode(part["image_url"]["url"].partition("base64,")[2]))
        return asked

    def whole(self, said: Said) -> Reply:
        calls = [call(call_id, name, json.dumps(arguments)) for call_id, name, arguments in said.calls]
        message: dict[str, Any] = {"role": "assistant", "content": said.text or None, "refusal": None}
        choice = {
            "index": 0,
            "message": message | ({"tool_calls": calls} if calls else {}),
            "logprobs": None,
            "finish_reason": _end(said),
        }
        answer = _head("chat.completion") | {"choices": [choice], "usage": _usage(said)}
        ChatCompletion.model_validate(answer, strict=True)
        return body(answer)

    def steps(self, said: Said) -> list[bytes]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in halves(said.text)] if said.text else []
        for index, (call_id, name, arguments) in enumerate(said.calls):
            deltas.append({"tool_calls": [{"index": index, **call(call_id, name, "")}]})
            for piece in halves(json.dumps(arguments)):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        # Azure's first frame tells of its content filter and has neither id nor choices.
        checked = {"prompt_index": 0, "content_filter_results": {}}
        out = [_event({"choices": [], "created": 0, "id": "", "model": "", "prompt_filter_results": [checked]})]
        out += [_event(_chunk(delta, None)) for delta in deltas]
        out.append(_event(_chunk({}, _end(said))))
        out.append(_event(_head("chat.completion.chunk") | {"choices": [], "usage": _usage(said)}))
        return [*out, b"data: [DONE]\n\n"]

    def streamed(self, steps: Sequence[Step]) -> Reply:
        return stream(*steps)

    def refusal(self, status: int, words: str, **headers: str) -> Reply:
        content = {"error": {"message": words, "type": None, "param": None, "code": str(status)}}
        return body(content, status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def fault(self, words: str) -> bytes:
        return _event(
            {"error": {"message": words, "type": "server_error", "param": None, "code": "503"}}, checked=False
        )


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1700000000, "model": "gpt-upstream"}


def _chunk(delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return _head("chat.completion.chunk") | {"choices": [choice]}


def _event(frame: dict[str, Any], *, checked: bool = True) -> bytes:
    if checked:
        ChatCompletionChunk.model_validate({"object": "chat.completion.chunk", **frame}, strict=True)
    return f"data: {json.dumps(frame)}\n\n".encode()


def _end(said: Said) -> str:
    ends = {"length": "length", "filter": "content_filter"}
    return ends.get(said.end) or ("tool_calls" if said.calls else "stop")


def _usage(said: Said) -> dict[str, Any]:
    prompt, completion = said.tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": said.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": said.reasoning, "audio_tokens": 0},
    }
