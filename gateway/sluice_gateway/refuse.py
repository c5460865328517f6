"""Refusals that come before the body was read: the agent must be able to read them.

Closing a socket with unread bytes sends a reset, which can overtake the answer. So the answer is
sent, the sending side is closed, and what still comes is thrown away for a bounded time and size.
"""

import asyncio
import contextlib
from typing import Final

from aiohttp import web

from sluice_protocol.clock import Clock

DISCARD_BYTES_MAX: Final = 256 * 1024
DISCARD_S_MAX: Final = 2.0


async def send_refusal(request: web.Request, response: web.Response, clock: Clock) -> web.Response:
    """Sends a refusal; where the body is still on its way, half-closes and discards."""
    if request.content.is_eof():
        return response
    response.force_close()
    await response.prepare(request)
    await response.write_eof()
    await _discard(request, clock)
    return response


async def _discard(request: web.Request, clock: Clock) -> None:
    """Reads the body away; when that was enough, leaves the rest unread for the time left.

    Unread bytes stop the sender by flow control, so it has time to find the answer; closing at
    once would reset the connection under it.
    """
    transport = request.transport
    if transport is None:
        return
    if transport.can_write_eof():
        transport.write_eof()
    with contextlib.suppress(TimeoutError, ConnectionError, web.RequestPayloadError):
        async with asyncio.timeout(DISCARD_S_MAX):
            if not await _read_away(request):
                transport.pause_reading()
                await clock.sleep(DISCARD_S_MAX)
    transport.close()


async def _read_away(request: web.Request) -> bool:
    """Gives whether the body ended within the bound."""
    size_bytes = 0
    while size_bytes < DISCARD_BYTES_MAX:
        chunk = await request.content.readany()
        if not chunk:
            return True
        size_bytes += len(chunk)
    return False
