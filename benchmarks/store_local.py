"""Benchmark `store-local`: durable creates in groups, and the controls.

`grouped` is the store as it is. `separate` writes no groups: each create syncs its file, and the
fsyncs of directories are shared. `single` shares nothing: every create makes its fsyncs
concurrently with the others, and the file system may group them. The keys are content-addressed
and unused, with 32 concurrent creates, on the disk of `SLUICE_BENCH_DIR` or of the temporary
directory. All run in turn in every round.

The same is measured on a disk whose flush costs 4 ms, which is simulated: every fsync and syncfs
waits for a flush. `shared` flushes serve all callers that arrived before, as the block layer of
Linux merges them. `serial` flushes serve one caller each.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Sample, interleave, ratio, report, timed
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.outcomes import Applied
from sluice_protocol.system_clock import SystemClock
from sluice_store.local import open_local_store
from sluice_store.local.durability import (
    DirectorySync,
    FileSystemSync,
    GroupSync,
    NoFileSystemSync,
    fsync_directory,
    open_filesystem_sync,
)

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

CONCURRENCY: Final = 32
CREATES: Final = 640
SLOW_CREATES: Final = 128
BODY_BYTES: Final = 4096
ROUNDS: Final = 5
FLUSH_S: Final = 0.004
RATIO_MIN: Final = 2.5
CPU_RATIO_MAX: Final = 0.7


class SingleSync:
    """Control: every caller syncs its directories without sharing."""

    def sync(self, directories: Iterable[str]) -> None:
        """Sync them one after the other."""
        for directory in directories:
            fsync_directory(directory)


@dataclass
class ReadySync:
    """Syncs of the file system that do not depend on what other programs write."""

    inner: FileSystemSync
    flush: Callable[[], None]

    def is_ready(self) -> bool:
        """Return True."""
        return True

    @contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        """Return a sync of the file system that also flushes the simulated disk."""
        with self.inner.watched() as sync:

            def slow() -> None:
                sync()
                self.flush()

            yield slow


@dataclass
class SlowDisk:
    """A disk that flushes for `FLUSH_S`, one flush at a time.

    A shared flush serves every caller that arrived before it began.
    """

    shared: bool
    turn: threading.Lock = field(default_factory=threading.Lock)
    begun: int = 0

    def flush(self) -> None:
        """Return when a flush that began after the call has ended."""
        arrived = self.begun
        with self.turn:
            if self.shared and self.begun > arrived:
                return  # a flush that began after the call has ended
            self.begun += 1
            time.sleep(FLUSH_S)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Make every fsync of this process wait for a flush."""
        fsync = os.fsync

        def slow(fd: "FileDescriptorLike") -> None:
            fsync(fd)
            self.flush()

        os.fsync = slow
        try:
            yield
        finally:
            os.fsync = fsync


async def creates(
    folder: Path, syncer: DirectorySync, filesystem: FileSystemSync, count: int
) -> float:
    """Create objects under unused keys; return their number."""
    async with open_local_store(folder, syncer=syncer, filesystem=filesystem) as store:
        numbers = iter(range(count))

        async def one() -> None:
            for _ in numbers:
                body = os.urandom(BODY_BYTES)
                digest = digest_of(body)
                outcome = await store.create(blob_key(digest), body, sha256=digest)
                if not isinstance(outcome, Applied):
                    raise TypeError(outcome)

        await asyncio.gather(*(one() for _ in range(CONCURRENCY)))
    return count


def run(folder: Path, kind: str, disk: SlowDisk | None = None) -> Sample:
    """Measure one run."""
    folder.mkdir(exist_ok=True)
    whole: FileSystemSync = NoFileSystemSync()
    if kind == "grouped":
        inner = open_filesystem_sync(folder, SystemClock())
        whole = ReadySync(inner, disk.flush if disk else lambda: None)
    syncer = SingleSync() if kind == "single" else GroupSync()
    if disk is None:
        return timed(lambda: asyncio.run(creates(folder, syncer, whole, CREATES)))
    with disk.attached():
        return timed(lambda: asyncio.run(creates(folder, syncer, whole, SLOW_CREATES)))


def main() -> int:
    """Run the benchmark; return 1 if a target is missed."""
    base = os.environ.get("SLUICE_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=base) as made:
        folder = Path(made)
        subjects: dict[str, Callable[[], Sample]] = {}
        for kind in ("grouped", "separate", "single"):
            subjects[kind] = partial(run, folder / kind, kind)
            for name, shared in (("shared", True), ("serial", False)):
                slow = partial(run, folder / kind, kind, SlowDisk(shared))
                subjects[f"{kind}, {name} flushes"] = slow
        samples = interleave(subjects, rounds=ROUNDS)
    cpu, line = compare(samples, "grouped", "separate", "CPU per create", _cpu_us)
    lines = [line]
    ratios = []
    for suffix in ("", ", shared flushes", ", serial flushes"):
        for control in ("separate", "single"):
            pair = (f"grouped{suffix}", f"{control}{suffix}")
            value, line = compare(samples, *pair, "creates/s", lambda one: one.per_second)
            lines.append(line)
            ratios.append(value)
    lines.append(f"{BODY_BYTES} bytes, concurrency {CONCURRENCY}, {ROUNDS} rounds")
    lines.append(f"targets: CPU at most {CPU_RATIO_MAX}; {RATIO_MIN} times single, serial flushes")
    report("store_local", lines, samples)
    return 0 if cpu <= CPU_RATIO_MAX and ratios[-1] >= RATIO_MIN else 1


def _cpu_us(sample: Sample) -> float:
    return 1e6 * sample.cpu_per_unit


def compare(
    samples: dict[str, list[Sample]],
    subject: str,
    control: str,
    what: str,
    value: Callable[[Sample], float],
) -> tuple[float, str]:
    """Return the median ratio of a subject to a control, and its line."""
    low, middle, high = ratio(samples[subject], samples[control], value)
    ours = statistics.median(map(value, samples[subject]))
    other = statistics.median(map(value, samples[control]))
    line = (
        f"{what}: {ours:.0f} {subject} against {other:.0f} {control},"
        f" ratio {middle:.2f} ({low:.2f} to {high:.2f})"
    )
    return middle, line


if __name__ == "__main__":
    sys.exit(main())
