"""Which dialect of schemas a backend takes its tools in.

Knows providers by their servers. Does not know what the dialects are: see `chat/schemas/dialect.py`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.backends.backend import ModelCall
from gateway.chat.schemas.dialect import SchemaDialect
from gateway.config.models import BackendConfig

_DIALECTS: Final[dict[str, SchemaDialect]] = {
    "demo": "whole",
    "plugin": "whole",
    "vllm": "whole",
    "llamacpp": "grammar",
    "gemini": "typed",
    "vertex_ai": "typed",
    "vertex_ai_beta": "typed",
}


def dialect_of(config: BackendConfig) -> SchemaDialect:
    """What the configuration says, else what is known of the provider; servers nobody knows get no references."""
    if config.tool_schemas is not None:
        return config.tool_schemas
    if config.provider == "openai" and config.base_url is None:
        return "whole"
    return _DIALECTS.get(config.provider, "inlined")


def said_in(call: ModelCall, dialect: SchemaDialect) -> ModelCall:
    """A call whose tools are said in a dialect; the call itself where that makes no difference."""
    tools = None if call.tools_in is None else call.tools_in(dialect)
    if tools is None:
        return call
    return msgspec.structs.replace(call, fields={**call.fields, "tools": msgspec.Raw(tools)})
