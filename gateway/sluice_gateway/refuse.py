"""Refusals that come before the body was read: the agent must be able to read them.

Closing a socket with unread bytes sends a reset, which can overtake the answer. So the answer is
sent, the sending side is closed, and what still comes is thrown away for a bounded time and size.
"""

import asyncio
from typing import Final

from aiohttp import web

DISCARD_BYTES_MAX: Final = 256 * 1024
DISCARD_S_MAX: Final = 2.0


async def send_refusal(request: web.Request, response: web.Response) -> web.Response:
    """Sends a refusal; where the body is still on its way, half-closes and discards."""
    if request.content.is_eof():
        return response
    response.force_close()
    await response.prepare(request)
    await response.write_eof()
    await _discard(request)
    return response


async def _discard(request: web.Request) -> None:
    transport = request.transport
    if transport is None:
        return
    if transport.can_write_eof():
        transport.write_eof()
    try:
        async with asyncio.timeout(DISCARD_S_MAX):
            await _read_away(request)
    except (TimeoutError, ConnectionError, web.RequestPayloadError):
        pass
    transport.close()


async def _read_away(request: web.Request) -> None:
    size_bytes = 0
    while size_bytes < DISCARD_BYTES_MAX:
        chunk = await request.content.readany()
        if not chunk:
            return
        size_bytes += len(chunk)
