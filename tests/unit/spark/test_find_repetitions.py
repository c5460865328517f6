"""Which rows are repetitions, and which dates are searched for overlaps, without Spark."""

from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_lake.data_files import DataFile, TimeStats
from sluice_spark.compaction.repetitions import (
    Examined,
    KeyedRow,
    RepetitionRules,
    dates_to_examine,
    encode_examined,
    files_of_dates,
    find_repetitions,
    parse_examined,
    witness_files,
)

REQUEST = KeyedRow(
    key="k",
    accepted_us=0,
    agent_id="door:shop:3f",
    boot_id="0" * 32,
    seq=0,
    data_file="f",
    may_go=True,
)
COMBINED = replace(REQUEST, agent_id="door:shop:c0", boot_id="01" + "A" * 24)
LOGS = RepetitionRules(kind="logs", attributes=("log.offset",), window_s=86_400)


def other(row: KeyedRow, digit: str, accepted_us: int = 0) -> KeyedRow:
    return replace(row, boot_id=digit * 32, accepted_us=accepted_us)


def removed(*rows: KeyedRow, window_us: int = 10) -> list[KeyedRow]:
    return [one.row for one in find_repetitions(rows, window_us)]


def test_a_row_of_another_request_in_the_window_is_removed() -> None:
    first, second, late = REQUEST, other(REQUEST, "1", 10), other(REQUEST, "2", 11)
    assert removed(first, second, late) == [second]


def test_the_window_begins_at_the_row_that_stays() -> None:
    """A row does not depend on one that was removed, so runs in any number agree."""
    rows = [other(REQUEST, str(n), 8 * n) for n in range(4)]
    assert removed(*rows) == [rows[1], rows[3]]


def test_a_request_that_contains_a_record_twice_keeps_both() -> None:
    again = replace(REQUEST, seq=1)
    assert removed(REQUEST, again) == []
    retry = other(REQUEST, "1", 5)
    assert removed(REQUEST, again, retry, replace(retry, seq=1)) == [retry, replace(retry, seq=1)]


def test_rows_of_a_combined_batch_are_separate_requests() -> None:
    """A boot that begins like the lane of a large request is recognised by its length."""
    assert removed(COMBINED, replace(COMBINED, seq=1)) == [replace(COMBINED, seq=1)]
    assert removed(COMBINED, COMBINED) == []
    large = replace(REQUEST, agent_id="door:shop:c0")
    assert removed(large, replace(large, seq=1)) == []


def test_rows_of_earlier_dates_are_witnesses_only() -> None:
    fixed = replace(other(REQUEST, "1", 1), may_go=False)
    assert removed(REQUEST, fixed, other(REQUEST, "2", 2)) == [other(REQUEST, "2", 2)]


ROWS = st.lists(
    st.builds(
        lambda key, at, boot, seq: replace(
            REQUEST, key=key, accepted_us=at, boot_id=boot * 32, seq=seq
        ),
        st.sampled_from("kl"),
        st.integers(0, 40),
        st.sampled_from("012"),
        st.integers(0, 3),
    ),
    max_size=30,
    unique=True,
).map(lambda rows: sorted(rows, key=lambda r: (r.key, r.accepted_us, r.boot_id, r.seq)))


@given(rows=ROWS, window_us=st.integers(0, 50))
def test_each_removed_row_has_a_witness_that_stays(rows: list[KeyedRow], window_us: int) -> None:
    """No key is lost, and a second run over what stays removes nothing."""
    found = list(find_repetitions(rows, window_us))
    gone = [one.row for one in found]
    stays = [row for row in rows if row not in gone]
    for one in found:
        assert one.witness in stays
        assert one.witness.key == one.row.key
        assert one.witness.request != one.row.request
        assert 0 <= one.row.accepted_us - one.witness.accepted_us <= window_us
    assert list(find_repetitions(stays, window_us)) == []


def data_file(day: int, name: str = "a", accepted_ns: tuple[int, int] | None = None) -> DataFile:
    partition = date(2026, 9, day).isoformat()
    return DataFile(
        path=f"accepted_date={partition}/{name}",
        partition=partition,
        size_bytes=1,
        accepted_at=TimeStats(range_ns=accepted_ns),
    )


def test_only_dates_with_new_files_and_the_next_dates_are_examined() -> None:
    files = [data_file(1), data_file(2), data_file(3), data_file(4)]
    paths = {file.path for file in files}
    examined = Examined(version=7, through="2026-09-03", paths=paths)
    assert dates_to_examine(files, None, LOGS) == [file.partition for file in files]
    assert dates_to_examine(files, examined, LOGS) == ["2026-09-04"]
    late = [*files, data_file(1, "late")]
    assert dates_to_examine(late, examined, LOGS) == ["2026-09-01", "2026-09-02", "2026-09-04"]


def test_witnesses_are_in_files_that_the_window_reaches() -> None:
    near, far = data_file(1, "near", (0, 90)), data_file(1, "far", (0, 79))
    here = data_file(2, "here", (90, 95))
    rules = RepetitionRules(kind="logs", attributes=("a",), window_s=1)
    second = 10**9
    files = [
        replace(one, accepted_at=TimeStats(range_ns=(low * second // 10, high * second // 10)))
        for one, low, high in ((near, 0, 90), (far, 0, 79), (here, 90, 95))
    ]
    assert witness_files(files, here.partition, rules) == [files[0]]
    unknown = [*files[:2], data_file(2)]
    assert witness_files(unknown, here.partition, rules) == files[:2]


@pytest.mark.parametrize("day", ["0001-01-01", "2026-11-22", "9999-12-31"])
def test_what_was_examined_fits_into_the_version_of_a_transaction(day: str) -> None:
    encoded = encode_examined(2**40, day)
    assert encoded < 2**63
    assert parse_examined(encoded) == (2**40, day)


def test_other_rules_have_another_name() -> None:
    names = {
        LOGS.digest,
        replace(LOGS, attributes=("log.offset", "x")).digest,
        replace(LOGS, window_s=1).digest,
        replace(LOGS, kind="metrics").digest,
    }
    assert len(names) == 4


def hour(name: str) -> DataFile:
    return DataFile(path=f"accepted_hour={name}/a.parquet", partition=name, size_bytes=1)


def test_the_hours_of_dates_with_records_are_read() -> None:
    hours = [hour(f"2026-09-{day}T{number:02d}") for day in (20, 21, 22) for number in (0, 23)]
    assert files_of_dates(hours, {"2026-09-20", "2026-09-22", "2026-10-01"}) == [
        *hours[:2],
        *hours[4:],
    ]
    assert files_of_dates(hours, ()) == []
