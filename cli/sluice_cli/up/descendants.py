"""The processes below a service: recorded before it ends, killed if they survive it.

Spark's workers and its JVM run in separate sessions, so a signal to the process group of the
service does not reach them. When the service has ended, they are no longer below it.
"""

from collections.abc import Iterable
from contextlib import suppress

import psutil


class DescendantRecord:
    """Every process that was seen below some processes."""

    def __init__(self) -> None:
        self._seen: set[psutil.Process] = set()

    def add_below(self, pids: Iterable[int]) -> None:
        """Record what is below these processes now."""
        for pid in pids:
            with suppress(psutil.Error):
                self._seen.update(psutil.Process(pid).children(recursive=True))

    def kill(self) -> None:
        """Kill those that still run; another process with the same id is left alone."""
        for one in self._seen:
            with suppress(psutil.Error):
                one.kill()
