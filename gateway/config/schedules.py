"""What is wrong with schedules that their own shape does not tell: keys, models and requests that cannot be.

Knows the rest of the configuration. When a schedule is due is `gateway/runs/schedules.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway.chat.codecs.chat_completions import decode_request
from gateway.config.document import Document
from gateway.config.models import GatewayConfig
from gateway.config.names import ModelNames
from gateway.errors import InvalidRequest, Problem

# Who is let in where the gateway is open, and who `keys.admin_key` makes of its bearer.
_LOCAL = "local"
_ADMIN = "admin"


def schedule_problems(config: GatewayConfig, document: Document) -> Iterator[Problem]:
    """Every mistake of `runs.schedules`."""
    names = ModelNames(config.models, config.aliases)
    keys = {_LOCAL, *config.keys.static, *({_ADMIN} if config.keys.admin_key is not None else ())}
    for name, schedule in config.runs.schedules.items():
        place = ("runs", "schedules", name)
        if schedule.key not in keys:
            yield document.problem((*place, "key"), f"there is no key `{schedule.key}` under `keys.static`")
        if (schedule.request is None) == (schedule.type is None):
            yield document.problem(place, "a schedule has either a `request` or a `type` of runs")
            continue
        if schedule.request is None:
            continue  # types, and what they take, are the plugins' to say
        try:
            request = decode_request(msgspec.json.encode(schedule.request))
        except InvalidRequest as error:
            where = f" ({error.param})" if error.param else ""
            yield document.problem((*place, "request"), f"the request cannot be answered{where}: {error.message}")
            continue
        except (TypeError, OverflowError, msgspec.MsgspecError) as error:
            yield document.problem((*place, "request"), f"the request is no JSON value: {error}")
            continue
        if request.stream:
            yield document.problem((*place, "request", "stream"), "a run cannot be streamed")
        if request.model != config.router.model and names.find(request.model) is None:
            yield document.problem((*place, "request", "model"), f"there is no model `{request.model}`")
