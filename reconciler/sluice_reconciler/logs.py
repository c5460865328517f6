"""Where the reconciler's events go: standard error, JSON for programs, colours on a terminal."""

import sys

import structlog


def configure_logs() -> None:
    """Sets structlog up for this process."""
    person = sys.stderr.isatty()
    last = structlog.dev.ConsoleRenderer() if person else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            last,
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
