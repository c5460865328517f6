"""Log events on standard error, and how they are shown there: of commands and of services.

A line that cannot be written is lost, and nothing else fails. The reader of a pipe may end, and the
disk of a file may be full. A service must then continue: an error of a log line would end the task
that reports it, for example that the disk is full.
"""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO, cast

from sluice_protocol.utf8 import printable_text

# structlog imports rich's tracebacks, and with them pygments, for a renderer that is not used.
_RICH = sys.modules.pop("rich", None)
sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    del sys.modules["rich"]
    if _RICH is not None:
        sys.modules["rich"] = _RICH

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

_OF_LINES: Final = frozenset({"exception", "stack"})
"""Fields that consist of lines: tracebacks of this process."""


def log_to_stderr() -> None:
    """Send the events of a command to standard error, as standard output has results only."""
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *last_processors()],
        logger_factory=_print_to_stderr,
        cache_logger_on_first_use=False,
    )


def _print_to_stderr(*_: object) -> structlog.WriteLogger:
    """Return a logger on the current standard error, which tests replace."""
    return structlog.WriteLogger(log_stream())


def last_processors() -> "tuple[Processor, ...]":
    """Return what ends every list of processors: level, time, and the form of the line.

    A terminal gets coloured lines, everything else lines of JSON.
    """
    shown: tuple[Processor, ...] = (structlog.processors.JSONRenderer(),)
    if sys.stderr.isatty():
        shown = (replace_unprintable, structlog.dev.ConsoleRenderer())
    return (
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        *shown,
    )


def log_stream() -> TextIO:
    """Return the current standard error for a logger: writing to it raises no error."""
    return cast("TextIO", LogOutput(sys.stderr))


def replace_unprintable(_: "WrappedLogger", __: str, event: "EventDict") -> "EventDict":
    """Replace what a terminal would execute in texts of clients; a processor of structlog.

    A line of JSON escapes such characters; what is drawn for a terminal does not.
    """
    return {
        name: printable_text(value) if isinstance(value, str) and name not in _OF_LINES else value
        for name, value in event.items()
    }


class LogOutput:
    """A text stream for loggers; its methods raise no error of the system."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write text if the stream can be written."""
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Pass buffered text on, if that is possible; a later line tries it again."""
        with suppress(OSError):
            self._stream.flush()
