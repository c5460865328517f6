"""Keys of objects at the edges of the rule: empty, overlapping, long, and times without a year."""

import base64
import json
from typing import Any

import pytest

from sluice_doors.decoded import DecodedRecords, Tally
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import DIVIDED_NAME_MAX, RecordFields, columns_of
from sluice_doors.json.timed_lines import columns_of_lines, timed_lines
from sluice_protocol.columns import LogColumns
from sluice_protocol.meaning import BODY_KEYS, TIME_KEYS
from sluice_protocol.ndjson import attribute_rows

RECEIVED = 1_790_000_000_000_000_000
NS = 1_764_336_000 * 10**9


def parts(found: DecodedRecords | LogColumns) -> tuple[int, str, dict[str, str]]:
    columns = found.columns if isinstance(found, DecodedRecords) else found
    assert isinstance(columns, LogColumns)
    [attributes] = attribute_rows(columns.attributes, 1)
    return int(columns.ts[0]), columns.body.data.decode(), attributes


def firehose(found: dict[str, Any]) -> DecodedRecords:
    data = base64.b64encode(json.dumps(found).encode()).decode()
    body = json.dumps({"records": [{"data": data}]}).encode()
    return decode_firehose(body, {}, received_ns=RECEIVED)[0]


def json_door(found: dict[str, Any]) -> DecodedRecords:
    return decode_json(json.dumps(found).encode(), RecordFields(received_ns=RECEIVED))[0]


@pytest.mark.parametrize("door", [json_door, firehose])
@pytest.mark.parametrize("time", [{}, {"time": NS}, {"time": "2025-11-28T14:20:00+01:00"}])
def test_the_value_under_an_empty_key_is_an_attribute(door: Any, time: dict[str, Any]) -> None:
    _, body, attributes = parts(door({"": "v", "a": "b", **time}))
    assert body == ""
    assert {"sluice.empty_key": "v", "a": "b"}.items() <= attributes.items()


@pytest.mark.parametrize(
    ("time", "message"), [(TIME_KEYS, ("time",)), (("event",), BODY_KEYS), (("a",), ("a",))]
)
def test_a_key_that_is_time_and_body_is_not_read_before_its_record(
    time: tuple[str, ...], message: tuple[str, ...]
) -> None:
    body = b'{"time":"2026-11-21T00:00:00Z","event":"2026-11-21T00:00:00Z","a":"1"}'
    assert timed_lines(body, time, message) is None


def test_a_time_without_a_year_does_not_replace_the_known_time() -> None:
    body = json.dumps({"@timestamp": "Jan 01 13:20:00", "time": NS // 10**9, "msg": "x"}).encode()
    lines = timed_lines(body, TIME_KEYS, BODY_KEYS)
    assert lines is not None
    assert lines.times == [NS]
    assert parts(columns_of_lines([lines]))[0] == NS


@pytest.mark.parametrize("others", [[], ["x", {"": 1}], [{"m": "\udcff"}]])
def test_null_is_no_time_and_no_attribute(others: list[Any]) -> None:
    """Also if another object of the request has an error."""
    found: dict[str, Any] = {"ts": None, "time": NS, "t": None, "a": None}
    columns = columns_of([found, *others], RecordFields(received_ns=RECEIVED), Tally())
    assert int(columns.ts[0]) == NS
    assert next(iter(attribute_rows(columns.attributes, len(columns)))) == {"a": "null"}


@pytest.mark.parametrize("door", [json_door, firehose])
def test_an_object_under_a_long_name_is_not_divided(door: Any) -> None:
    """Its name would be repeated for each of its keys."""
    short, long = "s" * DIVIDED_NAME_MAX, "l" * (DIVIDED_NAME_MAX + 1)
    inside = {str(number): 1 for number in range(3)}
    _, _, attributes = parts(door({short: inside, long: inside}))
    assert attributes == {f"{short}.{key}": "1" for key in inside} | {long: '{"0":1,"1":1,"2":1}'}
