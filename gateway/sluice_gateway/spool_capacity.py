"""The capacity of a spool: an upload is refused before the disk is full.

A reserve of free space remains, because the transfer writes journals' states and markers before it
can free anything else. The bytes of the blobs are counted when they are stored and dropped, and
counted again by each scan.
"""

import shutil
from pathlib import Path
from typing import Final

from sluice_gateway.metrics import GatewayMetrics
from sluice_protocol.clock import Clock
from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import NS_PER_S
from sluice_web.problems import HttpRefusal

MEASURE_S: Final = 1.0
"""Time between two measurements of the free space; stored bytes are subtracted in between."""


class SpoolCapacity:
    """Decides whether a spool has room.

    Attributes:
        used_bytes: The bytes of its blobs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        bytes_max: int,
        free_bytes_min: int,
        clock: Clock,
        metrics: GatewayMetrics,
    ) -> None:
        """Bind a spool.

        Args:
            folder: Its directory.
            bytes_max: Maximum bytes of blobs; 0 for no maximum.
            free_bytes_min: Free space that uploads leave on the disk.
            clock: The clocks of this machine.
            metrics: The metrics of the gateway.
        """
        self._folder = folder
        self._bytes_max = bytes_max
        self._free_bytes_min = free_bytes_min
        self._clock = clock
        self._metrics = metrics
        self._free_bytes: int | None = None
        self._measured_ns: int | None = None
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
        """Refuse an upload that the spool has no room for, before anything is written.

        Raises:
            HttpRefusal: The spool is full; the same bytes may be sent later.
        """
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

    def stored(self, size_bytes: int) -> None:
        """Count a blob that was stored."""
        self.counted(self.used_bytes + size_bytes)
        if self._free_bytes is not None:
            self._free_bytes -= size_bytes

    def dropped(self, size_bytes: int) -> None:
        """Count a blob that was deleted."""
        self.counted(max(0, self.used_bytes - size_bytes))

    def counted(self, used_bytes: int) -> None:
        """Set the bytes of all blobs."""
        self.used_bytes = used_bytes
        self._metrics.spool_bytes.set(used_bytes)
