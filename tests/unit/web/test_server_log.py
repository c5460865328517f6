"""What libraries log becomes one event of one line."""

import logging

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, BadHttpMethod
from structlog.testing import capture_logs

from sluice_web.library_logs import HttpServerLog, LibraryLogHandler


def test_a_malformed_request_is_an_event_without_a_traceback() -> None:
    server = HttpServerLog()
    with capture_logs() as events:
        for error in (BadHttpMessage("two\n  lines " + "x" * 500), web.RequestPayloadError("cut")):
            server.exception("Error handling request from %s", "192.0.2.1", exc_info=error)
        server.debug("Error handling request from %s", "192.0.2.1", exc_info=BadHttpMethod("GE"))
    assert [(one["event"], one["log_level"], one["peer"]) for one in events] == [
        ("http_request_malformed", "info", "192.0.2.1")
    ] * 3
    assert all("\n" not in one["reason"] and len(one["reason"]) <= 200 for one in events)
    assert all("exc_info" not in one for one in events)


def test_a_defect_keeps_its_traceback() -> None:
    error = KeyError("a defect")
    with capture_logs() as events:
        HttpServerLog().exception("Unhandled exception", exc_info=error)
    (event,) = events
    assert (event["event"], event["reason"]) == ("http_server_error", "Unhandled exception")
    assert event["exc_info"] is error


def test_the_end_of_a_connection_is_not_logged() -> None:
    with capture_logs() as events:
        HttpServerLog().debug("Ignored premature client disconnection")
        HttpServerLog().debug("Start lingering close timer for %s sec.", 10)
    assert events == []


def test_warnings_and_errors_of_libraries_are_events() -> None:
    library = logging.Logger("asyncio")  # noqa: LOG001 - not registered
    library.addHandler(LibraryLogHandler(logging.WARNING))
    with capture_logs() as events:
        library.info("not logged")
        library.warning("slow\ncallback")
        library.error("Task exception was never retrieved\nfuture: %s", "f")
    assert [(one["event"], one["logger"], one["reason"]) for one in events] == [
        ("library_warning", "asyncio", "slow callback"),
        ("library_error", "asyncio", "Task exception was never retrieved future: f"),
    ]
