"""NDJSON in and out, and the builders of columns."""

import base64

import numpy as np
import pytest
from support.frames import all_kinds, assert_same, identity, logs, metrics, text

from sluice_protocol.columns import Columns, LogColumns, kind_of
from sluice_protocol.errors import BadUsage, InvalidFrame
from sluice_protocol.frame import decode_frame, encode_frame
from sluice_protocol.ndjson import attribute_rows, columns_from_ndjson, ndjson_from_columns
from sluice_protocol.records import (
    RAW_ATTRIBUTE,
    EntryRecord,
    LogRecord,
    entries_from_records,
    logs_from_lines,
    logs_from_records,
)
from sluice_protocol.timestamps import format_rfc3339, parse_rfc3339


@pytest.mark.parametrize(
    "columns", all_kinds(), ids=["logs", "metrics", "entries", "bare", "spans"]
)
def test_ndjson_round_trip(columns: Columns) -> None:
    lines = list(ndjson_from_columns(columns))
    assert_same(columns_from_ndjson(kind_of(columns), lines), columns)


def test_ndjson_lines_have_readable_times_and_types() -> None:
    """Times are RFC 3339 with nanoseconds; NaN and types are words."""
    line = next(ndjson_from_columns(logs()))
    assert line == (
        '{"ts":"2026-09-21T14:13:20.123456789Z","body":"first line","severity":9,'
        '"attributes":{"level":"info","path":"/var/log/ä"}}'
    )
    rows = list(ndjson_from_columns(metrics()))
    assert '"value":"NaN","type":"cumulative"' in rows[1]
    assert '"value":"-Infinity","type":"delta"' in rows[2]


@pytest.mark.parametrize(
    ("written", "at_ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2026-01-31T12:00:00.5+02:00", 1_769_853_600_500_000_000),
        ("2026-01-31 07:30:00-02:30", 1_769_853_600_000_000_000),
        ("2262-04-11T23:47:16.854775807Z", 2**63 - 1),
        ("1677-09-21T00:12:43.145224192z", -(2**63)),
    ],
)
def test_rfc3339_is_exact(written: str, at_ns: int) -> None:
    """Times are exact to the nanosecond over the whole range of int64."""
    assert parse_rfc3339(written) == at_ns
    assert parse_rfc3339(format_rfc3339(at_ns)) == at_ns


@pytest.mark.parametrize(
    "written",
    [
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-02-30T00:00:00Z",
        "2026-01-01T00:00:60Z",
        "2026-01-01T00:00:00.0123456789Z",
        "٢٠٢٦-01-01T00:00:00Z",
        "yesterday",
        "",
    ],
)
def test_rfc3339_rejects_other_forms(written: str) -> None:
    """A time without offset, day, or meaning raises a one-line error."""
    with pytest.raises(BadUsage, match="time"):
        parse_rfc3339(written)


@pytest.mark.parametrize(
    ("kind", "line", "says"),
    [
        ("logs", '{"ts":1,"body":"x"', "line 2: Input data was truncated"),
        ("logs", '{"ts":1}', "missing required field `body`"),
        ("logs", '{"ts":1,"body":"x","sevrity":3}', "unknown field `sevrity`"),
        ("logs", '{"ts":1.5,"body":"x"}', "Expected `int | str`"),
        ("logs", '{"ts":"noon","body":"x"}', "line 2: time must be RFC 3339"),
        ("metrics", '{"ts":1,"name":"a","value":"much"}', "line 2"),
        ("metrics", '{"ts":1,"name":"a","value":1,"type":"sum"}', "line 2"),
        ("entries", '{"key":"not base64!","value":""}', "line 2: key must be base64"),
    ],
)
def test_ndjson_names_the_line(kind: str, line: str, says: str) -> None:
    with pytest.raises(BadUsage, match="line 2") as caught:
        columns_from_ndjson(kind, ["", line])
    assert says in str(caught.value)


def test_ndjson_needs_a_record() -> None:
    """Empty input is bad usage, not an empty frame."""
    with pytest.raises(BadUsage, match="no record"):
        columns_from_ndjson("logs", ["", "  \n"])


def test_ndjson_rejects_times_outside_int64() -> None:
    with pytest.raises(InvalidFrame, match="field=`ts`"):
        columns_from_ndjson("logs", ['{"ts":9223372036854775808,"body":""}'])


def _raws(columns: LogColumns) -> list[str | None]:
    return [row.get(RAW_ATTRIBUTE) for row in attribute_rows(columns.attributes, len(columns))]


def test_lines_that_are_not_utf8_keep_their_bytes() -> None:
    """A line that is not UTF-8 is readable, and `sluice.raw` contains its bytes."""
    lines = [b"plain", b"caf\xe9 \xff", "größer".encode()]
    columns = logs_from_lines(lines, np.arange(3), attributes={"path": "/var/log/x"})
    assert columns.body.slices()[1].decode() == "caf\ufffd \ufffd"
    raws = _raws(columns)
    assert raws[0] is None
    assert base64.b64decode(raws[1] or "") == lines[1]
    assert raws[2] is None
    decode_frame(encode_frame(identity=identity(3), columns=columns))


def test_lines_with_half_characters_are_each_marked() -> None:
    """Two halves of one character in two lines are not UTF-8, although together they would be."""
    columns = logs_from_lines([b"a\xc3", b"\xa4b"], np.arange(2))
    assert _raws(columns) == [base64.b64encode(half).decode() for half in (b"a\xc3", b"\xa4b")]


def test_lines_and_records_build_the_same_columns() -> None:
    lines = [b"one", b"", b"three"]
    attributes = {"path": "/x", "host": "h"}
    plain = [LogRecord(ts_ns=at, body=line, attributes=attributes) for at, line in enumerate(lines)]
    fast = logs_from_lines(lines, np.arange(3), attributes=attributes)
    assert_same(fast, logs_from_records(plain))
    assert_same(fast.body, text(*lines))


def test_either_all_entries_have_times_or_none() -> None:
    records = [EntryRecord(key=b"", value=b"", ts_ns=1), EntryRecord(key=b"", value=b"")]
    with pytest.raises(InvalidFrame, match="some have none"):
        entries_from_records(records)


def test_text_with_a_lone_surrogate_is_rejected() -> None:
    with pytest.raises(InvalidFrame, match="body"):
        logs_from_records([LogRecord(ts_ns=0, body="\ud800")])
