"""Logs as events with fields: JSON lines, or colours when a person watches."""

import logging
import sys
from typing import Final

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


def configure_logs(*, worker: int, skip_probe: bool, level: str = "info") -> None:
    """Sets up this process's logs; a store that nobody proved is said in every line."""

    def bind(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
        del logger, name
        event["worker"] = worker
        if skip_probe:
            event["store_probe"] = "skipped"
        return event

    render: Processor = structlog.processors.JSONRenderer()
    if sys.stderr.isatty():
        render = structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            bind,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
