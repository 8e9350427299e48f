"""What is changed about litellm once it is imported, so that it says nothing, tells nobody and loses nothing.

Knows the places of the pinned version that need it, each with its reason; imports nothing of it. The tests of the dialects
fail when a newer litellm has no such place any more.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from gateway.backends.litellm_direct import PROVIDERS

# Read by litellm while it is imported: no download of price lists and the like, and `.env` is ours to read.
ENVIRONMENT: Final = {
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
}
_MODELS: Final = 256
_CALLBACKS = ("callbacks", "input_callback", "success_callback", "failure_callback", "service_callback")
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


def set_up(litellm: Any) -> None:
    """Make the imported library fit to serve. Doing it twice changes nothing."""
    litellm.suppress_debug_info = True
    # It logs request bodies, keys included, to stderr in a format of its own; what matters of it is raised.
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)
    # Nobody is told of a call but its provider.
    for name in _CALLBACKS:
        setattr(litellm, name, [])
    _fetch_nothing(litellm)
    _follow_nothing(litellm)
    _replace(litellm.AnthropicConfig, "transform_request", _unwrapping)
    _replace(litellm.AmazonConverseConfig, "_async_transform_request", _unwrapping)
    _replace(litellm.VertexGeminiConfig, "_check_finish_reason", _said_only)
    _spare(litellm)


def _fetch_nothing(litellm: Any) -> None:
    """Nothing a client names is fetched: it would be read from inside the network, past every rule for such requests, and
    for some providers while the event loop waits.
    """

    def refuse(_client: Any, url: str, **_options: Any) -> Any:
        raise litellm.ImageFetchError(f"not fetched: {url}")

    async def refuse_async(_client: Any, url: str, **_options: Any) -> Any:
        refuse(_client, url)

    prompts = litellm.litellm_core_utils.prompt_templates
    for module in (prompts.image_handling, prompts.factory, litellm.litellm_core_utils.token_counter):
        for name, refused in (("safe_get", refuse), ("async_safe_get", refuse_async)):
            if hasattr(module, name):
                setattr(module, name, refused)


def _follow_nothing(litellm: Any) -> None:
    """Redirects are followed to nowhere: what is asked, and some keys, would go where the operator never said."""

    def staying(real: Callable[..., Any]) -> Callable[..., Any]:
        def create(*args: Any, **kwargs: Any) -> Any:
            client = real(*args, **kwargs)
            if client is not None:
                client.follow_redirects = False
            return client

        return create

    _replace(litellm.llms.custom_httpx.http_handler.AsyncHTTPHandler, "create_client", staying)
    own, name = litellm.llms.openai.common_utils.BaseOpenAILLM, "_get_async_http_client"
    real = getattr(own, name)
    if real.__module__ != __name__:
        setattr(own, name, staticmethod(staying(real)))


def _spare(litellm: Any) -> None:
    """What is done again and again for nobody is done once or not at all. A litellm without these places is but slower.

    What its list says of a model is put together eight times a call, and is the same each time: a third of a translation.
    """
    kept = getattr(litellm.utils, "cached_get_model_info_helper", None)
    names = getattr(litellm.llms.anthropic.common_utils, "AnthropicModelInfo", None)
    if hasattr(names, "_model_map_lookup_candidates"):
        _replace(names, "_model_map_lookup_candidates", _remembering)
    # What a stream has said so far is kept for a router of litellm's own, which there is none of.
    if hasattr(litellm.CustomStreamWrapper, "_accumulate_streamed_delta"):
        _replace(litellm.CustomStreamWrapper, "_accumulate_streamed_delta", _not_kept)
    # Each call asks all two hundred providers for their names, twice, by a way that takes long in Python 3.11.
    litellm.LlmProviders.value = property(attrgetter("_value_"))
    if kept is None:
        return

    def remembering(real: Callable[..., Any]) -> Callable[..., Any]:
        def info(model: str, custom_llm_provider: str | None = None, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs or custom_llm_provider not in PROVIDERS:
                return real(model, custom_llm_provider, *args, **kwargs)
            return dict(kept(model=model, custom_llm_provider=custom_llm_provider))

        return info

    for module in (litellm.utils, sys.modules.get("litellm.responses.bridge_check")):
        if hasattr(module, "get_model_info_helper"):
            _replace(module, "get_model_info_helper", remembering)


def _remembering(real: Callable[[str], list[str]]) -> Any:
    known = lru_cache(maxsize=_MODELS)(real)

    def names(model: str) -> list[str]:
        return [*known(model)]

    return staticmethod(names)


def _not_kept(_: Callable[..., Any]) -> Callable[..., None]:
    def accumulate(_stream: Any, _delta: Any) -> None:
        return

    return accumulate


def _unwrapping(real: Callable[..., Any]) -> Callable[..., Any]:
    """Put what `extra_body` holds where the provider looks for it: litellm sends the word itself along."""

    def transform(*args: Any, optional_params: dict[str, Any], **kwargs: Any) -> Any:
        extra = optional_params.pop("extra_body", None) or {}
        return real(*args, optional_params={**optional_params, **extra}, **kwargs)

    return transform


def _said_only(real: Callable[..., Any]) -> Any:
    """Let Gemini's stream end for the reason that Gemini gave: litellm takes a chunk without one for the end."""

    def check(message: Any, reason: str | None) -> Any:
        return real(message, reason) if reason else None

    return staticmethod(check)


def _replace(owner: Any, name: str, made: Callable[[Callable[..., Any]], Any]) -> None:
    # Plain functions only: litellm takes whatever else stands in these classes for a setting.
    real = getattr(owner, name)
    if real.__module__ != __name__:
        setattr(owner, name, made(real))
