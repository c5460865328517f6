"""The input of host metrics: what /proc and statvfs say, under OpenTelemetry's names.

Counters that only rise since boot are `cumulative`; everything else is a gauge.

Source: proc(5); OpenTelemetry semantic conventions, system metrics.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from sluice_agent.batching import RECORD_COST_BYTES, RecordBlock
from sluice_agent.columns import Pairs, attribute_columns
from sluice_protocol.columns import MetricColumns
from sluice_protocol.units import UnixNs

GAUGE: Final = 0
CUMULATIVE: Final = 2
_CPU_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_MEMORY: Final = {
    "MemFree": "free",
    "MemAvailable": "available",
    "Buffers": "buffers",
    "Cached": "cached",
}
_KIB: Final = 1024
_REAL_FILE_SYSTEMS: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "overlay"}
)
_SECTOR_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMetric:
    """One measured value."""

    name: str
    value: float
    type: int = GAUGE
    attributes: tuple[tuple[str, str], ...] = ()


class HostMetricsInput:
    """Reads the host's own metrics. It blocks for a moment."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Takes the place of procfs."""
        self._proc = proc
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def sample(self, *, now_ns: UnixNs) -> RecordBlock | None:
        """Gives one point of each metric; what the system does not tell is left out."""
        points = list(self._points())
        if not points:
            return None
        columns = metrics_from_points(points, now_ns=now_ns)
        return RecordBlock(columns=columns, cost_bytes=4 * RECORD_COST_BYTES * len(points))

    def _points(self) -> Iterator[HostMetric]:
        yield from self._load()
        yield from self._cpu()
        yield from self._memory()
        yield from self._disks()
        yield from self._file_systems()

    def _lines(self, name: str) -> list[list[str]]:
        try:
            text = (self._proc / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line.split() for line in text.splitlines() if line]

    def _load(self) -> Iterator[HostMetric]:
        for words in self._lines("loadavg"):
            for minutes, word in zip((1, 5, 15), words, strict=False):
                yield HostMetric(name=f"system.cpu.load_average.{minutes}m", value=float(word))

    def _cpu(self) -> Iterator[HostMetric]:
        for words in self._lines("stat"):
            if words[0] != "cpu":
                continue
            for mode, ticks in zip(_CPU_MODES, words[1:], strict=False):
                yield HostMetric(
                    name="system.cpu.time",
                    value=int(ticks) / self._ticks_per_s,
                    type=CUMULATIVE,
                    attributes=(("cpu.mode", mode),),
                )

    def _memory(self) -> Iterator[HostMetric]:
        sizes = {w[0].rstrip(":"): int(w[1]) * _KIB for w in self._lines("meminfo") if len(w) > 1}
        if "MemTotal" in sizes:
            yield HostMetric(name="system.memory.limit", value=sizes["MemTotal"])
        for field, state in _MEMORY.items():
            if field in sizes:
                yield HostMetric(
                    name="system.memory.usage",
                    value=sizes[field],
                    attributes=(("system.memory.state", state),),
                )

    def _disks(self) -> Iterator[HostMetric]:
        for words in self._lines("diskstats"):
            if len(words) < 10 or words[2].startswith(("loop", "ram")):  # noqa: PLR2004 - columns
                continue
            for direction, sectors in (("read", words[5]), ("write", words[9])):
                yield HostMetric(
                    name="system.disk.io",
                    value=int(sectors) * _SECTOR_BYTES,
                    type=CUMULATIVE,
                    attributes=(("system.device", words[2]), ("disk.io.direction", direction)),
                )

    def _file_systems(self) -> Iterator[HostMetric]:
        seen: set[str] = set()
        for words in self._lines("mounts"):
            if len(words) < 3 or words[2] not in _REAL_FILE_SYSTEMS or words[0] in seen:  # noqa: PLR2004
                continue
            seen.add(words[0])
            try:
                status = os.statvfs(words[1])
            except OSError:
                continue
            free = status.f_bavail * status.f_frsize
            used = (status.f_blocks - status.f_bfree) * status.f_frsize
            for state, size_bytes in (("free", free), ("used", used)):
                yield HostMetric(
                    name="system.filesystem.usage",
                    value=size_bytes,
                    attributes=(
                        ("system.filesystem.mountpoint", words[1]),
                        ("system.filesystem.state", state),
                    ),
                )


def metrics_from_points(points: list[HostMetric], *, now_ns: UnixNs) -> MetricColumns:
    """Makes columns of points that were measured at one time."""
    names: dict[str, int] = {}
    index = [names.setdefault(point.name, len(names)) for point in points]
    attributes: list[Pairs] = [list(point.attributes) for point in points]
    return MetricColumns(
        ts=np.full(len(points), now_ns, np.int64),
        names=tuple(names),
        name=np.array(index, np.uint32),
        value=np.array([point.value for point in points], np.float64),
        type=np.array([point.type for point in points], np.uint8),
        attributes=attribute_columns(attributes),
    )
