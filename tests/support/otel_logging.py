"""A logger of the standard library whose records an OpenTelemetry SDK exports."""

import logging

from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler


def logger_of(provider: LoggerProvider) -> logging.Logger:
    """Return a logger that sends to the provider only."""
    logger = logging.getLogger("shop")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers[:] = [LoggingHandler(logger_provider=provider)]
    return logger
