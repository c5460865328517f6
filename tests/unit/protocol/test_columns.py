"""Columns: the table of fields, slices, and columns that a later build adds."""

import dataclasses
import struct
from itertools import combinations, groupby
from operator import attrgetter
from typing import get_args
from unittest.mock import patch

import numpy as np
import pytest
from support.frames import T0_NS, all_kinds, assert_same, identity, logs, metrics

from sluice_protocol import column_codings
from sluice_protocol.column_codings import (
    BYTES,
    COLUMNS,
    COUNTS,
    NAMES,
    TEXTS,
    TIMES,
    U8,
    decode_counts,
    decode_names,
    decode_numbers,
    decode_texts,
    decode_times,
    encode_columns,
    encode_counts,
    encode_names,
    encode_numbers,
    encode_texts,
    encode_times,
    write_columns,
)
from sluice_protocol.columns import Columns, check_columns, slice_columns
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.fields import KINDS, FieldType, Kind
from sluice_protocol.frame import (
    HEADER_BYTES,
    decode_envelope,
    decode_frame,
    decode_head,
    encode_envelope,
    encode_frame,
    raw_columns,
)
from sluice_protocol.ndjson import ndjson_from_columns

LATER = {
    "observed_ts": TIMES,
    "severity_text": NAMES,
    "attr_unit": BYTES,
    "trace_id": TEXTS,
    "span_events": COUNTS,
}
OBSERVED = np.array([T0_NS + 9, T0_NS, T0_NS + 5], np.int64)


def _later_frame(*, compress: bool) -> bytes:
    """Return a frame of logs with the columns of a later build, as that build would write it."""
    columns = logs()
    base = encode_frame(identity=identity(3), columns=columns)
    envelope, _ = decode_envelope(base[HEADER_BYTES : decode_head(base).body_start])
    parts = encode_columns(columns) | {
        "observed_ts": encode_times(OBSERVED),
        "severity_text": encode_names(("WARN", "fatal"), np.array([0, 1, 0], np.uint32)),
        "attr_unit": encode_numbers(U8, np.array([0, 3, 1], np.uint8)),
        "trace_id": encode_texts(columns.body),
        "span_events": encode_counts(np.array([0, 300, 7], np.int64)),
    }
    directory, pieces = write_columns(parts, compress=compress)
    head = encode_envelope(envelope, directory)
    return b"".join((base[:6], struct.pack("<H", len(head)), head, *pieces))


@pytest.mark.parametrize("compress", [False, True])
def test_a_later_build_reads_its_columns(compress: bool) -> None:
    """With the rows in the table, the same frame version has typed values of every form."""
    data = _later_frame(compress=compress)
    with patch.object(column_codings, "COLUMNS", {**COLUMNS, "logs": COLUMNS["logs"] | LATER}):
        assert_same(decode_frame(data).columns, logs())
        raw = raw_columns(decode_head(data), data)
    assert decode_times(raw["observed_ts"].data, "observed_ts").tolist() == OBSERVED.tolist()
    names, indexes = decode_names(*raw["severity_text"], 3, "severity_text")
    assert [names[at] for at in indexes] == ["WARN", "fatal", "WARN"]
    assert decode_numbers(U8, raw["attr_unit"].data, "attr_unit").tolist() == [0, 3, 1]
    assert_same(decode_texts(*raw["trace_id"], 3, "trace_id"), logs().body)
    assert decode_counts(*raw["span_events"], "span_events").tolist() == [0, 300, 7]


def test_this_build_refuses_them_by_name() -> None:
    """A reader without the row decides nothing about a column that it does not know."""
    with pytest.raises(InvalidFrame, match="logs have no such column, column=`trace_id`"):
        decode_frame(_later_frame(compress=True))


def test_a_later_kind_is_a_row_too() -> None:
    """The columns of a kind are known by the table alone."""
    with (
        patch.object(column_codings, "COLUMNS", {**COLUMNS, "logs": {}}),
        pytest.raises(InvalidFrame, match="no such column"),
    ):
        decode_frame(encode_frame(identity=identity(3), columns=logs()))
    decode_frame(encode_frame(identity=identity(3), columns=metrics()))


@pytest.mark.parametrize(
    "columns", all_kinds(), ids=["logs", "metrics", "entries", "bare", "spans"]
)
def test_every_slice_has_the_records_of_its_range(columns: Columns) -> None:
    """Names that no record of the slice uses are left out: the check refuses unused names."""
    lines = list(ndjson_from_columns(columns))
    for start, stop in combinations(range(len(columns) + 1), 2):
        part = slice_columns(columns, start, stop)
        check_columns(part, stop - start)
        assert list(ndjson_from_columns(part)) == lines[start:stop]


@pytest.mark.parametrize("columns", get_args(Columns))
def test_columns_have_an_attribute_for_each_field(columns: type[Columns]) -> None:
    """A field may be None exactly if a frame may do without its column."""
    kind = columns.kind
    attributes = {one.name: one.default is None for one in dataclasses.fields(columns)}
    listed = {one.name: one.is_optional for one in kind.fields}
    assert attributes == listed | ({"attributes": True} if kind.has_attributes else {})


def test_each_kind_is_a_row_with_its_columns() -> None:
    assert list(KINDS) == list(get_args(Kind))
    assert {one.kind for one in get_args(Columns)} == set(KINDS.values())


def test_each_kind_begins_with_the_time() -> None:
    for kind in KINDS.values():
        assert (kind.fields[0].name, kind.fields[0].type) == ("ts", FieldType.TIME)
        assert kind.searched in {None, *(one.name for one in kind.own_fields)}


def test_fields_of_one_name_are_alike_in_all_kinds() -> None:
    """A filter finds the field by its name alone."""
    fields = [one for kind in KINDS.values() for one in kind.queried_fields]
    for _, group in groupby(sorted(fields, key=attrgetter("name")), attrgetter("name")):
        assert len({(one.type, one.labels, one.is_optional) for one in group}) == 1
