"""Small frames of every kind, and a comparison of columns value by value."""

from dataclasses import fields, is_dataclass

import numpy as np
from support.builders import make_identity

from sluice_protocol.columns import (
    AttributeColumns,
    Columns,
    EntryColumns,
    LogColumns,
    MetricColumns,
    NameColumn,
    SpanColumns,
    TextColumn,
)
from sluice_protocol.identity import Identity

T0_NS = 1_790_000_000_123_456_789


def text(*values: str | bytes) -> TextColumn:
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    offsets = np.zeros(len(raw) + 1, np.int32)
    np.cumsum([len(value) for value in raw], out=offsets[1:])
    return TextColumn(offsets=offsets, data=b"".join(raw))


def identity(count: int, *, start: int = 7, agent: str = "host-1", boot: str = "b1") -> Identity:
    return make_identity(start, count=count, agent=agent, boot=boot)


def attributes() -> AttributeColumns:
    """Three records: two pairs, none, one pair."""
    return AttributeColumns(
        names=("level", "path"),
        offsets=np.array([0, 2, 2, 3], np.int32),
        keys=np.array([0, 1, 1], np.uint32),
        values=text("info", "/var/log/ä", ""),
    )


def logs() -> LogColumns:
    return LogColumns(
        ts=np.array([T0_NS, T0_NS + 2, T0_NS + 1], np.int64),
        body=text("first line", "", "dritte Zeile: größer €"),
        severity=np.array([9, 0, 24], np.uint8),
        attributes=attributes(),
    )


def metrics() -> MetricColumns:
    return MetricColumns(
        ts=np.array([T0_NS, T0_NS, -5], np.int64),
        name=NameColumn(names=("cpu.load", "disk.free"), indexes=np.array([0, 1, 0], np.uint32)),
        value=np.array([0.5, float("nan"), float("-inf")], np.float64),
        type=np.array([0, 2, 1], np.uint8),
        attributes=attributes(),
    )


def entries(*, with_ts: bool = True) -> EntryColumns:
    return EntryColumns(
        key=text(b"\xff\x00", b"", b"k"),
        value=text(b"", b"\x80value", b"v"),
        ts=np.array([3, 1, 2], np.int64) if with_ts else None,
    )


def spans() -> SpanColumns:
    return SpanColumns(
        ts=np.array([T0_NS, T0_NS + 1, T0_NS], np.int64),
        name=NameColumn(names=("GET /", "sql"), indexes=np.array([0, 1, 1], np.uint32)),
        span_kind=np.array([2, 3, 0], np.uint8),
        duration_ns=np.array([2**53 + 1, 0, -5], np.int64),
        status=np.array([1, 0, 2], np.uint8),
        status_message=text("", "", "zu spät"),
        trace_id=text("4bf92f3577b34da6a3ce929d0e0e4736", "", "odd id"),
        span_id=text("00f067aa0ba902b7", "00f067aa0ba902b8", ""),
        parent_id=text("", "00f067aa0ba902b7", ""),
        events=text("", '[{"name":"exception"}]', ""),
        attributes=attributes(),
    )


def assert_same(left: object, right: object) -> None:
    """Compare columns value by value, in any width; NaN equals NaN of the same bits."""
    if isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray)
        assert left.dtype.kind == right.dtype.kind
        assert left.tobytes() == right.astype(left.dtype).tobytes()
    elif is_dataclass(left) and not isinstance(left, type):
        assert type(left) is type(right)
        for field in fields(left):
            assert_same(getattr(left, field.name), getattr(right, field.name))
    else:
        assert left == right


def all_kinds() -> list[Columns]:
    return [logs(), metrics(), entries(), entries(with_ts=False), spans()]
