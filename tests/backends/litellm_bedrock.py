"""Amazon Bedrock's Converse API, by the service model that ships with botocore."""

from __future__ import annotations

import binascii
import json
import struct
from base64 import b64decode
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import botocore.session  # type: ignore[import-untyped]
from botocore.eventstream import EventStreamBuffer  # type: ignore[import-untyped]
from botocore.validate import ParamValidator  # type: ignore[import-untyped]

from gateway.config.models import BackendConfig
from tests.backends.litellm_dialect import Asked, Said, halves
from tests.replies import Reply, Step, body, stream
from tests.upstream import UpstreamRequest

_KEY_ID, _SECRET = "AKIDVERYSECRETID", "wJalrXUtnFEMI/very+secret"
_FAULTS = {
    400: "ValidationException",
    401: "AccessDeniedException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}


class BedrockDialect:
    """Claude at Bedrock, by the protocol that serves all of Bedrock's models."""

    name = "bedrock"
    secrets = (_KEY_ID, _SECRET)
    overloaded = 503
    too_long = "Input is too long for requested model."

    def __init__(self) -> None:
        self._service = botocore.session.get_session().get_service_model("bedrock-runtime")
        self._events = self._service.operation_model("ConverseStream").output_shape.members["stream"].members

    def config(self, port: int, **settings: Any) -> BackendConfig:
        keys = {"aws_access_key_id": _KEY_ID, "aws_secret_access_key": _SECRET, "aws_region_name": "us-east-1"}
        given = {"model": "anthropic.claude-sonnet-4-5-20250929-v1:0", "base_url": f"http://127.0.0.1:{port}"}
        params = {**keys, **settings.pop("params", {})}
        return BackendConfig(provider="bedrock", params=params, **{**given, **settings})

    def read(self, request: UpstreamRequest) -> Asked:
        _, name, model, method = unquote(request.path).split("/")
        assert (request.method, name) == ("POST", "model")
        assert method in {"converse", "converse-stream"}
        assert request.headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={_KEY_ID}/")
        raw = request.json
        streams = method == "converse-stream"
        self._check({"modelId": model, **raw}, "ConverseStream" if streams else "Converse", "input_shape")
        limits = raw.get("inferenceConfig", {})
        asked = Asked(model, streams, max_tokens=limits.get("maxTokens"), stop=limits.get("stopSequences", []))
        asked.extras = raw.get("additionalModelRequestFields", {})
        asked.system = "".join(part.get("text", "") for part in raw.get("system", ()))
        asked.tools = [each["toolSpec"]["name"] for each in raw.get("toolConfig", {}).get("tools", ())]
        form = raw.get("outputConfig", {}).get("textFormat", {}).get("structure", {}).get("jsonSchema", {})
        asked.schema = json.loads(form["schema"]) if form else None
        for message in raw["messages"]:
            asked.turns.append((message["role"], [next(iter(part)) for part in message["content"]]))
            for part in message["content"]:
                self._part(part, asked)
        return asked

    def _part(self, part: dict[str, Any], asked: Asked) -> None:
        if "image" in part:
            asked.images.append(b64decode(part["image"]["source"]["bytes"]))
        if "toolResult" in part:
            asked.results[part["toolResult"]["toolUseId"]] = part["toolResult"]["content"][0]["text"]
        if "reasoningContent" in part:
            thought = part["reasoningContent"]["reasoningText"]
            asked.thoughts.append((thought["text"], thought["signature"]))

    def whole(self, said: Said) -> Reply:
        content: list[dict[str, Any]] = []
        if said.thought:
            thought = {"text": said.thought, "signature": said.signature}
            content.append({"reasoningContent": {"reasoningText": thought}})
        content += [{"text": said.text}] if said.text else []
        for call_id, name, arguments in said.calls:
            content.append({"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}})
        answer = {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": _end(said),
            "usage": _usage(said),
            "metrics": {"latencyMs": 12},
        }
        self._check(answer, "Converse", "output_shape")
        return body(answer)

    def steps(self, said: Said) -> list[bytes]:
        out = [self._event("messageStart", role="assistant")]
        index = 0
        for deltas in _text_deltas(said):
            out += [self._event("contentBlockDelta", delta=delta, contentBlockIndex=index) for delta in deltas]
            out.append(self._event("contentBlockStop", contentBlockIndex=index))
            index += 1
        for call_id, name, arguments in said.calls:
            start = {"toolUse": {"toolUseId": call_id, "name": name}}
            out.append(self._event("contentBlockStart", start=start, contentBlockIndex=index))
            for piece in halves(json.dumps(arguments)):
                delta = {"toolUse": {"input": piece}}
                out.append(self._event("contentBlockDelta", delta=delta, contentBlockIndex=index))
            out.append(self._event("contentBlockStop", contentBlockIndex=index))
            index += 1
        out.append(self._event("messageStop", stopReason=_end(said)))
        out.append(self._event("metadata", usage=_usage(said), metrics={"latencyMs": 12}))
        return out

    def streamed(self, steps: Sequence[Step]) -> Reply:
        return stream(*steps, headers={"content-type": "application/vnd.amazon.eventstream"})

    def refusal(self, status: int, words: str, **headers: str) -> Reply:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return body({"message": words}, status=status, headers={"x-amzn-errortype": _FAULTS[status], **given})

    def fault(self, words: str) -> bytes:
        assert "throttlingException" in self._events
        return _frame({":message-type": "exception", ":exception-type": "throttlingException"}, {"message": words})

    def _event(self, kind: str, **fields: Any) -> bytes:
        faults = ParamValidator().validate(fields, self._events[kind])
        assert not faults.has_errors(), faults.generate_report()
        return _frame({":message-type": "event", ":event-type": kind}, fields)

    def _check(self, value: dict[str, Any], operation: str, shape: str) -> None:
        faults = ParamValidator().validate(value, getattr(self._service.operation_model(operation), shape))
        assert not faults.has_errors(), faults.generate_report()


def _frame(headers: dict[str, str], payload: dict[str, Any]) -> bytes:
    """One message of the binary event stream, which botocore itself reads back the same."""
    named = {**headers, ":content-type": "application/json"}
    head = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in named.items()
    )
    content = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(head) + len(content), len(head))
    start = prelude + struct.pack("!I", binascii.crc32(prelude)) + head + content
    whole = start + struct.pack("!I", binascii.crc32(start))
    buffer = EventStreamBuffer()
    buffer.add_data(whole)
    read = next(buffer)
    assert (dict(read.headers), read.payload) == (named, content)
    return whole


def _text_deltas(said: Said) -> list[list[dict[str, Any]]]:
    blocks: list[list[dict[str, Any]]] = []
    if said.thought:
        pieces: list[dict[str, Any]] = [{"reasoningContent": {"text": piece}} for piece in halves(said.thought)]
        blocks.append([*pieces, {"reasoningContent": {"signature": said.signature}}])
    if said.text:
        blocks.append([{"text": piece} for piece in halves(said.text)])
    return blocks


def _end(said: Said) -> str:
    ends = {"length": "max_tokens", "filter": "content_filtered"}
    return ends.get(said.end) or ("tool_use" if said.calls else "end_turn")


def _usage(said: Said) -> dict[str, int]:
    # Here the cached part is counted apart from the rest of the prompt.
    prompt, completion = said.tokens
    usage = {"inputTokens": prompt - said.cached, "outputTokens": completion, "totalTokens": prompt + completion}
    return usage | ({"cacheReadInputTokens": said.cached} if said.cached else {})
