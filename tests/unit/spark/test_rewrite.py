"""A rewrite of files is committed only if its number of rows can be right."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluice_lake.data_files import DataFile
from sluice_lake.errors import TableRefused
from sluice_spark.compaction.rewrite import FileRewrite, check_row_count
from sluice_spark.written_files import WrittenFile

MERGED = None


def dropping(rows: Any) -> Any:
    return rows[1:]


def files(*counts: int | None) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(path=f"p{n}", partition="2026-09-21", size_bytes=1, records=count)
        for n, count in enumerate(counts)
    )


def added(*counts: int) -> list[WrittenFile]:
    return [
        WrittenFile(
            table="logs",
            path=f"new{n}",
            partition="2026-09-21",
            size_bytes=1,
            written_at_ms=0,
            stats={"numRecords": count},
        )
        for n, count in enumerate(counts)
    ]


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        pytest.param((3, 4), (7,), MERGED, id="merged"),
        pytest.param((3, 4), (5, 1), dropping, id="rows dropped"),
        pytest.param((3, 4), (), dropping, id="every row dropped"),
        pytest.param((3, None), (1,), MERGED, id="not recorded"),
    ],
)
def test_a_possible_number_of_rows_is_committed(
    before: Sequence[int | None], after: Sequence[int], how: Callable[[Any], Any] | None
) -> None:
    check_row_count("/lake/logs", FileRewrite(files=files(*before), keep=how), added(*after))


@pytest.mark.parametrize(
    ("after", "how"),
    [
        pytest.param((3,), MERGED, id="a file was not read"),
        pytest.param((3, 5), MERGED, id="rows added"),
        pytest.param((8,), dropping, id="rows added although some are dropped"),
    ],
)
def test_another_number_of_rows_is_refused(
    after: Sequence[int], how: Callable[[Any], Any] | None
) -> None:
    with pytest.raises(
        TableRefused, match=r"change 7 rows to \d; nothing was changed: .*file=`p0`"
    ):
        check_row_count("/lake/logs", FileRewrite(files=files(3, 4), keep=how), added(*after))
