"""What the HTTP server of aiohttp reports, as log events of one line.

It reports a malformed request as a traceback of several lines. Such a request is a fault of the
client, so the event is informational and has no traceback.
"""

import logging
from types import TracebackType

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sluice_web.library_logs import one_line

_ExcInfo = (
    bool
    | BaseException
    | tuple[type[BaseException], BaseException, TracebackType | None]
    | tuple[None, None, None]
    | None
)

log = structlog.get_logger()


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
