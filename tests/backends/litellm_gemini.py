"""Google's Gemini API, by the types of the `google-genai` package."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from google.genai import types

from gateway.config.models import BackendConfig
from tests.backends.litellm_dialect import Asked, Said, halves
from tests.replies import Reply, Step, body, stream
from tests.upstream import UpstreamRequest

_KEY = "AIza-very-secret"
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class _Request(types.GenerateContentConfig):  # type: ignore[misc]
    """The body of `generateContent`: the SDK's own types, each of which refuses unknown fields."""

    contents: list[types.Content]
    generation_config: types.GenerationConfig | None = None


# What of `GenerateContentConfig` stands in the body under its own name; the rest goes into `generationConfig`.
_TOP = {
    "contents",
    "system_instruction",
    "tools",
    "tool_config",
    "safety_settings",
    "cached_content",
    "generation_config",
}


class GeminiDialect:
    """Gemini at Google AI Studio."""

    name = "gemini"
    secrets = (_KEY,)
    overloaded = 503
    too_long = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."

    def config(self, port: int, **settings: Any) -> BackendConfig:
        given = {"model": "gemini-2.5-flash", "api_key": _KEY, "base_url": f"http://127.0.0.1:{port}/v1beta"}
        return BackendConfig(provider="gemini", **{**given, **settings})

    def read(self, request: UpstreamRequest) -> Asked:
        path, _, query = request.path.partition("?")
        head, _, method = path.partition(":")
        streams = method == "streamGenerateContent"
        assert request.method == "POST"
        assert head.startswith("/v1beta/models/")
        assert (method, query) in {("generateContent", ""), ("streamGenerateContent", "alt=sse")}
        assert request.headers["x-goog-api-key"] == _KEY
        raw = request.json
        extras = {name: raw.pop(name) for name in ("something_new",) if name in raw}
        read = _Request.model_validate_json(json.dumps(raw))
        assert read.model_fields_set <= _TOP
        config = read.generation_config or types.GenerationConfig()
        asked = Asked(head.rpartition("/")[2], streams, max_tokens=config.max_output_tokens)
        asked.extras = extras
        asked.stop = config.stop_sequences or []
        schema = config.response_json_schema or (config.response_schema and config.response_schema.model_dump())
        asked.schema = schema if isinstance(schema, dict) else None
        if isinstance(read.system_instruction, types.Content):
            asked.system = "".join(part.text or "" for part in read.system_instruction.parts or ())
        for tool in read.tools or ():
            assert isinstance(tool, types.Tool)
            asked.tools += [function.name or "" for function in tool.function_declarations or ()]
        for content in read.contents:
            parts = content.parts or []
            kinds = [next(iter(part.model_fields_set - {"thought", "thought_signature"}), "") for part in parts]
            asked.turns.append((content.role or "", kinds))
            for part in parts:
                self._part(part, asked)
        return asked

    def _part(self, part: types.Part, asked: Asked) -> None:
        if part.inline_data:
            asked.images.append(part.inline_data.data or b"")
        if part.function_response:
            said = part.function_response.response or {}
            text = str(said["content"]) if said.keys() == {"content"} else json.dumps(said)
            asked.results[part.function_response.id or part.function_response.name or ""] = text
        if part.thought_signature:
            asked.thoughts.append(("", b64encode(part.thought_signature).decode()))

    def whole(self, said: Said) -> Reply:
        return body(_answer(_parts(said, whole=True), said, last=True))

    def steps(self, said: Said) -> list[bytes]:
        parts = _parts(said, whole=False)
        frames = [_answer([part], said, last=False) for part in parts[:-1]]
        frames.append(_answer(parts[-1:], said, last=True))
        return [f"data: {json.dumps(frame)}\r\n\r\n".encode() for frame in frames]

    def streamed(self, steps: Sequence[Step]) -> Reply:
        return stream(*steps)

    def refusal(self, status: int, words: str, **headers: str) -> Reply:
        content = {"error": {"code": status, "message": words, "status": _STATUS[status]}}
        return body(content, status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def fault(self, words: str) -> bytes:
        content = {"error": {"code": 503, "message": words, "status": "UNAVAILABLE"}}
        return f"data: {json.dumps(content)}\r\n\r\n".encode()


def _parts(said: Said, *, whole: bool) -> list[types.Part]:
    seal = said.signature.encode() or None
    parts: list[types.Part] = []
    if said.thought:
        parts += [types.Part(text=piece, thought=True) for piece in ([said.thought] if whole else halves(said.thought))]
    if said.text:
        parts += [types.Part(text=piece) for piece in ([said.text] if whole else halves(said.text))]
    for position, (call_id, name, arguments) in enumerate(said.calls):
        call = types.FunctionCall(id=call_id or None, name=name, args=arguments)
        # Of calls made together only the first is sealed.
        parts.append(types.Part(function_call=call, thought_signature=seal if position == 0 else None))
    return parts


def _answer(parts: list[types.Part], said: Said, *, last: bool) -> dict[str, Any]:
    ends = {"": types.FinishReason.STOP, "length": types.FinishReason.MAX_TOKENS, "filter": types.FinishReason.SAFETY}
    candidate = types.Candidate(
        index=0, content=types.Content(role="model", parts=parts), finish_reason=ends[said.end] if last else None
    )
    prompt, completion = said.tokens
    usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=prompt,
        # Here thoughts are counted apart from the rest of the answer.
        candidates_token_count=completion - said.reasoning,
        thoughts_token_count=said.reasoning or None,
        cached_content_token_count=said.cached or None,
        total_token_count=prompt + completion,
    )
    whole = types.GenerateContentResponse(
        candidates=[candidate], usage_metadata=usage, model_version="gemini-upstream", response_id="resp_1"
    )
    dumped: dict[str, Any] = whole.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
