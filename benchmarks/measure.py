"""Interleaved measurement: each subject beside its control, in turn, in one run.

The machines are shared, so only ratios inside one round count; the median over the rounds is the
figure, and the control's own spread tells how much to trust it.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

RESULTS: Final = Path("benchmarks/results")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run: how long, how much processor time of this process and its children, how much done.

    Attributes:
        wall_s: Elapsed seconds.
        cpu_s: Processor seconds, user and system.
        units: What was done: requests, records or bytes.
    """

    wall_s: float
    cpu_s: float
    units: float

    @property
    def per_second(self) -> float:
        """Units per elapsed second."""
        return self.units / self.wall_s

    @property
    def cpu_per_unit(self) -> float:
        """Processor seconds per unit."""
        return self.cpu_s / self.units


def timed(work: Callable[[], float]) -> Sample:
    """Runs `work`, which gives the number of units done, and measures it."""
    started, spent = time.perf_counter(), _cpu_s()
    units = work()
    return Sample(wall_s=time.perf_counter() - started, cpu_s=_cpu_s() - spent, units=units)


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def interleave(
    subjects: dict[str, Callable[[], Sample]], *, rounds: int = 5, warmup: int = 1
) -> dict[str, list[Sample]]:
    """Runs every subject once a round, in turn, and gives the samples of the counted rounds."""
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
    """Gives least, median and greatest ratio of subject to control, round by round."""
    ratios = [value(a) / value(b) for a, b in zip(subject, control, strict=True)]
    return min(ratios), statistics.median(ratios), max(ratios)


def report(name: str, lines: list[str], samples: dict[str, list[Sample]]) -> None:
    """Prints the figures and keeps every sample in `benchmarks/results/<name>.json`."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{name} ({machine})", *lines, sep="\n  ")
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = {
        "machine": machine,
        "lines": lines,
        "samples": {who: [asdict(sample) for sample in taken] for who, taken in samples.items()},
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1))
