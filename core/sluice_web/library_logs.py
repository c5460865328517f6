"""What asyncio, aiohttp and other libraries report through `logging`, as log events of one line.

The HTTP server of aiohttp reports a malformed request as a traceback of several lines. Such a
request is a fault of the client, so the event is informational and has no traceback.
"""

import logging
from types import TracebackType
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

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


_ExcInfo = (
    bool
    | BaseException
    | tuple[type[BaseException], BaseException, TracebackType | None]
    | tuple[None, None, None]
    | None
)


class HttpServerLog(logging.Logger):
    """The logger of an HTTP server of aiohttp, which calls `debug` and `exception` only."""

    def __init__(self) -> None:
        super().__init__("sluice_web.http_server")

    def debug(self, msg: object, *args: object, exc_info: _ExcInfo = None, **_: object) -> None:
        """Log a malformed first request of a connection; ignore how connections ended."""
        del msg
        if isinstance(exc_info, HttpProcessingError):
            _log_malformed(exc_info, args)

    def exception(self, msg: object, *args: object, exc_info: _ExcInfo = True, **_: object) -> None:
        """Log a malformed request, or a defect with its traceback."""
        if isinstance(exc_info, HttpProcessingError | web.RequestPayloadError):
            _log_malformed(exc_info, args)
        else:
            log.error("http_server_error", reason=_text(msg, args), exc_info=exc_info)


def _log_malformed(error: BaseException, args: tuple[object, ...]) -> None:
    peer = str(args[0]) if args else ""
    log.info("http_request_malformed", reason=one_line(str(error)), peer=peer)


def _text(msg: object, args: tuple[object, ...]) -> str:
    return one_line(str(msg) % args if args else str(msg))
