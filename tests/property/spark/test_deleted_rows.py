"""Compaction against a naive model: random batches, deletes, merges, lost races and crashes."""

import asyncio
import contextlib
import random
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.deleted_lake import DAY_NS, HOUR_NS, START_NS, TABLE, Lake, Row, day_of, hides
from support.dying_store import Died

from sluice_lake import source_ranges
from sluice_lake.source_ranges import DeleteIdsReader
from sluice_protocol.record_deletes import DeleteRecord, is_retention, needed_deletes
from sluice_spark.compaction import deleted_rows
from sluice_spark.compaction.deleted_rows import (
    applied_key,
    plan_file_deletes,
    read_applied,
    remove_old_applied,
)
from sluice_spark.compaction.file_selection import may_contain_deleted


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_ranges, "LISTED_MAX", 4)
    monkeypatch.setattr(deleted_rows, "TOGETHER_MAX", 2)


async def play(seed: int) -> None:
    lake = Lake(rng=random.Random(seed))
    for _ in range(30):
        lake.now_ns += lake.rng.randrange(DAY_NS)
        step = lake.rng.choice(["ingest", "ingest", "delete", "compact", "rolled"])
        if step == "ingest":
            lake.ingest()
        elif step == "delete":
            lake.delete()
        elif step == "rolled":
            lake.unrolled.clear()
        else:
            with contextlib.suppress(Died):
                await lake.compact()
        lake.check()
    lake.faults = False
    await lake.compact()
    waiting = lake.unrolled
    closed = day_of(lake.now_ns - 3600 * 10**9)
    for path, rows in lake.files.items():
        applied = [one for one in lake.deletes if path not in waiting or not is_retention(one)]
        if path < closed:
            assert not any(hides(one, row) for one in applied for row in rows)
    lake.unrolled.clear()
    await lake.compact(open_partitions=True)
    lake.check()
    left = {row.number for rows in lake.files.values() for row in rows}
    assert left == {row.number for row in lake.rows if not lake.is_deleted(row)}


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_no_deleted_row_stays_and_no_other_row_goes(seed: int) -> None:
    asyncio.run(play(seed))


@pytest.mark.parametrize("deletes", [20, 400])
def test_the_work_of_a_run_does_not_grow_with_deletes_that_were_applied(
    deletes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = Mock(wraps=may_contain_deleted)

    async def story() -> tuple[Lake, int]:
        lake = Lake(rng=random.Random(1), faults=False)
        for number in range(12):
            lake.now_ns = START_NS + number * DAY_NS
            for _ in range(5):
                lake.ingest()
        lake.delete_attributes(deletes)
        lake.now_ns += 3 * DAY_NS
        lake.unrolled.clear()
        await lake.compact(open_partitions=True)
        compared.reset_mock()
        lake.searched = 0
        lake.put([Row(10_000, lake.now_ns, lake.now_ns, "a")])
        lake.deletes.append(
            DeleteRecord(
                delete_id="9" * 26,
                kind="metrics",
                accepted_until_unix_ns=lake.now_ns,
                agent_id="a",
            )
        )
        files = len(lake.files)
        await lake.compact(open_partitions=True)
        return lake, files

    monkeypatch.setattr(deleted_rows, "may_contain_deleted", compared)
    lake, files = asyncio.run(story())
    assert 0 < compared.call_count <= files
    assert 0 < lake.searched <= files


def test_parts_that_no_record_names_are_removed_at_an_age() -> None:
    async def story() -> None:
        lake = Lake(rng=random.Random(1), faults=False)
        lake.ingest()
        for _ in range(3):
            lake.delete_attributes(6)
            await lake.compact(open_partitions=True)
        parts = [key for key in lake.store.versions if key.endswith(".txt.z")]
        record = await read_applied(lake.store, TABLE)
        assert record is not None
        assert len(parts) > len(record.deletes.parts) > 0
        later_ns = lake.store.clock.now_ns() + HOUR_NS
        gone = len(parts) - len(record.deletes.parts)
        assert await remove_old_applied(lake.store, TABLE, 0) == 0
        assert await remove_old_applied(lake.store, TABLE, later_ns) == gone
        await DeleteIdsReader(store=lake.store).read(record.deletes)

    asyncio.run(story())


@pytest.mark.parametrize("lost", ["record", "parts"])
def test_without_a_readable_record_every_delete_is_applied_to_every_file(lost: str) -> None:
    async def story() -> None:
        lake = Lake(rng=random.Random(1), faults=False)
        lake.ingest()
        lake.delete_attributes(10)
        lake.unrolled.clear()
        await lake.compact(open_partitions=True)
        for key in list(lake.store.versions):
            if key.endswith(".txt.z") or lost == "record":
                lake.store.remove_key(key)
        lake.ingest()
        lake.delete()
        every = needed_deletes(lake.deletes)
        record = await read_applied(lake.store, TABLE)
        found = await plan_file_deletes(
            DeleteIdsReader(store=lake.store), record, lake.versions[-1], every
        )
        assert (found.new, found.done) == (every, ())
        await lake.compact(open_partitions=True)
        assert (await read_applied(lake.store, TABLE)) is not None
        lake.check()

    asyncio.run(story())


def test_a_record_of_another_form_is_ignored() -> None:
    async def story() -> None:
        lake = Lake(rng=random.Random(1), faults=False)
        lake.store.put(applied_key(TABLE), b'{"schema":"sluice.applied_deletes.v9"}')
        assert await read_applied(lake.store, TABLE) is None

    asyncio.run(story())
