"""The schemas that every test checks with are OpenAI's own, and what real servers said passes them behind the gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.backends import openai_schemas
from tests.backends.openai_schemas import check_answer, check_chunk, needs_published, published_schemas
from tests.chat.recordings import needs_recordings, upstream_answers, upstream_streams
from tests.serving import native_config, serving
from tests.upstream import Reply, ScriptedUpstream, UpstreamRequest, body, stream

# Words for people; and what OpenAPI 3.0 says with `nullable`, JSON Schema says with a type.
SILENT = {"title", "description", "nullable"}


def in_todays_words(schema: Any) -> Any:
    if isinstance(schema, list):
        return [in_todays_words(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: in_todays_words(value) for name, value in schema.items() if name not in SILENT}
    return {"anyOf": [made, {"type": "null"}]} if schema.get("nullable") is True else made


@needs_published
def test_the_schemas_that_tests_check_with_are_the_published_ones() -> None:
    ours = openai_schemas._DOCUMENT["components"]["schemas"]
    published = published_schemas()
    assert {"CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"} <= ours.keys()
    for name, schema in ours.items():
        assert in_todays_words(schema) == in_todays_words(published[name]), name


@needs_recordings
@pytest.mark.parametrize("provider", ["openai", "vllm", "ollama", "lmstudio"])
async def test_everything_that_servers_were_recorded_with_passes_behind_the_gateway(
    tmp_path: Path, provider: str
) -> None:
    answers, streams = upstream_answers(), upstream_streams()
    assert answers
    assert streams

    def script(request: UpstreamRequest) -> Reply:
        number = int(request.messages[0]["content"])
        if not request.json.get("stream"):
            return body(answers[number])
        return stream(*(b"data: " + chunk + b"\n\n" for chunk in streams[number]), b"data: [DONE]\n\n")

    async with (
        ScriptedUpstream(then=script) as upstream,
        serving(tmp_path, native_config(upstream.base_url, backend={"provider": provider})) as gateway,
    ):
        for number in range(max(len(answers), len(streams))):
            asked = {"model": "m", "messages": [{"role": "user", "content": str(number)}]}
            if number < len(answers):
                status, _, answer = await gateway.post("/v1/chat/completions", asked)
                assert status == 200, answer
                check_answer(json.dumps(answer).encode())
            if number < len(streams):
                raw = await gateway.raw_stream({**asked, "stream_options": {"include_usage": True}})
                events = raw.split(b"\n\n")
                assert events[-2:] == [b"data: [DONE]", b""]
                for event in events[:-2]:
                    check_chunk(event.removeprefix(b"data: "))
