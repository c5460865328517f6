"""Logs of commands, on standard error: standard output contains results only."""

import sys
from typing import TextIO, cast

from sluice_web.log_output import LogOutput, replace_unprintable

# structlog imports rich's tracebacks, and with them pygments, for a renderer that is not used.
_RICH = sys.modules.pop("rich", None)
sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    del sys.modules["rich"]
    if _RICH is not None:
        sys.modules["rich"] = _RICH


def configure_logs() -> None:
    """Send events to standard error: coloured lines on a terminal, otherwise JSON lines."""
    shown: tuple[structlog.typing.Processor, ...] = (structlog.processors.JSONRenderer(),)
    if sys.stderr.isatty():
        shown = (replace_unprintable, structlog.dev.ConsoleRenderer())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *shown,
        ],
        logger_factory=_print_to_stderr,
        cache_logger_on_first_use=False,
    )


def _print_to_stderr(*_: object) -> structlog.WriteLogger:
    """Return a logger on the current standard error, which tests replace."""
    return structlog.WriteLogger(cast("TextIO", LogOutput(sys.stderr)))
