"""What libraries such as asyncio report through `logging`, as log events of one line."""

import logging
from typing import Final

import structlog

_REASON_CHARS_MAX: Final = 200

log = structlog.get_logger()


class LibraryLogHandler(logging.Handler):
    """Turns the records of every library into log events."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record."""
        reason = one_line(record.getMessage())
        if record.levelno >= logging.ERROR:
            log.error(
                "library_error", logger=record.name, reason=reason, exc_info=record.exc_info or None
            )
        else:
            log.warning("library_warning", logger=record.name, reason=reason)


def send_library_logs() -> None:
    """Send warnings and errors of libraries to the log of this process, which serves."""
    root = logging.getLogger()
    if not any(isinstance(one, LibraryLogHandler) for one in root.handlers):
        root.addHandler(LibraryLogHandler(logging.WARNING))


def one_line(text: str) -> str:
    """Return a text on one line, cut."""
    return " ".join(text.split())[:_REASON_CHARS_MAX]
