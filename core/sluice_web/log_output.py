"""Standard error as the place of log events, and how they are shown there.

A line that cannot be written is lost, and nothing else fails. The reader of a pipe may end, and the
disk of a file may be full. A service must then continue: an error of a log line would end the task
that reports it, for example that the disk is full.
"""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO, cast

from sluice_protocol.utf8 import printable_text

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

_OF_LINES: Final = frozenset({"exception", "stack"})
"""Fields that consist of lines: tracebacks of this process."""


def last_processors() -> "tuple[Processor, ...]":
    """Return what ends every list of processors: level, time, and the form of the line.

    A terminal gets coloured lines, everything else lines of JSON.
    """
    import structlog  # noqa: PLC0415 - the command line imports it without rich

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
