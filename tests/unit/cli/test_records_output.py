"""Rows as lines, NDJSON, CSV and Parquet."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_cli.shell.records_output import OutputForm, open_writer
from sluice_protocol.errors import BadUsage

START = datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)


def _written(form: OutputForm, table: pa.Table, rows: int = 2) -> bytes:
    out = io.BytesIO()
    writer = open_writer(form, table.schema, out)
    for batch in table.to_batches(max_chunksize=rows):
        writer.write(batch)
    writer.finish()
    return out.getvalue()


class _Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


TABLE = pa.table(
    {
        "ts": pa.array([START, START + timedelta(microseconds=1)], pa.timestamp("us", "UTC")),
        "n": pa.array([2**60 + 1, None], pa.int64()),
        "value": [1.5, float("nan")],
        "body": ['say "hi", all\nnow', ""],
        "tags": pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string())),
        "sum": pa.array([Decimal("1.50"), Decimal(10) ** 30], pa.decimal128(38, 2)),
        "raw": [b"\x00\xff", b""],
    }
)


def test_json_has_exact_numbers_times_and_maps() -> None:
    first, second = (json.loads(line) for line in _written("json", TABLE).splitlines())
    assert first == {
        "ts": "2026-01-31T12:00:00.500000000Z",
        "n": 2**60 + 1,
        "value": 1.5,
        "body": 'say "hi", all\nnow',
        "tags": {"a": "1"},
        "sum": 1.5,
        "raw": "AP8=",
    }
    assert (second["n"], second["value"], second["tags"]) == (None, "NaN", None)
    assert b'"sum":1000000000000000000000000000000.00' in _written("json", TABLE)


def test_csv_distinguishes_null_from_an_empty_text() -> None:
    text = _written("csv", TABLE).decode()
    assert text.startswith("ts,n,value,body,tags,sum,raw\n")
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[1][3:5] == ['say "hi", all\nnow', '{"a":"1"}']
    assert text.endswith(',,NaN,"",,1000000000000000000000000000000.00,""\n')


def test_parquet_keeps_types_and_has_one_row_group_for_small_batches() -> None:
    written = pq.ParquetFile(io.BytesIO(_written("parquet", TABLE, rows=1)))
    assert written.num_row_groups == 1
    found = written.read()
    assert found.schema == TABLE.schema
    assert found.drop(["value"]).equals(TABLE.drop(["value"]))


def test_parquet_is_refused_on_a_terminal_and_for_types_that_it_does_not_have() -> None:
    with pytest.raises(BadUsage, match="not for a terminal"):
        open_writer("parquet", TABLE.schema, _Terminal())
    interval = pa.schema([("age", pa.month_day_nano_interval())])
    with pytest.raises(BadUsage, match="cast it to VARCHAR"):
        open_writer("parquet", interval, io.BytesIO())


def test_lines_are_aligned_with_numbers_to_the_right() -> None:
    table = pa.table({"service": ["shop", "日本"], "count": [5, 1200], "x": [None, "a\tb\x1b\n"]})
    assert _written("lines", table).decode().splitlines() == [
        "service  count  x",
        "───────  ─────  ─────",
        "shop         5  -",
        "日本      1200  a b�↵",
    ]


def test_a_time_is_shown_in_the_zone_of_its_column_without_zeros_at_its_end() -> None:
    berlin = TABLE.select(["ts"]).cast(pa.schema([("ts", pa.timestamp("us", "Europe/Berlin"))]))
    lines = _written("lines", berlin).decode().splitlines()[2:]
    assert lines == ["2026-01-31T13:00:00.5+01:00", "2026-01-31T13:00:00.500001+01:00"]


def test_a_terminal_cuts_wide_columns_and_a_pipe_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table = pa.table({"id": ["a1"], "body": ["x" * 300]})
    out = _Terminal()
    writer = open_writer("lines", table.schema, out)
    writer.write(table.to_batches()[0])
    writer.finish()
    assert max(map(len, out.getvalue().decode().splitlines())) == 40
    assert "x" * 300 in _written("lines", table).decode()


def test_columns_of_one_name_are_numbered() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert json.loads(_written("json", table)) == {"a": 1, "a_2": 2}
    assert pq.read_schema(io.BytesIO(_written("parquet", table))).names == ["a", "a_2"]


@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.floats()), max_size=20))
def test_csv_and_json_have_every_row(rows: list[tuple[str | None, float | None]]) -> None:
    texts = [None if one is None else one.replace("\0", "") for one, _ in rows]
    table = pa.table({"t": pa.array(texts, pa.string()), "f": [one for _, one in rows]})
    lines = _written("json", table).splitlines()
    assert [json.loads(line)["t"] for line in lines] == texts
    read = list(csv.reader(io.StringIO(_written("csv", table).decode(), newline="")))
    assert [row[0] for row in read[1:]] == [one or "" for one in texts]
