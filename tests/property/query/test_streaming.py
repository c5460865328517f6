"""Waves of files merged give the newest records first, as sorting all of them does."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sluice_lake.data_files import STATS_SLACK_NS, DataFile, TimeStats
from sluice_query.pruning import time_bound_ns
from sluice_query.streaming import FIRST_WAVE_BYTES, NewestFirst, plan_waves

Item = tuple[tuple[int, str, str, int], tuple[object, ...]]


def some_file(random: Random, name: int) -> tuple[DataFile, list[Item]]:
    """Return a file and its rows; some files record no statistics."""
    start = random.randrange(5) * STATS_SLACK_NS
    times = [start + random.randrange(3 * STATS_SLACK_NS) for _ in range(random.randint(1, 6))]
    known = random.random() < 0.9
    range_ns = (min(times), max(times) - random.randrange(STATS_SLACK_NS)) if known else None
    file = DataFile(
        path=str(name),
        partition="p",
        size_bytes=random.choice((1, FIRST_WAVE_BYTES // 2, FIRST_WAVE_BYTES)),
        records=len(times),
        ts=TimeStats(range_ns=range_ns, nulls=0),
    )
    rows: list[Item] = [((at, "a", "b", name * 100 + n), (name, n)) for n, at in enumerate(times)]
    return file, rows


@given(seed=st.integers(0, 2**32))
def test_waves_give_the_newest_first(seed: int) -> None:
    random = Random(seed)
    files = [some_file(random, name) for name in range(random.randint(0, 8))]
    rows = {file.path: found for file, found in files}
    limit = random.choice((1, 3, 10, 1000))
    merged, returned, later_files = NewestFirst(limit), [], 0
    waves = plan_waves([file for file, _ in files])
    assert sorted(file.path for wave in waves for file in wave.files) == sorted(rows)
    assert waves[-1].until_ns is None
    for wave in waves:
        if merged.more:
            later_files += len(wave.files)
            continue
        found = sorted((row for file in wave.files for row in rows[file.path]), reverse=True)
        assert all(
            time_bound_ns(file) > row[0][0] for file in wave.files for row in rows[file.path]
        )
        returned += merged.add(found[: merged.wanted], wave.until_ns)
    every = sorted((row for found in rows.values() for row in found), reverse=True)
    assert returned == [row for _, row in every[:limit]]
    assert merged.more == (len(every) > limit)
    assert later_files == 0 or merged.more
