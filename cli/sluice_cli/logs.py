"""Logs of commands, on standard error: standard output contains results only."""

import sys

import structlog

from sluice_web.server_log import send_library_logs


def configure_logs() -> None:
    """Send events to standard error: coloured lines on a terminal, otherwise JSON lines."""
    watched = sys.stderr.isatty()
    shown: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if watched else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            shown,
        ],
        logger_factory=_print_to_stderr,
        cache_logger_on_first_use=False,
    )
    send_library_logs()


def _print_to_stderr(*_: object) -> structlog.PrintLogger:
    """Return a logger on the current standard error, which tests replace."""
    return structlog.PrintLogger(sys.stderr)
