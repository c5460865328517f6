"""A search for overlaps reads the ledger of the dates that have records."""

from sluice_lake.data_files import DataFile
from sluice_spark.compaction.repetitions import files_of_dates


def hour(name: str) -> DataFile:
    return DataFile(path=f"accepted_hour={name}/a.parquet", partition=name, size_bytes=1)


def test_the_hours_of_dates_with_records_are_read() -> None:
    hours = [hour(f"2026-09-{day}T{number:02d}") for day in (20, 21, 22) for number in (0, 23)]
    assert files_of_dates(hours, {"2026-09-20", "2026-09-22", "2026-10-01"}) == [
        *hours[:2],
        *hours[4:],
    ]
    assert files_of_dates(hours, ()) == []
