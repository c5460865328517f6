"""Parts for tests of grouped creates."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.gc_world import MovedClock

from sluice_protocol.outcomes import Found
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import ObjectKey
from sluice_store.local.durability import GroupSync, LogicalClock, fsync_directory
from sluice_store.local.files import LocalFiles
from sluice_store.local.layout import Layout
from sluice_store.local.store import GroupLimits

ALWAYS_GROUPS = GroupLimits(separate_max=0, group_min=1)
"""Every create is part of a group, also a single one."""


@dataclass
class CountedSync:
    """A sync of the file system that a test controls.

    Attributes:
        root: A folder that is synced instead of the file system.
        failing: The numbers of the calls that fail, from 0.
        ready: Whether a call may be made.
        calls: How many were made.
    """

    root: Path
    failing: frozenset[int] = frozenset()
    ready: bool = True
    calls: int = field(default=0, init=False)

    def is_ready(self) -> bool:
        return self.ready

    @contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        yield self._sync

    def _sync(self) -> None:
        self.calls += 1
        if self.calls - 1 in self.failing:
            raise OSError(5, "Input/output error")
        fsync_directory(self.root)


class GroupFiles:
    """The files of a store with a clock that a test moves, and syncs that are counted."""

    def __init__(self, root: Path) -> None:
        self.clock = MovedClock()
        self.layout = Layout(root=root)
        for folder in (self.layout.temporary, self.layout.locks, self.layout.generations):
            folder.mkdir(parents=True)
        self.syncs = CountedSync(root)
        self.stamps = LogicalClock(self.layout.clock, self.clock)
        self.files = LocalFiles(self.layout, self.stamps, GroupSync(), SystemIds(), self.syncs)

    def body(self, key: str) -> bytes | None:
        found = self.files.get(ObjectKey(key), 0, None)
        return found.body if isinstance(found, Found) else None
