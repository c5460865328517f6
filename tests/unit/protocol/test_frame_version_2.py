"""Frames of version 2: differences of times and lengths of strings; each rule broken separately."""

import struct

import numpy as np
import pytest
from support.frames import all_kinds, assert_same, identity
from support.raw_frames import (
    F64,
    I32,
    I64,
    U8,
    U32,
    array,
    entries,
    envelope,
    frame,
    logs,
    metrics,
)

from sluice_protocol.columns import LogColumns
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.frame import check_frame, decode_frame, encode_frame, frame_version
from sluice_protocol.records import LogRecord, logs_from_records

ATTRIBUTES: dict[str, object] = {
    "attr_names": ["k", "l"],
    "attr_len": array(U32, 2, 0),
    "attr_key": array(U32, 0, 1),
    "attr_val_len": array(U32, 1, 1),
    "attr_val": b"vw",
}
NO_ATTRIBUTES: dict[str, object] = dict.fromkeys(ATTRIBUTES)


def logs_2(**changes: object) -> dict[str, object]:
    good: dict[str, object] = {
        "ts": array(I64, 10, 10),
        "body_len": array(U32, 2, 2),
        "body": "äö".encode(),
        "severity": array(U8, 0, 24),
        **ATTRIBUTES,
    }
    return {name: one for name, one in (good | changes).items() if one is not None}


def frame_2(payload: dict[str, object], **head: object) -> bytes:
    return frame(envelope(**head), payload, frame_version=2)


def test_frames_of_an_independent_encoder_are_read() -> None:
    found = decode_frame(frame_2(logs_2()))
    assert_same(found.columns, decode_frame(frame(envelope(), logs())).columns)
    assert check_frame(frame_2(logs_2())) == found.envelope
    plain = frame_2(logs_2(body=b"abcd", **NO_ATTRIBUTES))
    assert check_frame(plain) == decode_frame(plain).envelope
    points = metrics(ts=array(I64, 10, 10), value=array(F64, 1, 2))
    assert decode_frame(frame_2(points, kind="metrics")).columns.ts.tolist() == [10, 20]
    pairs: dict[str, object] = {
        "key_len": array(U32, 1, 0),
        "key": b"\xff",
        "val_len": array(U32, 0, 2),
        "val": b"\x80\x00",
        "ts": array(I64, 10, 10),
    }
    expected = decode_frame(frame(envelope(kind="entries"), entries())).columns
    assert_same(decode_frame(frame_2(pairs, kind="entries")).columns, expected)


def test_both_versions_have_the_same_records() -> None:
    for columns in all_kinds():
        first, second = (
            encode_frame(identity=identity(3), columns=columns, version=version)
            for version in (1, 2)
        )
        assert (frame_version(first), frame_version(second)) == (1, 2)
        assert_same(decode_frame(first).columns, decode_frame(second).columns)


def test_differences_wrap_around() -> None:
    """The difference between the first and the last time does not fit 64 bits."""
    times = [2**63 - 1, -(2**63), 0, 2**63 - 1]
    columns = logs_from_records([LogRecord(ts_ns=one, body="x") for one in times])
    data = encode_frame(identity=identity(4), columns=columns, version=2, compress=False)
    assert decode_frame(data).columns.ts.tolist() == times
    assert check_frame(data) == decode_frame(data).envelope
    assert struct.pack("<4q", 2**63 - 1, 1, -(2**63), 2**63 - 1) in data


def test_lines_at_equal_distances_are_equal_bytes() -> None:
    """A frame of equal lines is much smaller than in version 1."""
    lines = [LogRecord(ts_ns=10**18 + at * 10**9, body="a line") for at in range(10_000)]
    columns = logs_from_records(lines)
    first, second = (
        encode_frame(identity=identity(10_000), columns=columns, version=version)
        for version in (1, 2)
    )
    assert len(second) * 50 < len(first)


def test_many_lines_are_read_as_few() -> None:
    """More lines than the fast check reads."""
    columns = logs_from_records([LogRecord(ts_ns=-at, body="é" * at) for at in range(500)])
    data = encode_frame(identity=identity(500), columns=columns, version=2)
    found = decode_frame(data).columns
    assert isinstance(found, LogColumns)
    assert found.body.offsets.dtype == np.int32
    assert_same(found, columns)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ts": array(I64, 10)}, "ts"),
        ({"ts": array(I64, 10, 20)}, "min_ts"),
        ({"ts": array(I32, 10, 20)}, "ts"),
        ({"body_len": None}, "body_len"),
        ({"body_off": array(I32, 0, 2, 4)}, "payload"),
        ({"body_len": None, "body_off": array(I32, 0, 2, 4)}, "payload"),
        ({"body_len": array(I32, 2, 2)}, "body_len"),
        ({"body_len": array(U32, 4)}, "body_len"),
        ({"body_len": array(U32, 2, 2, 0)}, "body_len"),
        ({"body_len": array(U32, 2, 1)}, "body_len"),
        ({"body_len": array(U32, 2, 3)}, "body_len"),
        ({"body_len": array(U32, 2**32 - 1, 5)}, "body_len"),
        ({"body_len": array(U32, 2**32 - 1, 2**32 - 1)}, "body_len"),
        ({"body_len": array(U32, 1, 3)}, "body_len"),
        ({"body": b"\xff\xff\xff\xff"}, "body"),
        ({"attr_len": None}, "attr_len"),
        ({"attr_len": array(U32, 1, 0)}, "attr_len"),
        ({"attr_len": array(U32, 2, 1)}, "attr_len"),
        ({"attr_len": array(U32, 2)}, "attr_len"),
        ({"attr_val_len": array(U32, 1)}, "attr_val_len"),
        ({"attr_val_len": array(U32, 1, 2)}, "attr_val_len"),
        ({"attr_val_off": array(I32, 0, 1, 2)}, "payload"),
        ({"attr_key": array(U32, 1, 1)}, "attr_names"),
        ({"severity": array(U8, 0, 25)}, "severity"),
    ],
)
def test_wrong_columns_are_rejected(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidFrame) as caught:
        decode_frame(frame_2(logs_2(**changes)))
    assert caught.value.field == field
    with pytest.raises(InvalidFrame) as checked:
        check_frame(frame_2(logs_2(**changes)))
    assert str(checked.value) == str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"body_len": array(U32, 2, 1)},
        {"body_len": array(U32, 4)},
        {"body_len": array(U32, 2**32 - 1, 5)},
        {"ts": array(I64, 10)},
        {"ts": array(I64, 10, 20)},
        {"severity": array(U8, 0, 25)},
    ],
)
def test_the_fast_check_refuses_as_the_decoder(changes: dict[str, object]) -> None:
    """Few plain lines of ASCII are checked without columns."""
    data = frame_2(logs_2(**{"body": b"abcd", **NO_ATTRIBUTES, **changes}))
    with pytest.raises(InvalidFrame) as decoded:
        decode_frame(data)
    with pytest.raises(InvalidFrame) as checked:
        check_frame(data)
    assert str(decoded.value) == str(checked.value)


def test_columns_of_one_version_are_refused_in_the_other() -> None:
    for data in (frame_2(logs()), frame(envelope(), logs_2())):
        with pytest.raises(InvalidFrame, match="no such column"):
            decode_frame(data)
