"""Hold one system call of the directory store in the middle of an upload."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

HELD = (
    (os, "open"),
    (os, "write"),
    (os, "setxattr"),
    (os, "utime"),
    (os, "fsync"),
    (os, "mkdir"),
    (os, "link"),
    (os, "replace"),
    (os, "rename"),
    (os, "chmod"),
    (os, "fchmod"),
    (os, "fstat"),
    (os, "unlink"),
    (fcntl, "flock"),
)
"""Every call that the store makes to write, name, date or sync an object."""

FOREIGN = ("/proc/", "/dev/", "/usr/")


@dataclass
class Stall:
    """Hold one call: the one with this number, before or after it takes effect.

    Attributes:
        number: Which call, from 0; None only counts.
        after: Whether the call takes effect before it is held.
        names: The calls that were made, in order.
        reached: Set when the call is held.
        released: Set when the call may continue.
    """

    number: int | None = None
    after: bool = False
    names: list[str] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    counting: bool = True

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def held(*args: Any, **kwargs: Any) -> Any:
            in_store = threading.current_thread().name.startswith("sluice-store")
            if not in_store or not self.counting or str(args[0]).startswith(FOREIGN):
                return call(*args, **kwargs)
            mine = len(self.names) == self.number
            self.names.append(name)
            if mine and not self.after:
                self._hold()
            try:
                return call(*args, **kwargs)
            finally:
                if mine and self.after:
                    self._hold()

        return held

    def _hold(self) -> None:
        self.counting = False  # the calls of everyone else continue
        self.reached.set()
        assert self.released.wait(60), "a held call was never released"


@contextmanager
def stalled(stall: Stall) -> Iterator[None]:
    """Route the calls of the store's threads through `stall`."""
    kept: list[tuple[ModuleType, str, Any]] = []
    try:
        for module, name in HELD:
            with suppress(AttributeError):
                kept.append((module, name, getattr(module, name)))
                setattr(module, name, stall.around(name, kept[-1][2]))
        yield
    finally:
        stall.released.set()
        for module, name, call in kept:
            setattr(module, name, call)
