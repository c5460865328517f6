"""The columns of JSON objects are those of their records, made one by one."""

import json
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from sluice_doors.decoded import DecodedRecords, Tally, canonical
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import SHAPES_MAX, RecordFields, columns_of, record_of
from sluice_doors.otlp.logs import logs_from_rows
from sluice_protocol.column_codings import encode_columns

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


@st.composite
def alike(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return objects with the same keys, of which some have other values."""
    shape = draw(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5))

    def filled(value: Any) -> Any:
        if value and isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        return draw(st.just(value) | LEAVES)

    return [filled(shape) for _ in range(draw(st.integers(2, 4)))]


LISTED = st.lists(st.dictionaries(KEYS, VALUES, max_size=5) | REGULAR, min_size=1, max_size=6)
OBJECTS = LISTED | st.lists(LISTED | alike(), min_size=1, max_size=3).map(
    lambda parts: [one for row in zip_longest(*parts) for one in row if one is not None]
)
USUAL = RecordFields(received_ns=NOW)
BODY_AT_TIME = RecordFields(message=("time",), received_ns=NOW)
TIME_AT_BODY = RecordFields(time=("log",), received_ns=NOW)
BODY_AT_FLAGS = RecordFields(message=("response_flags",), received_ns=NOW)
FIELDS = st.sampled_from(
    [
        USUAL,
        *(
            RecordFields(time=(time,), message=(message,), received_ns=NOW)
            for time, message in [("time", "message"), ("a.time", "a"), ("at", "a.b"), ("a", "a")]
        ),
    ]
)


def by_records(objects: list[dict[str, Any]], fields: RecordFields) -> DecodedRecords:
    """Decode record by record: the reference."""
    tally = Tally()
    rows = [record_of(one, fields, tally, {}) for one in objects]
    return tally.decoded(logs_from_rows(rows, tally))


@given(objects=OBJECTS, named=FIELDS)
@example(objects=[{"time": 1, "a": None, "b": 10**30}, {"b": "1", "a": True}], named=USUAL)
@example(objects=[{"a": {"b": 1}, "a.b": 2}], named=USUAL)
@example(objects=[{"a": {"b": 1}, "x": 2}, {"a": {}, "x": 3}, {"a": 4, "x": "5"}], named=USUAL)
@example(objects=[{"a": {"b": {"at": 1}}, "b": one} for one in (None, "1", 2.5)], named=USUAL)
@example(objects=[{"ts": 5, "t": "2025-11-22T00:00:00+01:00", "log": "", "msg": "x"}], named=USUAL)
@example(objects=[{"time": None, "message": {"a": 1}, "event": {"b": 2}, "body": ""}], named=USUAL)
@example(objects=[{"time": "2025-11-22T00:00:00Z"}], named=BODY_AT_TIME)
@example(objects=[{"time": "2025-11-22T00:00:00Z", "ts": 1_763_000_000}], named=BODY_AT_TIME)
@example(objects=[{"log": "1763000000", "a": 1}], named=TIME_AT_BODY)
@example(objects=[{"start_time": 1_763_000_000, "response_flags": "UF"}], named=BODY_AT_FLAGS)
def test_columns_are_those_of_records(objects: list[dict[str, Any]], named: RecordFields) -> None:
    body = "\n".join(map(json.dumps, objects)).encode()
    (found,) = decode_json(body, named)
    expected = by_records(msgspec.json.Decoder().decode_lines(body), named)
    assert encode_columns(found.columns) == encode_columns(expected.columns)
    sorted_again = canonical(replace(found, is_canonical=False))
    assert encode_columns(sorted_again.columns) == encode_columns(found.columns)
    assert (found.timed, found.unreadable) == (expected.timed, expected.unreadable)


def test_more_shapes_than_are_remembered_have_their_columns() -> None:
    shapes: list[dict[str, Any]] = [{str(place): 1} for place in range(2 * SHAPES_MAX + 1)]
    body = json.dumps(shapes).encode()
    (found,) = decode_json(body, USUAL)
    expected = by_records(shapes, USUAL)
    assert encode_columns(found.columns) == encode_columns(expected.columns)


def test_text_that_is_not_utf8_is_repaired() -> None:
    objects: list[dict[str, Any]] = [{"time": "soon", "a": "\udcff"}, {"a": 1}, {"b": "\udcff"}]
    tally = Tally()
    found = columns_of(objects, USUAL, tally)
    expected = by_records(objects, USUAL)
    assert encode_columns(found) == encode_columns(expected.columns)
    assert (tally.timed, tally.unreadable) == (expected.timed, expected.unreadable) == (False, 2)
