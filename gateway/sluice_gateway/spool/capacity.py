"""The capacity of a spool: an upload is refused before the disk is full.

A reserve of free space remains, because the transfer writes journals' states and markers before it
can free anything else. The blobs are counted by key when they are stored and dropped, so a listing
that runs at the same time counts none of them twice. Each scan counts them again.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sluice_gateway.metrics import GatewayMetrics
from sluice_protocol.clock import Clock
from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_web.problems import HttpRefusal

MEASURE_S: Final = 1.0
"""Time between two measurements of the free space; stored bytes are subtracted in between."""


class SpoolCapacity:
    """Decides whether a spool has room; its memory grows with the number of blobs in the spool."""

    def __init__(
        self,
        folder: Path,
        *,
        bytes_max: int,
        free_bytes_min: int,
        clock: Clock,
        metrics: GatewayMetrics,
    ) -> None:
        """Bind a spool; `bytes_max` 0 is no maximum, and uploads leave `free_bytes_min`."""
        self._folder = folder
        self._bytes_max = bytes_max
        self._free_bytes_min = free_bytes_min
        self._clock = clock
        self._metrics = metrics
        self._free_bytes: int | None = None
        self._measured_ns: int | None = None
        self._blobs: dict[ObjectKey, int] = {}
        self._changed_since: set[ObjectKey] | None = None
        self.used_bytes = 0
        metrics.spool_free.set_function(lambda: float(self.free_bytes() or 0))
        metrics.spool_capacity.set(bytes_max)

    def free_bytes(self) -> int | None:
        """Return the free space of the disk; None if it cannot be measured."""
        now_ns = self._clock.monotonic_ns()
        if self._measured_ns is None or now_ns - self._measured_ns >= MEASURE_S * NS_PER_S:
            self._measured_ns = now_ns
            try:
                self._free_bytes = shutil.disk_usage(self._folder).free
            except OSError:
                self._free_bytes = None
        return self._free_bytes

    def require_room(self, size_bytes: int) -> None:
        """Refuse an upload that the spool has no room for, before anything is written."""
        free_bytes = self.free_bytes()
        if self._bytes_max and self.used_bytes + size_bytes > self._bytes_max:
            reason = f"used_bytes=`{self.used_bytes}`, spool_bytes_max=`{self._bytes_max}`"
        elif free_bytes is not None and free_bytes - size_bytes < self._free_bytes_min:
            reason = f"free_bytes=`{free_bytes}`, spool_free_bytes_min=`{self._free_bytes_min}`"
        else:
            return
        self._metrics.spool_full.inc()
        raise HttpRefusal(
            ErrorCode.OVERLOADED, f"the spool is full: wait until batches are transferred, {reason}"
        )

    def stored(self, key: ObjectKey, size_bytes: int) -> None:
        """Count a blob that was stored; one that is counted already stays counted once."""
        self._note_change(key)
        if key in self._blobs:
            return
        self._add(key, size_bytes)
        if self._free_bytes is not None:
            self._free_bytes -= size_bytes

    def dropped(self, key: ObjectKey) -> None:
        """Count a blob as deleted, with every version of it."""
        self._note_change(key)
        self._remove(key)

    def begin_count(self) -> None:
        """Begin to count again; `end_count` takes what was listed after this call."""
        self._changed_since = set()

    def end_count(self, listed: Mapping[ObjectKey, int]) -> None:
        """Correct the count by a complete listing.

        What was stored or dropped since `begin_count` is newer than the listing and stays.
        """
        changed = self._changed_since or set()
        for key in self._blobs.keys() - listed.keys() - changed:
            self._remove(key)
        for key in listed.keys() - self._blobs.keys() - changed:
            self._add(key, listed[key])
        self._changed_since = None

    def _note_change(self, key: ObjectKey) -> None:
        if self._changed_since is not None:
            self._changed_since.add(key)

    def _add(self, key: ObjectKey, size_bytes: int) -> None:
        self._blobs[key] = size_bytes
        self._count(size_bytes)

    def _remove(self, key: ObjectKey) -> None:
        self._count(-self._blobs.pop(key, 0))

    def _count(self, change_bytes: int) -> None:
        self.used_bytes += change_bytes
        self._metrics.spool_bytes.set(self.used_bytes)
