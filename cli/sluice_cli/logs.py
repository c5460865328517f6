"""Logs of commands: on standard error, so that standard output holds results alone."""

import sys

import structlog


def configure_logs() -> None:
    """Sends events to standard error: coloured lines to a person, JSON lines to a program."""
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
