"""The end of work whose client is gone."""

import asyncio
from typing import Final

from aiohttp import web

from sluice_web.problems import Handler, disconnected, is_gone

POLL_S: Final = 0.2
"""How soon the work stops after the connection is closed."""


def while_connected(handler: Handler) -> Handler:
    """Return a handler that is cancelled when its client closes the connection."""

    async def run(request: web.Request) -> web.StreamResponse:
        task = asyncio.ensure_future(handler(request))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=POLL_S)
                if not task.done() and is_gone(request):
                    await _cancel(task)
        except asyncio.CancelledError:
            await _cancel(task)
            raise
        if task.cancelled() or (is_gone(request) and task.exception() is not None):
            return disconnected(request)
        return task.result()

    return run


async def _cancel(task: "asyncio.Future[web.StreamResponse]") -> None:
    task.cancel()
    await asyncio.wait({task})
