"""Whether this worker still takes uploads, and how many it is busy with."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sluice_gateway.metrics import GatewayMetrics
from sluice_protocol.errors import ErrorCode
from sluice_web.problems import HttpRefusal


class Lifecycle:
    """Counts running uploads; after `drain` it takes no more and tells when the last one ended."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        """Starts open and idle."""
        self._metrics = metrics
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        self.running = 0

    @contextmanager
    def upload(self) -> Iterator[None]:
        """Counts one upload while it runs.

        Raises:
            HttpRefusal: The worker is draining.
        """
        if self.draining:
            raise HttpRefusal(ErrorCode.DRAINING, "this gateway is stopping: try another one")
        self.running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if self.running == 0:
                self._idle.set()

    def drain(self) -> None:
        """Refuses new uploads from now on."""
        self.draining = True
        self._metrics.draining.set(1)

    async def wait_idle(self, time_s_max: float) -> bool:
        """Waits for the running uploads; gives whether all ended in time."""
        try:
            async with asyncio.timeout(time_s_max):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
