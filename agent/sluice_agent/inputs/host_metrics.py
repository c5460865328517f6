"""The input of host metrics: what psutil reads, under OpenTelemetry's metric names.

Counters that only increase from boot on are `cumulative`; every other metric is a gauge.

Source: OpenTelemetry semantic conventions, system metrics; the psutil manual; ADR 44.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import psutil
import structlog

from sluice_agent.inputs.file_names import shown_name
from sluice_agent.spool.batching import RECORD_COST_BYTES, RecordBlock
from sluice_protocol.columns import MetricColumns, NameColumn
from sluice_protocol.records import attribute_columns
from sluice_protocol.units import UnixNs

GAUGE: Final = 0
CUMULATIVE: Final = 2
_CPU_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_MEMORY_STATES: Final = ("free", "available", "buffers", "cached")
_VIRTUAL_DISKS: Final = ("loop", "ram")
_DISK_FILE_SYSTEMS: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "overlay"}
)
_log: Final = structlog.get_logger("sluice.agent.host_metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMetric:
    """One measured value."""

    name: str
    value: float
    type: int = GAUGE
    attributes: tuple[tuple[str, str], ...] = ()


MetricSource = Callable[[], Iterator[HostMetric]]


class HostMetricsInput:
    """Samples the metrics of this host. A sample blocks for about a millisecond."""

    def __init__(
        self, sources: Sequence[MetricSource] | None = None, *, wait_s: float = 0.0
    ) -> None:
        """By default, read all sources.

        `wait_s` is how long samples may wait for their batch. The first sample does not wait, so
        that a new host is visible within seconds.
        """
        self._sources = SOURCES if sources is None else tuple(sources)
        self._wait_s = wait_s
        self._is_first = True
        self._failed: set[MetricSource] = set()

    def sample(self, *, now_ns: UnixNs) -> RecordBlock | None:
        """Return one record for each metric, or None if the system provides no metric.

        A source that the system does not provide is logged once and left out.
        """
        metrics = [metric for source in self._sources for metric in self._read(source)]
        if not metrics:
            return None
        wait_s, self._is_first = 0.0 if self._is_first else self._wait_s, False
        return RecordBlock(
            columns=columns_from_metrics(metrics, now_ns=now_ns),
            cost_bytes=4 * RECORD_COST_BYTES * len(metrics),
            may_wait=True,
            wait_s=wait_s,
        )

    def _read(self, source: MetricSource) -> list[HostMetric]:
        try:
            return list(source())
        except (OSError, psutil.Error, NotImplementedError) as error:
            if source not in self._failed:
                self._failed.add(source)
                _log.warning("host_metrics_unavailable", source=source.__name__, reason=str(error))
            return []


def load_averages() -> Iterator[HostMetric]:
    """Read the load averages."""
    for minutes, value in zip((1, 5, 15), psutil.getloadavg(), strict=True):
        yield HostMetric(name=f"system.cpu.load_average.{minutes}m", value=value)


def cpu_times() -> Iterator[HostMetric]:
    """Read the seconds that the CPUs together spent in each mode."""
    times = psutil.cpu_times()
    for mode in _CPU_MODES:
        if mode in times._fields:  # not every system counts every mode
            yield HostMetric(
                name="system.cpu.time",
                value=getattr(times, mode),
                type=CUMULATIVE,
                attributes=(("cpu.mode", mode),),
            )


def memory() -> Iterator[HostMetric]:
    """Read the size of the memory and how it is used, in bytes."""
    sizes = psutil.virtual_memory()
    yield HostMetric(name="system.memory.limit", value=sizes.total)
    for state in _MEMORY_STATES:
        if state in sizes._fields:
            yield HostMetric(
                name="system.memory.usage",
                value=getattr(sizes, state),
                attributes=(("system.memory.state", state),),
            )


def disks() -> Iterator[HostMetric]:
    """Read the bytes read from and written to each disk and partition."""
    counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    for device, counted in counters.items():
        if device.startswith(_VIRTUAL_DISKS):
            continue
        for direction, value in (("read", counted.read_bytes), ("write", counted.write_bytes)):
            yield HostMetric(
                name="system.disk.io",
                value=value,
                type=CUMULATIVE,
                attributes=(("system.device", device), ("disk.io.direction", direction)),
            )


def file_systems() -> Iterator[HostMetric]:
    """Read the free and used bytes of each file system on a disk, at its first mount point."""
    seen: set[str] = set()
    for mount in psutil.disk_partitions(all=True):
        if mount.fstype not in _DISK_FILE_SYSTEMS or mount.device in seen:
            continue
        seen.add(mount.device)
        try:
            usage = psutil.disk_usage(mount.mountpoint)
        except OSError:  # unmounted meanwhile, or not readable
            continue
        for state, value in (("free", usage.free), ("used", usage.used)):
            yield HostMetric(
                name="system.filesystem.usage",
                value=value,
                attributes=(
                    ("system.filesystem.mountpoint", shown_name(mount.mountpoint)),
                    ("system.filesystem.state", state),
                ),
            )


SOURCES: Final[tuple[MetricSource, ...]] = (load_averages, cpu_times, memory, disks, file_systems)


def columns_from_metrics(metrics: list[HostMetric], *, now_ns: UnixNs) -> MetricColumns:
    """Return the columns of metrics that were measured at one time."""
    names: dict[str, int] = {}
    index = [names.setdefault(metric.name, len(names)) for metric in metrics]
    return MetricColumns(
        ts=np.full(len(metrics), now_ns, np.int64),
        name=NameColumn(names=tuple(names), indexes=np.array(index, np.uint32)),
        value=np.array([metric.value for metric in metrics], np.float64),
        type=np.array([metric.type for metric in metrics], np.uint8),
        attributes=attribute_columns([dict(metric.attributes) for metric in metrics]),
    )
