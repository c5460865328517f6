"""Responses that are sent before the request body was read.

A socket that is closed with unread bytes sends a reset, which can overtake the response. So the
response is sent, the sending side is closed, and the rest of the body is discarded for a bounded
time and size.
"""

import asyncio
import contextlib
from typing import Final

from aiohttp import web

DISCARD_BYTES_MAX: Final = 256 * 1024
DISCARD_S_MAX: Final = 2.0


async def send_before_body(request: web.Request, response: web.Response) -> web.Response:
    """Send a response; where the body has not arrived completely, half-close and discard it."""
    if request.content.is_eof():
        return response
    response.force_close()
    await response.prepare(request)
    await response.write_eof()
    await _discard(request)
    return response


async def _discard(request: web.Request) -> None:
    """Discard the body up to the bounds, then wait until the time is over.

    Bytes that stay unread stop the sender by flow control, so it has time to read the response.
    Closing immediately would reset the connection before that.
    """
    transport = request.transport
    if transport is None:
        return
    if transport.can_write_eof():
        transport.write_eof()
    with contextlib.suppress(TimeoutError, ConnectionError, web.RequestPayloadError):
        async with asyncio.timeout(DISCARD_S_MAX):
            if not await _read_to_bound(request):
                transport.pause_reading()
                await asyncio.get_running_loop().create_future()  # ends with the timeout
    transport.close()


async def _read_to_bound(request: web.Request) -> bool:
    """Return whether the body ended within `DISCARD_BYTES_MAX`."""
    size_bytes = 0
    while size_bytes < DISCARD_BYTES_MAX:
        chunk = await request.content.readany()
        if not chunk:
            return True
        size_bytes += len(chunk)
    return False
