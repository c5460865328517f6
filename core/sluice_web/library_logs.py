"""What libraries such as asyncio report through `logging`, as log events of one line."""

import logging
from typing import Final

import structlog

_REASON_CHARS_MAX: Final = 200
_SUBJECTS_MAX: Final = 1000
REPEAT_S: Final = 60.0
"""Least time between two events with the same text of a library, in seconds."""

log = structlog.get_logger()


class LibraryLogHandler(logging.Handler):
    """Turns the records of every library into log events.

    The same text is logged at most once in `REPEAT_S`: asyncio, for example, reports each of
    thousands of connections that it cannot accept.
    """

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._logged_s: dict[str, float] = {}

    def _may_log(self, subject: str, now_s: float) -> bool:
        if abs(now_s - self._logged_s.get(subject, -REPEAT_S)) < REPEAT_S:
            return False
        if len(self._logged_s) >= _SUBJECTS_MAX:
            self._logged_s.clear()
        self._logged_s[subject] = now_s
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record."""
        reason = one_line(record.getMessage())
        if not self._may_log(f"{record.name} {record.msg}", record.created):
            return
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
