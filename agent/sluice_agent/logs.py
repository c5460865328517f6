"""Logs on standard error: coloured for a person who watches, JSON lines for everybody else."""

import sys

import structlog


def configure_logs() -> None:
    """Sets structlog up for this process; standard output stays the command's own."""
    watched = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if watched else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
