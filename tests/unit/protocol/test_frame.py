"""Frames round-trip, and the same input results in the same bytes."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from support.frames import T0_NS, assert_same, identity, logs, text

from sluice_protocol import compression
from sluice_protocol.column_codings import decode_texts, load_column
from sluice_protocol.columns import AttributeColumns, Columns
from sluice_protocol.frame import HEAD_BYTES_MAX, decode_frame, decode_head, encode_frame
from sluice_protocol.records import LogRecord, MetricPoint, logs_from_records, metrics_from_records


def test_frame_resource_order_does_not_matter() -> None:
    one = (("service.name", "web"), ("host", "h1"))
    first = encode_frame(identity=identity(3), columns=logs(), resource=one)
    second = encode_frame(identity=identity(3), columns=logs(), resource=one[::-1])
    assert first == second
    assert decode_frame(first).envelope.resource == (("host", "h1"), ("service.name", "web"))


def test_head_needs_only_the_first_bytes() -> None:
    """Header and envelope are decoded from the head of a frame without its columns."""
    data = encode_frame(identity=identity(3), columns=logs())
    head = decode_head(data[:HEAD_BYTES_MAX])
    cut = decode_head(data[: head.body_start])
    assert cut == head
    assert head.frame_bytes == len(data)
    assert (head.envelope.min_ts_ns, head.envelope.max_ts_ns) == (T0_NS, T0_NS + 2)


def test_differences_wrap_around() -> None:
    """The difference between the first and the last time does not fit 64 bits."""
    times = [2**63 - 1, -(2**63), 0, 2**63 - 1]
    columns = logs_from_records([LogRecord(ts_ns=one, body="x") for one in times])
    data = encode_frame(identity=identity(4), columns=columns, compress=False)
    assert decode_frame(data).columns.ts is not None
    assert decode_frame(data).columns.ts.tolist() == times
    assert struct.pack("<4q", 2**63 - 1, 1, -(2**63), 2**63 - 1) in data


def test_lines_at_equal_distances_are_equal_bytes() -> None:
    """Ten thousand equal lines need few bytes: their times, lengths and texts repeat."""
    lines = [LogRecord(ts_ns=10**18 + at * 10**9, body="a line") for at in range(10_000)]
    data = encode_frame(identity=identity(10_000), columns=logs_from_records(lines))
    assert len(data) < 400


@pytest.mark.daily(3)
@pytest.mark.parametrize("size", [1, 63, 64, 65, 255, 256, 65_535, 65_536])
def test_every_width_holds_its_largest_value(size: int) -> None:
    """Lengths, indexes and counts of each width, of few and of many values."""
    few = logs_from_records(
        [LogRecord(ts_ns=0, body="é" + "x" * size, attributes={"k": "v" * size})]
    )
    assert_same(_again(few), few)
    names = metrics_from_records(
        [MetricPoint(ts_ns=0, name=f"m{at}", value=at, type=0) for at in range(size)]
    )
    assert_same(_again(names), names)
    many = {f"k{at}": "" for at in range(size)}
    wide = logs_from_records([LogRecord(ts_ns=0, body="", attributes=many)])
    assert_same(_again(wide), wide)


def test_attributes_without_a_pair_are_left_out() -> None:
    """Columns of attributes that no record has are not written."""
    none = AttributeColumns(
        names=(), offsets=np.zeros(4, np.int32), keys=np.zeros(0, np.uint32), values=text()
    )
    data = encode_frame(identity=identity(3), columns=replace(logs(), attributes=none))
    assert data == encode_frame(identity=identity(3), columns=replace(logs(), attributes=None))


def test_a_column_is_read_from_its_own_bytes() -> None:
    """The directory is enough to read and check one column without the others."""
    data = encode_frame(identity=identity(3), columns=logs(), compress=False)
    head = decode_head(data)
    body = next(one for one in head.columns if one.name == "body")
    start = head.body_start + body.offset
    alone = load_column(body._replace(offset=0), memoryview(data[start : start + body.length]))
    assert_same(decode_texts(body.type, alone, 3, "body"), logs().body)


def _again(columns: Columns) -> Columns:
    data = encode_frame(identity=identity(len(columns)), columns=columns)
    return decode_frame(data).columns


def test_a_failed_compression_leaves_nothing_for_the_next_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compressor of a thread is used again, but not after an error."""
    columns = logs_from_records([LogRecord(ts_ns=0, body="a line " * 20)])
    good = encode_frame(identity=identity(1), columns=columns)

    class Failing:
        FLUSH_FRAME = 2

        def compress(self, _raw: bytes, _mode: int) -> bytes:
            raise MemoryError

    known = compression._OF_THREAD.__dict__["known"]
    for name in list(known):
        known[name] = Failing()
    with pytest.raises(MemoryError):
        encode_frame(identity=identity(1), columns=columns)
    assert encode_frame(identity=identity(1), columns=columns) == good
