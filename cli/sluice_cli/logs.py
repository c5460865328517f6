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
        logger_factory=_print_to_stderr,
        cache_logger_on_first_use=False,
    )


def _print_to_stderr(*_: object) -> structlog.PrintLogger:
    """Gives a logger over today's standard error, which a host of this process may replace."""
    return structlog.PrintLogger(sys.stderr)
