"""The price list that comes with litellm: read as the file it is, so that nobody has to import litellm for it.

Knows that file's fields and how backends are named in it. A model that somebody serves under a well-known name at an address of
their own has no price there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from gateway.config.models import BackendConfig
from gateway.security.prices import Price
from gateway.store.usage_records import NANO

_NAME: Final = "model_prices_and_context_window_backup.json"
# Where OpenAI's own models are; a server that only speaks its protocol elsewhere is not it.
_OFFICIAL: Final = {"openai": "api.openai.com", "anthropic": "api.anthropic.com"}
# Providers whose servers stand wherever the user put them.
_ANYWHERE: Final = frozenset({"ollama", "vllm", "lmstudio", "plugin", "demo", "llamacpp"})

_log = structlog.stdlib.get_logger("gateway.prices")


class _Entry(msgspec.Struct):
    input_cost_per_token: float | str | None = None
    output_cost_per_token: float | str | None = None
    cache_read_input_token_cost: float | str | None = None
    litellm_provider: str | None = None


def listed_prices(backends: Mapping[str, BackendConfig], path: Path | None = None) -> dict[str, Price]:
    """The prices that the list knows for backends without one of their own. Reads a file of some megabytes: not on the loop.

    Args:
        backends: by name.
        path: the list, where it is not litellm's.
    """
    wanted = {name: config for name, config in backends.items() if _is_listed(config)}
    path = path or _path()
    if not wanted or path is None:
        return {}
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=dict[str, _Entry])
    except (OSError, msgspec.MsgspecError):
        _log.warning("the price list cannot be read")
        return {}
    found = {name: _price(config, entries) for name, config in wanted.items()}
    return {name: price for name, price in found.items() if price is not None}


def _is_listed(config: BackendConfig) -> bool:
    if config.price is not None or config.provider in _ANYWHERE or config.model is None or "*" in config.model:
        return False
    official = _OFFICIAL.get(config.provider)
    return config.base_url is None or (official is not None and f"//{official}" in config.base_url)


def _path() -> Path | None:
    spec = importlib.util.find_spec("litellm")
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]) / _NAME if places else None


def _price(config: BackendConfig, entries: Mapping[str, _Entry]) -> Price | None:
    for name in (f"{config.provider}/{config.model}", str(config.model)):
        entry = entries.get(name)
        # Of names without a provider, another provider's model is another model.
        if entry is None or not (entry.litellm_provider or "").startswith(config.provider):
            continue
        prompt, completion = entry.input_cost_per_token, entry.output_cost_per_token
        if isinstance(prompt, (int, float)) and isinstance(completion, (int, float)):
            cached = entry.cache_read_input_token_cost
            cheaper = cached if isinstance(cached, (int, float)) else prompt
            return Price(prompt * NANO, completion * NANO, cheaper * NANO)
    return None
