"""An index run reads the chunks of the dates with new files, and no others."""

import pytest
from support.index_store import put_chunk
from support.queue_store import SimStore

from sluice_lake.data_files import DataFile
from sluice_protocol.manifests import encode_record
from sluice_spark.index import (
    INDEX_PROGRESS,
    IndexProgress,
    WaitingDate,
    find_new_files,
    group_files,
    read_index_progress,
    write_index_progress,
)


def file(day: int, name: str) -> DataFile:
    date = f"2026-0{1 + day // 28}-{1 + day % 28:02d}"
    return DataFile(path=f"date={date}/{name}.parquet", partition=date, size_bytes=10)


async def store_with(days: int) -> tuple[SimStore, list[DataFile]]:
    """Return a store with a chunk for the one file of each date, and the files."""
    store = SimStore()
    files = [file(day, "a") for day in range(days)]
    for group in group_files(files):
        await put_chunk(store, group)
    store.counts.clear()
    return store, files


@pytest.mark.parametrize("days", [2, 100])
async def test_the_requests_of_a_run_do_not_grow_with_the_dates_that_are_indexed(days: int) -> None:
    store, files = await store_with(days)
    known = {one.path for one in files}
    later = [file(days - 1, "b"), file(0, "late")]
    assert await find_new_files(store, [*files, *later], known) == later
    assert store.counts == {"list": 2, "get": 2}
    assert await find_new_files(store, files, known) == []
    assert store.counts == {"list": 2, "get": 2}


async def test_without_a_recorded_state_every_chunk_is_read_and_no_file_is_indexed_again() -> None:
    store, files = await store_with(5)
    later = file(4, "b")
    assert await find_new_files(store, [*files, later], ()) == [later]
    assert store.counts == {"list": 5, "get": 5}


async def test_the_recorded_state_is_read_as_it_was_written_and_damage_is_ignored() -> None:
    store = SimStore()
    assert await read_index_progress(store) is None
    progress = IndexProgress(table_id="0a", table_version=7)
    await write_index_progress(store, progress)
    assert await read_index_progress(store) == progress
    assert store.held[INDEX_PROGRESS].body == encode_record(progress)
    assert INDEX_PROGRESS == "index/v1/progress.json"
    assert encode_record(progress) == (
        b'{"schema":"sluice.index_progress.v2","table_id":"0a","table_version":7,"waiting":[]}'
    )
    store.held[INDEX_PROGRESS].body = b"{broken"
    assert await read_index_progress(store) is None


async def test_the_waiting_dates_are_part_of_the_record() -> None:
    """A check that has not begun has no position."""
    waiting = (
        WaitingDate(date="2026-09-21", since_unix_ns=5, due_unix_ns=9),
        WaitingDate(
            date="2026-09-22", since_unix_ns=5, due_unix_ns=9, checked_through="k", again=True
        ),
    )
    store = SimStore()
    progress = IndexProgress(table_id="0a", table_version=7, waiting=waiting)
    await write_index_progress(store, progress)
    assert await read_index_progress(store) == progress
    assert encode_record(progress) == (
        b'{"schema":"sluice.index_progress.v2","table_id":"0a","table_version":7,"waiting":['
        b'{"date":"2026-09-21","due_unix_ns":9,"since_unix_ns":5},'
        b'{"again":true,"checked_through":"k","date":"2026-09-22","due_unix_ns":9,'
        b'"since_unix_ns":5}]}'
    )
