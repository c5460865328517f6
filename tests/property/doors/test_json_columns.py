"""The two roads of JSON objects lead to the same bytes."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from sluice_doors.canonical import canonical
from sluice_doors.decoded import DecodedRecords
from sluice_doors.json_columns import SHAPES_MAX, columns_of
from sluice_doors.json_lines import decode_json
from sluice_doors.json_records import RecordFields, record_of
from sluice_doors.otlp_logs import logs_from_rows
from sluice_doors.tally import Tally
from sluice_protocol.frame_columns import encode_columns

NOW = 1_763_000_000_000_000_000
KEYS = st.sampled_from(["time", "message", "a", "b", "a.b", "at", "a.time", "", "é", "b#2"])
TIMES = st.sampled_from(
    ["2025-11-22T00:00:00.5Z", "2025-11-22T00:00:00", 1_763_000_000, 1_763_000_000.25, None, "soon"]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | TIMES
    | st.lists(st.integers(0, 3), max_size=2)
    | st.just({})
)
VALUES = st.recursive(LEAVES, lambda one: st.dictionaries(KEYS, one, max_size=3), max_leaves=6)
REGULAR = st.fixed_dictionaries({"time": TIMES, "message": st.text(max_size=5), "a": LEAVES})
OBJECTS = st.lists(st.dictionaries(KEYS, VALUES, max_size=5) | REGULAR, min_size=1, max_size=6)
FIELDS = st.sampled_from([("time", "message"), ("a.time", "a"), ("at", "a.b"), ("a", "a")])


def by_records(objects: list[dict[str, Any]], time: str, message: str) -> DecodedRecords:
    """Decode record by record: the reference."""
    tally = Tally()
    fields = RecordFields(time=time, message=message, received_ns=NOW)
    rows = [record_of(one, fields, tally, {}) for one in objects]
    return tally.decoded(logs_from_rows(rows, tally))


@given(objects=OBJECTS, named=FIELDS)
@example(objects=[{"time": 1, "a": None, "b": 10**30}, {"b": "1", "a": True}], named=("time", "m"))
@example(objects=[{"a": {"b": 1}, "a.b": 2}], named=("time", "message"))
@example(objects=[{"a": "\udcff"}], named=("time", "message"))
def test_columns_are_those_of_records(
    objects: list[dict[str, Any]], named: tuple[str, str]
) -> None:
    time, message = named
    body = "\n".join(map(json.dumps, objects)).encode()
    read = [json.loads(line) for line in body.split(b"\n")]
    found = columns_of(read, RecordFields(time=time, message=message, received_ns=NOW))
    event("columns" if found else "records")
    expected = by_records(read, time, message)
    if found is not None:
        assert encode_columns(found.columns) == encode_columns(expected.columns)
        assert (found.timed, 0) == (expected.timed, expected.unreadable)


@given(objects=OBJECTS, named=FIELDS)
def test_lines_are_decoded_as_record_by_record(
    objects: list[dict[str, Any]], named: tuple[str, str]
) -> None:
    time, message = named
    body = "\n".join(map(json.dumps, objects)).encode()
    (found,) = decode_json(body, time_field=time, message_field=message, received_ns=NOW)
    expected = by_records(msgspec.json.Decoder().decode_lines(body), time, message)
    assert encode_columns(found.columns) == encode_columns(expected.columns)
    sorted_again = canonical(replace(found, is_canonical=False))
    if found.is_canonical:  # what the decoder claims
        assert encode_columns(sorted_again.columns) == encode_columns(found.columns)
    assert (found.timed, found.unreadable) == (expected.timed, expected.unreadable)


def fields() -> RecordFields:
    return RecordFields(time="time", message="message", received_ns=NOW)


@pytest.mark.parametrize(
    "objects",
    [
        [{"time": "2025-11-22T00:00:00Z", "message": "m", "a": 1}],
        [{"time": 1_763_000_000, "a": 1}, {"message": None, "b": {"c": None}}],
        [{}],
    ],
)
def test_regular_objects_take_the_fast_road(objects: list[dict[str, Any]]) -> None:
    assert columns_of(objects, fields()) is not None


def test_more_shapes_than_the_limit_are_decoded_record_by_record() -> None:
    shapes: list[dict[str, Any]] = [{str(place): 1} for place in range(SHAPES_MAX + 1)]
    assert columns_of(shapes, fields()) is None
    assert columns_of(shapes[:-1], fields()) is not None
