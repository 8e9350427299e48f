"""The log: one stream, one line per thing worth telling, the same for our code and for libraries.

Knows formats and levels. Does not know metrics or traces. No secret passes.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Final, TextIO

import msgspec
import structlog
import structlog.tracebacks
from structlog.typing import Processor

from gateway.config.models import LogConfig
from gateway.observe.encoding import summary
from gateway.observe.events import Recorder
from gateway.observe.masked import masked_line
from gateway.observe.redaction import Redactor
from gateway.security.masking.scrubbing import scrubbed

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
# Libraries that tell at `info` what concerns nobody.
_QUIET: Final = ("aiosqlite", "alembic", "asyncio", "client", "httpcore", "httpx", "httpx2", "mcp", "sqlalchemy")
# Without the values of local variables: those are what people said, and the headers they said it with.
_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
_SHOWN: Final = (
    "endpoint",
    "model",
    "route",
    "strategy",
    "backend",
    "status",
    "code",
    "message",
    "seconds",
    "first_token_s",
    "rounds",
    "prompt_tokens",
    "completion_tokens",
    "finish_reason",
    "stream",
    "version",
)


def configure_logging(config: LogConfig, redactor: Redactor, stream: TextIO | None = None) -> None:
    """Send every log line of the process to `stream` (standard error), in the configured form.

    The one thing here that is the process's own: Python has one root logger. Calling it again replaces the former.
    """
    out = sys.stderr if stream is None else stream
    as_json = config.format == "json" or (config.format == "auto" and not out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    render: list[Processor] = (
        [_TRACEBACKS, _redact(redactor), structlog.processors.JSONRenderer(_dumps)]
        if as_json
        else [
            structlog.processors.format_exc_info,
            _redact(redactor),
            structlog.dev.ConsoleRenderer(colors=out.isatty()),
        ]
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[config.level])
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, _LEVELS[config.level]))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


class LogSubscriber:
    """A line for every turn that failed, and with `log.requests` for every other too."""

    def __init__(self, config: LogConfig) -> None:
        self._requests = config.requests
        self._log = structlog.stdlib.get_logger("gateway.turns")

    def configure(self, config: LogConfig) -> None:
        """Take another generation's settings."""
        self._requests = config.requests

    @property
    def wants_answered(self) -> bool:
        """See `Choosy`."""
        return self._requests

    def finished(self, trace: Recorder) -> None:
        """Tell of one finished turn."""
        last = summary(trace)
        status = last.get("status", 500)
        if status < 400 and not self._requests:
            return
        fields: dict[str, Any] = {name: last[name] for name in _SHOWN if last.get(name) is not None}
        if trace.events and "endpoint" in trace.events[0].data:
            for name in ("endpoint", "peer", "address"):
                fields.setdefault(name, trace.events[0].data.get(name))
        if trace.private is not None and trace.private.masking.declared and isinstance(fields.get("message"), str):
            # Nobody but the turn knows what its tools' fields hold.
            said = (event.data for event in trace.events if "arguments" in event.data)
            fields["message"] = masked_line(trace.private, said, fields["message"])
        fields["trace_id"] = trace.trace_id
        fields["owner"] = trace.owner
        if status < 400:
            self._log.info("turn answered", **fields)
        elif status == 499:
            self._log.warning("client went away", **fields)
        elif status < 500:
            self._log.warning("request refused", **fields)
        else:
            self._log.error("turn failed", **fields)


def _redact(redactor: Redactor) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
    def clean(_logger: Any, _name: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        cleaned = {key: redactor.clean_value(value) for key, value in line.items()}
        return cleaned if redactor.scrub is None else scrubbed(cleaned, redactor.scrub)

    return clean


def _dumps(value: Any, **_options: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=repr).decode()
    except (UnicodeEncodeError, TypeError, ValueError):
        # Half a surrogate pair, or a key that is no text.
        return json.dumps(value, default=repr, skipkeys=True)
