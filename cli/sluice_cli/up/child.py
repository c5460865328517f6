"""Runs one service for the supervisor, and ends it when the supervisor has ended.

`python -m sluice_cli.up.child GRACE_S COMMAND …`. Standard input is a pipe whose other end only
the supervisor has open. Its end means that the supervisor was stopped or killed.

The processes below a service are recorded before it ends, and killed if they survive it. Spark's
workers and its JVM run in separate sessions, so a signal to the process group of the service does
not reach them. When the service has ended, they are no longer below it.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

import psutil

from sluice_cli.main import run

_LOOK_S = 0.25


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


def watch_supervisor(pipe: int, grace_s: float, below: DescendantRecord) -> None:
    """Wait for the end of the supervisor, stop this process, and kill what is left of it."""
    while os.read(pipe, 1):
        pass  # nothing is ever sent
    # The log's reader has ended too: a write would fail and cut the orderly stop short.
    null = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(null, output)
    below.add_below((os.getpid(),))
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(int(grace_s / _LOOK_S)):
        time.sleep(_LOOK_S)
        below.add_below((os.getpid(),))
    below.kill()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main() -> NoReturn:
    """Run the command line after the first word."""
    grace_s, words = float(sys.argv[1]), sys.argv[2:]
    pipe = os.dup(0)  # not inherited by the processes of the service
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    below = DescendantRecord()
    threading.Thread(target=watch_supervisor, args=(pipe, grace_s, below), daemon=True).start()
    try:
        sys.exit(run(words))
    finally:
        below.kill()  # empty while the supervisor runs: it does the same


if __name__ == "__main__":
    main()
