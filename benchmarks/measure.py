"""Interleaved measurement: subjects and controls run in turn, in one run.

The machines are shared, so only ratios within one round are significant. The figure is the median
over the rounds; the spread of the control shows how reliable it is.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from sluice_web.process_limits import trim_heaps

RESULTS: Final = Path("benchmarks/results")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of a subject or control; `units` is the number of requests, records or bytes.

    Processor time is that of this process and its children, user and system.
    """

    wall_s: float
    cpu_s: float
    units: float

    @property
    def per_second(self) -> float:
        """The units per elapsed second."""
        return self.units / self.wall_s

    @property
    def cpu_per_unit(self) -> float:
        """The processor seconds per unit."""
        return self.cpu_s / self.units


def file_system_of(folder: Path) -> str:
    """Return the kind of the file system of a folder, and for ext4 whether it has a journal."""
    mounts = [
        line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    ]
    holding = [one for one in mounts if folder.resolve().is_relative_to(one[1])]
    device, _, kind, *_ = max(holding, key=lambda one: len(one[1]))
    if kind != "ext4":
        return kind
    is_journaled = any(Path("/proc/fs/jbd2").glob(f"{Path(device).name}-*"))
    return f"ext4 {'with' if is_journaled else 'without'} a journal"


def timed(work: Callable[[], float]) -> Sample:
    """Run `work`, which returns the number of processed units, and measure it."""
    started, spent = time.perf_counter(), _cpu_s()
    units = work()
    return Sample(wall_s=time.perf_counter() - started, cpu_s=_cpu_s() - spent, units=units)


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def interleave(
    subjects: dict[str, Callable[[], Sample]], *, rounds: int = 5, warmup: int = 1
) -> dict[str, list[Sample]]:
    """Run every subject once per round, in turn; return the samples of the counted rounds."""
    samples: dict[str, list[Sample]] = {name: [] for name in subjects}
    for number in range(warmup + rounds):
        for name, run in subjects.items():
            sample = run()
            if number >= warmup:
                samples[name].append(sample)
    return samples


def ratio(
    subject: list[Sample], control: list[Sample], value: Callable[[Sample], float]
) -> tuple[float, float, float]:
    """Return the minimum, median and maximum ratio of subject to control over the rounds."""
    ratios = [value(a) / value(b) for a, b in zip(subject, control, strict=True)]
    return min(ratios), statistics.median(ratios), max(ratios)


def report(name: str, lines: list[str], samples: dict[str, list[Sample]]) -> None:
    """Print the figures and write every sample to `benchmarks/results/<name>.json`."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{name} ({machine})", *lines, sep="\n  ")
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = {
        "machine": machine,
        "lines": lines,
        "samples": {who: [asdict(sample) for sample in taken] for who, taken in samples.items()},
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1))


def _own_processes() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def forget_peaks() -> None:
    """Reset the peak memory that the kernel records of this process and its children.

    Memory that this process freed, after it made the shards, is not counted.
    """
    trim_heaps()
    for one in _own_processes():
        with suppress(OSError):
            Path(f"/proc/{one.pid}/clear_refs").write_text("5")


def peak_gib() -> float:
    """Return the sum of the peak memory of this process and all processes that it started."""
    total = 0
    for one in _own_processes():
        with suppress(OSError):
            rows = dict(
                line.split(":", 1)
                for line in Path(f"/proc/{one.pid}/status").read_text().splitlines()
            )
            total += int(rows.get("VmHWM", "0").split()[0])
    return total / 2**20
