"""Waves of sources merged give records in order, as sorting all of them does."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.query_lake import log_batch

from sluice_lake.data_files import STATS_SLACK_NS, DataFile, TimeStats
from sluice_protocol.manifests import AcceptedManifest
from sluice_query.pending import batch_bounds_ns
from sluice_query.pruning import time_bounds_ns
from sluice_query.streaming import (
    BATCH_COST_BYTES,
    FIRST_WAVE_BYTES,
    KeyedRow,
    MergedWaves,
    plan_waves,
)

Source = DataFile | AcceptedManifest


def some_file(random: Random, name: int) -> tuple[DataFile, list[KeyedRow]]:
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
    return file, rows_at(times, name)


def some_batch(random: Random, name: int) -> tuple[AcceptedManifest, list[KeyedRow]]:
    """Return the manifest of a pending batch, and its rows."""
    from_ns = random.randrange(8 * STATS_SLACK_NS)
    step_ns = random.choice((0, 1, STATS_SLACK_NS))
    times = [from_ns + n * step_ns for n in range(random.randint(1, 4))]
    sent = log_batch(["x"] * len(times), start=name, from_ns=from_ns, step_ns=step_ns)
    return sent.manifest, rows_at(times, name)


def rows_at(times: list[int], name: int) -> list[KeyedRow]:
    return [((at, "a", "b", name * 100 + n), (name, n)) for n, at in enumerate(times)]


def bounds_ns(source: Source) -> tuple[float, float]:
    return time_bounds_ns(source) if isinstance(source, DataFile) else batch_bounds_ns(source)


@given(seed=st.integers(0, 2**32), newest_first=st.booleans())
def test_waves_give_records_in_order(seed: int, newest_first: bool) -> None:
    random = Random(seed)
    files = [some_file(random, name) for name in range(random.randint(0, 8))]
    batches = [some_batch(random, 50 + name) for name in range(random.choice((0, 3, 50)))]
    rows: dict[object, list[KeyedRow]] = {file.path: found for file, found in files}
    rows |= {batch.identity: found for batch, found in batches}
    limit = random.choice((1, 3, 10, 1000))
    merged, returned, later_sources = MergedWaves(limit, newest_first=newest_first), [], 0
    waves = plan_waves(
        [file for file, _ in files], [batch for batch, _ in batches], newest_first=newest_first
    )
    planned = [one.path for wave in waves for one in wave.files]
    planned_batches = [one.identity for wave in waves for one in wave.batches]
    assert len(planned) + len(planned_batches) == len(rows)
    assert {*planned, *planned_batches} == {*rows}
    assert waves[-1].until_ns is None
    for wave in waves:
        sources: list[Source] = [*wave.files, *wave.batches]
        if merged.more:
            later_sources += len(sources)
            continue
        mine = [
            (source, rows[source.path if isinstance(source, DataFile) else source.identity])
            for source in sources
        ]
        for source, some in mine:
            start, end = bounds_ns(source)
            assert all(start <= row[0][0] < end for row in some)
        found = sorted((row for _, some in mine for row in some), reverse=newest_first)
        added = merged.add(found[: merged.wanted], wave.until_ns)
        if batches and not files and not returned:
            assert added, "each wave of exact bounds has a record that is certain"
        returned += added
    every = sorted((row for found in rows.values() for row in found), reverse=newest_first)
    assert returned == [row for _, row in every[:limit]]
    assert merged.more == (len(every) > limit)
    assert later_sources == 0 or merged.more


def test_the_first_wave_has_few_pending_batches_and_later_ones_more() -> None:
    batches = [log_batch(["x"], start=n, from_ns=n).manifest for n in range(1000)]
    sizes = [len(wave.batches) for wave in plan_waves([], batches, newest_first=True)]
    assert sizes[0] <= FIRST_WAVE_BYTES // BATCH_COST_BYTES == 32
    assert sizes[0] > 20
    assert sizes[1] > 3 * sizes[0]
    assert len(sizes) <= 5


@pytest.mark.parametrize("newest_first", [True, False])
def test_records_with_one_time_in_two_waves_are_in_order(newest_first: bool) -> None:
    names = (1, 2) if newest_first else (2, 1)
    batches = [log_batch(["x"], start=name, from_ns=7).manifest for name in names]
    first, last = plan_waves([], batches, 1, newest_first=newest_first)
    merged = MergedWaves(10, newest_first=newest_first)
    found = [rows_at([7], name) for name in names]
    assert [one.batches for one in (first, last)] == [(batches[0],), (batches[1],)]
    assert merged.add(found[0], first.until_ns) == []
    assert merged.add(found[1], last.until_ns) == [(names[1], 0), (names[0], 0)]
