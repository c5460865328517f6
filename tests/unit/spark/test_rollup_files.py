"""Which files of `metrics` a source range reads, and which files of `rollups` are merged."""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from support.constants import settings_with

from sluice_lake.data_files import DataFile, TimeStats
from sluice_lake.source_ranges import SourceRange
from sluice_spark.compaction.file_merges import plan_rollup_merges
from sluice_spark.rollups.inputs import select_point_files
from sluice_spark.settings import CompactSettings

HOUR_NS = 3600 * 10**9
LANES = 2
Point = tuple[int, int, int]
"""Lane, queue sequence, hour."""


@dataclass
class Metrics:
    """The table `metrics`: its files by path, and the lane versions of each version."""

    files: dict[str, list[Point]] = field(default_factory=dict)
    versions: list[tuple[set[str], dict[int, int]]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(LANES), 0))
    made: int = 0

    def add(self, points: list[Point]) -> None:
        self.made += 1
        self.files[f"f{self.made}"] = points

    def commit(self) -> None:
        self.versions.append((set(self.files), dict(self.ends)))

    def ingest(self, random: Random) -> None:
        points = []
        for lane in range(LANES):
            for _ in range(random.randint(0, 3)):
                self.ends[lane] += random.randint(1, 3)
                points.append((lane, self.ends[lane], random.randint(0, 9)))
        if points:
            self.add(points)
        self.commit()

    def compact(self, random: Random) -> None:
        chosen = [path for path in self.files if random.random() < 0.5]
        points = [point for path in chosen for point in self.files.pop(path)]
        if points:
            self.add(points)
        self.commit()

    def data_files(self) -> list[DataFile]:
        return [
            DataFile(
                path=path,
                partition="2026-09-21",
                size_bytes=1,
                ts=TimeStats(
                    range_ns=(
                        min(p[2] for p in points) * HOUR_NS,
                        max(p[2] for p in points) * HOUR_NS,
                    )
                ),
                sequences=(min(p[1] for p in points), max(p[1] for p in points)),
            )
            for path, points in self.files.items()
        ]


@given(seed=st.integers(0, 2**32))
def test_every_point_of_a_range_is_in_a_selected_file(seed: int) -> None:
    """Whatever was ingested and compacted since the version that the previous range names."""
    random = Random(seed)
    metrics = Metrics()
    metrics.commit()
    number, through = 0, dict.fromkeys(range(LANES), 0)
    known: set[str] | None = None
    for _ in range(random.randint(1, 12)):
        random.choice([metrics.ingest, metrics.compact])(random)
        if random.random() < 0.5:
            continue
        paths, ends = metrics.versions[-1]
        number += 1
        source = SourceRange(
            number=number,
            after={str(lane): end for lane, end in through.items()},
            through={str(lane): end for lane, end in ends.items()},
        )
        random.choice([metrics.compact, lambda _: None])(random)
        hours = sorted(random.sample(range(10), random.choice([0, 0, 3])))
        chosen = {
            one.path
            for one in select_point_files(
                metrics.data_files(), source, lanes=LANES, known=known, hours=hours
            )
        }
        for path, points in metrics.files.items():
            for lane, sequence, hour in points:
                if through[lane] < sequence <= ends[lane] or hour in hours:
                    assert path in chosen
        through, known = dict(ends), paths


def test_a_file_that_the_previous_range_knew_is_not_read() -> None:
    """Even if its statistics mix a slow lane with a fast one."""
    source = SourceRange(number=2, after={"0": 10, "1": 900}, through={"0": 12, "1": 905})
    mixed = DataFile(path="old", partition="2026-09-21", size_bytes=1, sequences=(3, 900))
    fresh = DataFile(path="new", partition="2026-09-21", size_bytes=1, sequences=(11, 904))
    merged = DataFile(path="merged", partition="2026-09-21", size_bytes=1, sequences=(1, 10))
    chosen = select_point_files([mixed, fresh, merged], source, lanes=2, known={"old"})
    assert [one.path for one in chosen] == ["new"]
    unknown = select_point_files([mixed, fresh, merged], source, lanes=2, known=None)
    assert [one.path for one in unknown] == ["old", "new"]


def test_the_small_files_of_dates_that_ended_are_merged() -> None:
    def file(path: str, day: str, size: int = 10) -> DataFile:
        return DataFile(path=path, partition=day, size_bytes=size)

    files = [
        file("a", "2026-09-20"),
        file("b", "2026-09-20"),
        file("large", "2026-09-20", 90),
        file("alone", "2026-09-19"),
        file("c", "2026-09-21"),
        file("d", "2026-09-21"),
    ]
    noon_ns = 1_790_000_000 * 10**9
    settings = settings_with(CompactSettings, target_bytes=100)
    (merge,) = plan_rollup_merges(files, settings, noon_ns)
    assert [one.path for one in merge] == ["a", "b"]
    both = list(plan_rollup_merges(files, CompactSettings(open_partitions=True), noon_ns))
    assert [len(one) for one in both] == [3, 2]
