"""Logging: one format for our own log lines and the libraries'."""

import logging
import sys
from typing import Any

import stamina.instrumentation
import structlog
from opentelemetry.trace import get_current_span

from afterword.streams.errors import AfterwordError
from afterword.streams.settings import Logs
from afterword_text.visible import shown, shown_lines

log = structlog.get_logger()

QUIET = {
    # Faust sets this to DEBUG, and building those records took a third of the CPU
    "aiokafka": logging.WARNING,
    # Kafka 4 answers the first produce of a transaction with a retriable NotEnoughReplicas while it verifies it
    "aiokafka.producer.sender": logging.ERROR,
    # this logs a missing topic a hundred times a second; the engine names it once
    "aiokafka.cluster": logging.CRITICAL,
    # Faust and mode log every start and stop of every service at INFO
    "faust": logging.WARNING,
    "mode": logging.WARNING,
    # these log addresses, which may contain a key
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    # this logs the beginning and the end of every exchange
    "mcp": logging.WARNING,
    # this logs every attempt to reach an unavailable collector, and dropped spans at ERROR
    "opentelemetry": logging.ERROR,
}

UNREAD = "Future exception was never retrieved"

LINES = {"exception", "stack"}
"""Fields that have several lines."""


def configure(settings: Logs) -> None:
    """Log to standard error in the format that is set; by default JSON unless it is a terminal."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        add_trace,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(settings.level)),
    )
    renderers: list[Any] = [structlog.processors.format_exc_info]
    if settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty()):
        renderers += [make_visible, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        renderers.append(structlog.processors.JSONRenderer())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    handler.addFilter(is_for_somebody)
    logging.basicConfig(handlers=[handler], level=settings.level, force=True)
    for name, level in QUIET.items():
        logging.getLogger(name).setLevel(max(level, logging.getLevelName(settings.level)))
    # stamina's own hook logs the arguments of the retried call, which may contain a transcript
    stamina.instrumentation.set_on_retry_hooks([log_retry])


def is_for_somebody(record: logging.LogRecord) -> bool:
    """Return False for asyncio's reports of errors in aiokafka's futures, which contain nothing new. A batch of
    aiokafka's producer has two futures. The sender gets the error from one of them, and nobody awaits the other
    unless the batch is full, so asyncio logs it, with a traceback, when the batch is garbage-collected.
    """
    if record.name != "asyncio" or not record.exc_info or not record.getMessage().startswith(UNREAD):
        return True
    from aiokafka.errors import KafkaError  # imported here because not every command talks to Kafka

    return not isinstance(record.exc_info[1], KafkaError)


def add_trace(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the ids of the current span, if any."""
    context = get_current_span().get_span_context()
    if context.is_valid:
        event.update(trace_id=f"{context.trace_id:032x}", span_id=f"{context.span_id:016x}")
    return event


def make_visible(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Show control characters in texts instead of sending them to a terminal; JSON escapes them itself.

    The lines of a traceback are indented. Values that are not strings are shown by their `repr`, which escapes.
    """
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = shown_lines(value) if name in LINES else shown(value)
    return event


def log_retry(details: stamina.instrumentation.RetryDetails) -> None:
    """Log a scheduled retry as a warning. The retrying code sets `stage` as a context variable.

    Code that logs its own retries, less often, does not set it.
    """
    if "stage" not in structlog.contextvars.get_contextvars():
        return
    error = details.caused_by
    ours = {"error_type": error.error_type, "problem": str(error)} if isinstance(error, AfterwordError) else {}
    known = ours or {"error_type": type(error).__name__}
    log.warning("retry_scheduled", **known, attempt=details.retry_num, wait_seconds=round(details.wait_for, 2))
