"""Logs of commands, on standard error: standard output contains results only."""

import sys

from sluice_web.log_output import last_processors, log_stream

# structlog imports rich's tracebacks, and with them pygments, for a renderer that is not used.
_RICH = sys.modules.pop("rich", None)
sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    del sys.modules["rich"]
    if _RICH is not None:
        sys.modules["rich"] = _RICH


def log_to_stderr() -> None:
    """Send events to standard error: coloured lines on a terminal, otherwise JSON lines."""
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *last_processors()],
        logger_factory=_print_to_stderr,
        cache_logger_on_first_use=False,
    )


def _print_to_stderr(*_: object) -> structlog.WriteLogger:
    """Return a logger on the current standard error, which tests replace."""
    return structlog.WriteLogger(log_stream())
