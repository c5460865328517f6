import json
import math

import pytest

from sluice_query.result import QueryResult, QuerySummary, SeriesPoint, result_lines

HEAD = {"agent_id": "a", "boot_id": "b", "seq": 1, "ts_ns": 1_790_000_000_000_000_001}
PLAIN = {"attributes": None, "resource": None}


def lines(result: QueryResult) -> list[dict[str, object]]:
    return [json.loads(line) for line in result_lines(result)]


def test_a_log_record_has_its_body_and_severity() -> None:
    row = HEAD | PLAIN | {"body": "x", "severity": 9, "attributes": {"k": "v"}}
    result = QueryResult(kind="logs", records=[row], summary=QuerySummary(results=1))
    record, last = lines(result)
    assert record == {
        "ts": "2026-09-21T14:13:20.000000001Z",
        "agent_id": "a",
        "boot_id": "b",
        "seq": 1,
        "body": "x",
        "severity": 9,
        "attributes": {"k": "v"},
    }
    assert last == {"summary": json.loads(json.dumps(last["summary"]))}
    assert last["summary"]["results"] == 1


TYPED = {
    "status": ("500", "integer", "500"),
    "code": ("500", "", '"500"'),
    "large": ("9223372036854775809", "integer", "9223372036854775809"),
    "zero": ("-0", "integer", "-0"),
    "ratio": ("1.50", "float", "1.50"),
    "far": ("1e300", "float", "1e300"),
    "none": ("NaN", "float", '"NaN"'),
    "ok": ("true", "boolean", "true"),
    "word": ("true", "", '"true"'),
    "left": ("null", "json", "null"),
    "list": ('[1,"a\\n"]', "json", '[1,"a\\n"]'),
    "map": ('{"b":1.50,"a":{}}', "json", '{"b":1.50,"a":{}}'),
    "raw": ("AP8=", "bytes", '"AP8="'),
}
"""Text in the table, type in the table, and JSON of the result."""


def test_attributes_have_their_types_in_json_and_all_their_digits() -> None:
    attributes = {key: text for key, (text, _, _) in TYPED.items()}
    types = {key: label for key, (_, label, _) in TYPED.items() if label}
    row = HEAD | PLAIN | {"body": "x", "attributes": attributes, "attribute_types": types}
    line, _ = result_lines(QueryResult(kind="logs", records=[row], summary=QuerySummary()))
    shown = ",".join(f'"{key}":{json_text}' for key, (_, _, json_text) in TYPED.items())
    assert f'"attributes":{{{shown}}}'.encode() in line
    assert json.loads(line)["attribute_types"] == {"none": "float", "raw": "bytes"}
    assert row["attributes"] == attributes


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("5 00", "integer"),
        ("1", "float"),
        ("1}", "integer"),
        ("True", "boolean"),
        ('"a"', "json"),
        ("[1,", "json"),
        ("1,2", "json"),
        ("a", "bytes"),
        ("1\n2", "integer"),
        ("500", "number"),
        ("500", "text"),
        ("500", None),
        ("[" * 200 + "]" * 200, "json"),
    ],
)
def test_a_text_that_does_not_have_the_form_of_its_type_is_a_string(
    text: str, label: str | None
) -> None:
    """A damaged file, or one of another program, must not make lines that no reader accepts."""
    types = {"k": label, "other": "integer"}
    row = HEAD | PLAIN | {"body": "x", "attributes": {"k": text}, "attribute_types": types}
    record, _ = lines(QueryResult(kind="logs", records=[row], summary=QuerySummary()))
    assert record["attributes"] == {"k": text}
    assert "attribute_types" not in record


def test_fields_without_a_value_are_omitted() -> None:
    row = HEAD | PLAIN | {"ts_ns": None, "body": "x", "severity": 0}
    record, _ = lines(QueryResult(kind="logs", records=[row], summary=QuerySummary()))
    assert record == {"agent_id": "a", "boot_id": "b", "seq": 1, "body": "x"}


def test_numbers_that_json_does_not_have_are_strings() -> None:
    rows = [
        HEAD | PLAIN | {"name": "cpu", "value": value, "type": 0}
        for value in (1.5, math.nan, math.inf, -math.inf)
    ]
    found = lines(QueryResult(kind="metrics", records=rows, summary=QuerySummary()))[:-1]
    assert [record["value"] for record in found] == [1.5, "NaN", "Infinity", "-Infinity"]
    assert {record["type"] for record in found} == {"gauge"}


def test_keys_and_values_of_entries_are_base64() -> None:
    row = HEAD | PLAIN | {"key": b"\x00", "value": b"\xff"}
    record, _ = lines(QueryResult(kind="entries", records=[row], summary=QuerySummary()))
    assert (record["key"], record["value"]) == ("AA==", "/w==")


def test_points_have_the_values_of_the_fields_that_divide_the_series() -> None:
    by = {"attributes.k": None, "value": float("nan")}
    points = [
        SeriesPoint(step_ns=0, by={}, value=1.0),
        SeriesPoint(step_ns=10**9, by=by, value=math.inf),
    ]
    found = lines(QueryResult(kind="metrics", points=points, summary=QuerySummary()))[:-1]
    assert found == [
        {"ts": "1970-01-01T00:00:00.000000000Z", "value": 1.0},
        {
            "ts": "1970-01-01T00:00:01.000000000Z",
            "value": "Infinity",
            "by": {"attributes.k": None, "value": "NaN"},
        },
    ]
