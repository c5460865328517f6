"""Benchmark `store-local`: durable creates with grouped directory fsyncs, and two controls.

`serial` runs one directory fsync at a time, so that none shares a commit. `single` lets every
create sync its directory concurrently; the file system may group these fsyncs. The keys are
content-addressed and unused, with 32 concurrent creates, on the disk of `SLUICE_BENCH_DIR` or of
the temporary directory. The subjects run in turn in every round. A further control measures the
cost of one fsync.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.measure import Sample, interleave, ratio, report, timed
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.outcomes import Applied
from sluice_store.local import open_local_store
from sluice_store.local.durability import DirectorySync, GroupSync, fsync_directory

CONCURRENCY: Final = 32
CREATES: Final = 640
BODY_BYTES: Final = 4096
ROUNDS: Final = 7
RATIO_MIN: Final = 3.0
FSYNC_COSTS_MS: Final = 1.0


class SingleSync:
    """Control: every caller syncs its directories without sharing."""

    def sync(self, directories: Iterable[str]) -> None:
        """Sync them one after the other."""
        for directory in directories:
            fsync_directory(directory)


class SerialSync:
    """Control: one fsync runs at a time, so that none shares a commit of the file system."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def sync(self, directories: Iterable[str]) -> None:
        """Sync them one after the other, one caller at a time."""
        for directory in directories:
            with self._turn:
                fsync_directory(directory)


async def creates(folder: Path, syncer: DirectorySync) -> float:
    """Create objects under unused keys; return their number."""
    async with open_local_store(folder, syncer=syncer) as store:
        numbers = iter(range(CREATES))

        async def one() -> None:
            for _ in numbers:
                body = os.urandom(BODY_BYTES)
                digest = digest_of(body)
                outcome = await store.create(blob_key(digest), body, sha256=digest)
                if not isinstance(outcome, Applied):
                    raise TypeError(outcome)

        await asyncio.gather(*(one() for _ in range(CONCURRENCY)))
    return CREATES


def run(folder: Path, syncer: DirectorySync) -> Sample:
    """Measure one run."""
    return timed(lambda: asyncio.run(creates(folder, syncer)))


def fsyncs(folder: Path) -> Sample:
    """Write and sync small files one after the other, as a control without links."""

    def work() -> float:
        for number in range(100):
            fd = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT)
            os.write(fd, number.to_bytes(4, "big"))
            os.fsync(fd)
            os.close(fd)
        return 100

    return timed(work)


def main() -> int:
    """Run the benchmark; return 1 if the target is missed."""
    base = os.environ.get("SLUICE_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=base) as name:
        folder = Path(name)
        samples = interleave(
            {
                "grouped": lambda: run(folder / "grouped", GroupSync()),
                "serial": lambda: run(folder / "serial", SerialSync()),
                "single": lambda: run(folder / "single", SingleSync()),
                "fsync": lambda: fsyncs(folder),
            },
            rounds=ROUNDS,
        )
    fsync_ms = 1000 / median_rate(samples["fsync"])
    lines = [compare(samples, control) for control in ("serial", "single")]
    lines.append(
        f"target: at least {RATIO_MIN} times serial where an fsync is slow; here {fsync_ms:.2f} ms"
    )
    lines.append(f"{BODY_BYTES} bytes, concurrency {CONCURRENCY}, {ROUNDS} rounds")
    report("store_local", lines, samples)
    middle = ratio(samples["grouped"], samples["serial"], lambda one: one.per_second)[1]
    return 0 if middle >= RATIO_MIN or fsync_ms < FSYNC_COSTS_MS else 1


def median_rate(samples: list[Sample]) -> float:
    """Return the median of the units per second."""
    return statistics.median(one.per_second for one in samples)


def compare(samples: dict[str, list[Sample]], control: str) -> str:
    """Return the line of one control."""
    low, middle, high = ratio(samples["grouped"], samples[control], lambda one: one.per_second)
    grouped, other = median_rate(samples["grouped"]), median_rate(samples[control])
    return (
        f"{grouped:.0f} durable creates/s grouped against {other:.0f} {control},"
        f" ratio {middle:.1f} ({low:.1f} to {high:.1f})"
    )


if __name__ == "__main__":
    sys.exit(main())
