"""JSON, Elasticsearch, Loki and Prometheus to columns: each field has its documented place."""

import json

import numpy as np
import pytest
from support.door_bodies import (
    BULK,
    LOKI,
    LOKI_JSON,
    MS,
    NDJSON,
    REMOTE_WRITE,
    REMOTE_WRITE_2,
    double,
    integer,
    label,
    part,
    signed,
    timestamp,
)
from support.golden import golden

from sluice_doors.attributes import json_text
from sluice_doors.decoded import (
    RECORDS_MAX,
    BodyTooLarge,
    BodyUnreadable,
    DecodedRecords,
    canonical,
    content_digest,
)
from sluice_doors.json.elasticsearch import BulkItem, decode_bulk
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields, parse_time
from sluice_doors.loki.push import JSON, PROTOBUF, decode_loki, parse_labels
from sluice_doors.otlp.metrics import STALE
from sluice_doors.prometheus.write import VERSION_2, WrittenCounts, decode_remote_write
from sluice_protocol.columns import MetricColumns, check_columns
from sluice_protocol.ndjson import ndjson_from_columns

NOW = 1_763_000_000_000_000_000


def plain_json(body: bytes) -> tuple[DecodedRecords, ...]:
    return decode_json(body, RecordFields(received_ns=NOW))


DECODED = {
    "json": lambda: plain_json(NDJSON),
    "elasticsearch": lambda: decode_bulk(BULK, index="default", received_ns=NOW).records,
    "loki": lambda: decode_loki(LOKI, PROTOBUF, received_ns=NOW),
    "prometheus": lambda: decode_remote_write(REMOTE_WRITE, PROTOBUF, received_ns=NOW).records,
    "prometheus2": lambda: (
        decode_remote_write(
            REMOTE_WRITE_2, f"{PROTOBUF};proto={VERSION_2}", received_ns=NOW
        ).records
    ),
}


def lines(found: tuple[DecodedRecords, ...]) -> list[dict]:
    for one in found:
        check_columns(one.columns, len(one.columns))
    return [json.loads(line) for one in found for line in ndjson_from_columns(one.columns)]


@pytest.mark.parametrize("door", DECODED)
def test_every_field_is_kept_where_the_golden_file_shows_it(door: str) -> None:
    """The file pins the mapping and the digest: a change needs a new canonical form."""
    (found,) = DECODED[door]()
    shown = {
        "resource": dict(found.resource),
        "timed": found.timed,
        "unreadable": found.unreadable,
        "digest": content_digest(found).hex(),
        "records": lines((canonical(found),)),
    }
    text = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
    assert golden(f"doors/{door}.json", text.encode()).decode() == text


def test_the_order_of_keys_does_not_change_the_digest() -> None:
    bodies = (b'{"time":5,"a":"1","b":{"d":[{"y":1,"x":2}],"c":2}}',
              b'[{"b":{"c":2,"d":[{"x":2,"y":1}]},"a":"1","time":5}]')  # fmt: skip
    assert len({content_digest(plain_json(body)[0]) for body in bodies}) == 1


@pytest.mark.parametrize("body", [b"", b"\n \n", b"[]", b"\xef\xbb\xbf"])
def test_json_without_records_is_empty(body: bytes) -> None:
    assert plain_json(body) == ()


BAD_LINES = [
    *(b"hello", b"7", b'{"a":1', b'{"a":"\xe9"}', b'{"a":NaN}', b'{"a":1e400}', b'{"a":"\\ud800"}'),
    *(b'{"a":01}', b'{"a":' * 5000, b'"text"', b"null", b'{"a":"\x01"}'),
]


@pytest.mark.parametrize("bad", BAD_LINES)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("form", ["lines", "array", "crlf"])
def test_a_bad_record_is_kept_raw_alone_and_among_others(
    bad: bytes, mark: bytes, form: str
) -> None:
    good = b'{"time":5,"message":"a"}'
    expected = bad.decode(errors="replace")
    for others in ([], [good]):
        listed = [*others, bad, *others]
        body = {
            "lines": b"\n".join(listed),
            "crlf": b"\r\n".join(listed) + b"\r\n",
            "array": b"[" + b",".join(listed) + b"]",
        }[form]
        (found,) = plain_json(mark + body)
        bodies = [line["body"] for line in lines((found,))]
        if form == "array" and bad.startswith(b'{"a":1') and not bad.endswith(b"}"):
            continue  # an object that is not closed takes the rest of an array with it
        if form == "array" and len(bad) > 5000:
            continue
        assert bodies == ["a"] * len(others) + [expected] + ["a"] * len(others)
        kept = lines((found,))[len(others)]
        assert kept["attributes"]["sluice.error"]
        assert found.unreadable == 1


@pytest.mark.parametrize("body", [b"\x1f\x8b\x08\x00", b"(\xb5/\xfd\x04\x00", b"\x0a\x05\x00"])
def test_a_body_that_is_no_text_is_refused(body: bytes) -> None:
    """It is often compressed, and its Content-Encoding is missing."""
    with pytest.raises(BodyUnreadable, match="no text"):
        plain_json(body)
    with pytest.raises(BodyUnreadable, match="no text"):
        decode_bulk(body, received_ns=NOW)


def test_numbers_keep_their_digits() -> None:
    plain = b'{"time":5,"ts":1795788000.123456789,"f":0.1,"big":123456789012345678901,"e":1e-400}'
    (found,) = plain_json(plain)
    (line,) = ndjson_from_columns(found.columns)
    assert json.loads(line, parse_float=str, parse_int=str)["attributes"] == {
        "ts": "1795788000.123456789", "f": "0.1", "big": "123456789012345678901", "e": "1E-400",
    }  # fmt: skip


@pytest.mark.parametrize("first", ["plain", "\ud800", 2**70])
def test_a_value_that_is_nested_too_deeply_is_refused(first: object) -> None:
    """Also after a surrogate or a large integer, of which the text is made in another way."""
    deep: object = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BodyUnreadable, match="nested too deeply"):
        json_text({"a": first, "b": deep})


def test_one_bad_line_is_kept_as_text() -> None:
    body = b'{"time":5,"message":"a"}\nnot json \xff\n7\n{"time":6,"message":"b"}\n'
    (found,) = plain_json(body)
    first, bad, number, last = lines((found,))
    assert (first["body"], number["body"], last["body"]) == ("a", "7", "b")
    assert bad["body"] == "not json \ufffd"
    assert "sluice.raw" in bad["attributes"]
    assert (found.unreadable, found.timed) == (2, False)


def test_one_object_may_have_line_ends_inside() -> None:
    (found,) = plain_json(b'{\n "time": 5,\n "message": "a"\n}\n')
    assert [line["body"] for line in lines((found,))] == ["a"]


def test_nested_and_dotted_keys_may_collide() -> None:
    (found,) = plain_json(
        b'{"time":5,"a.b":"1","a":{"b":"2"},"big":123456789012345678901234567890}'
    )
    assert lines((found,))[0]["attributes"] == {
        "a.b": "1", "a.b#2": "2", "big": 123456789012345678901234567890,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (1_763_769_600, 1_763_769_600 * 10**9),
        (1_763_769_600_123, 1_763_769_600_123 * 10**6),
        (1_763_769_600_123_456, 1_763_769_600_123_456 * 10**3),
        (1_763_769_600_123_456_789, 1_763_769_600_123_456_789),
        (1763769600.123456, 1_763_769_600_123_456_000),
        ("1763769600", 1_763_769_600 * 10**9),
        ("1763769600.123456789", 1_763_769_600_123_456_789),
        ("1" * 41, None),
        ("2025-11-22T00:00:00", 1_763_769_600 * 10**9),
        ("2025-11-22 01:00:00.000000001+01:00", 1_763_769_600 * 10**9 + 1),
        ("1970-01-01T00:00:01Z", 10**9),
        ("2300-01-01T00:00:00Z", None),
        (2**63, None),
        (-5, None),
        ("yesterday", None),
        (True, None),
        (None, None),
        ([1], None),
    ],
)
def test_times_of_json(value: object, ns: int | None) -> None:
    assert parse_time(value) == ns


def test_a_body_with_too_many_short_records_is_too_large() -> None:
    """Each of them would be an object of some hundred bytes."""
    many = RECORDS_MAX + 1
    for body in (b"1\n" * many, b"[" + b"1," * many + b"1]"):
        with pytest.raises(BodyTooLarge, match="more than 1048576"):
            plain_json(body)
    with pytest.raises(BodyTooLarge, match="more than 2097152"):
        decode_bulk(b"\n" * (2 * many), received_ns=1)


def test_a_time_that_cannot_be_read_is_kept() -> None:
    (found,) = plain_json(b'{"time":"yesterday","message":"a"}')
    (line,) = lines((found,))
    assert line["attributes"]["time"] == "yesterday"
    assert line["attributes"]["sluice.error"].startswith("time is not")
    assert (found.unreadable, found.timed) == (1, False)


def test_a_bulk_request_has_one_item_for_each_action() -> None:
    found = decode_bulk(BULK, index="default", received_ns=NOW)
    assert found.items == (
        BulkItem(action="create", index="logs", id="7"),
        BulkItem(action="index", index="default", id=""),
        BulkItem(
            action="update",
            index="default",
            id="8",
            status=404,
            error="document_missing_exception",
            reason="documents cannot be changed here; the change is kept as a record",
        ),
    )


def test_bad_documents_and_deletions_of_a_bulk_request_are_kept_as_text() -> None:
    body = (
        b'{"delete":{"_index":"i","_id":"1"}}\n{"create":{}}\nnot json\n{"index":{}}\n[1]\n'
        b'what\n{"create":{}}\n{"message":"good","@timestamp":"2025-11-22T00:00:00Z"}\n{"create":{}}'
    )
    found = decode_bulk(body, received_ns=NOW)
    assert [item.action for item in found.items] == [
        "delete", "create", "index", "create", "create", "create",
    ]  # fmt: skip
    assert [line["body"] for line in lines(found.records)] == [
        '{"delete":{"_index":"i","_id":"1"}}', "not json", "[1]", "what", "good", '{"create":{}}',
    ]  # fmt: skip
    assert [item.status for item in found.items] == [400, 400, 400, 400, 201, 400]
    assert found.records[0].unreadable == 5


def test_a_bulk_request_without_an_action_is_kept_with_errors() -> None:
    assert decode_bulk(b"\n", received_ns=NOW).items == ()
    found = decode_bulk(b'{"message":"a"}\n', received_ns=NOW)
    assert [item.error for item in found.items] == ["illegal_argument_exception"]
    assert [line["body"] for line in lines(found.records)] == ['{"message":"a"}']


def test_other_keys_next_to_an_action_are_ignored() -> None:
    """winston-elasticsearch sends `attempts` there."""
    body = b'{"create":{"_index":"i"},"attempts":0}\n{"message":"a"}\n'
    found = decode_bulk(body, received_ns=NOW)
    assert [(item.status, item.index) for item in found.items] == [(201, "i")]
    assert [line["body"] for line in lines(found.records)] == ["a"]


def test_an_unknown_action_takes_its_document_with_it() -> None:
    body = b'{"put":{"_index":"i"}}\n{"message":"a"}\n{"create":{}}\n{"message":"b"}\n'
    found = decode_bulk(body, received_ns=NOW)
    assert [item.status for item in found.items] == [400, 201]
    assert [line["body"] for line in lines(found.records)] == [
        '{"put":{"_index":"i"}}\n{"message":"a"}', "b",
    ]  # fmt: skip


@pytest.mark.parametrize("creates", [{"doc_as_upsert": True, "doc": {"message": "a"}},
                                     {"upsert": {"message": "a"}}])  # fmt: skip
def test_an_update_that_creates_a_document_is_a_record(creates: dict) -> None:
    body = b'{"update":{"_id":"1"}}\n' + json.dumps(creates).encode()
    found = decode_bulk(body, received_ns=NOW)
    assert [(item.status, item.error) for item in found.items] == [(201, "")]
    assert [line["body"] for line in lines(found.records)] == ["a"]


def test_loki_in_protobuf_and_json_have_the_same_digest() -> None:
    (binary,) = decode_loki(LOKI, PROTOBUF, received_ns=NOW)
    (text,) = decode_loki(LOKI_JSON, f"{JSON}; charset=utf-8", received_ns=NOW)
    assert content_digest(binary) == content_digest(text)


def test_bad_lines_labels_and_times_of_loki_are_kept() -> None:
    streams = [
        {"stream": {"a": "1"}, "values": [["soon", "x"], ["5"], 7, ["9223372036854775808", "y"]]},
        {"stream": 5, "values": [["1", "z"]]},
    ]
    (found,) = decode_loki(json.dumps({"streams": streams}).encode(), JSON, received_ns=NOW)
    assert (found.unreadable, found.timed) == (5, False)
    assert [line["body"] for line in lines((found,))][:4] == ["x", '["5"]', "7", "y"]
    body = part(1, part(1, "no labels") + part(2, part(2, "x")))
    (found,) = decode_loki(body, PROTOBUF, received_ns=NOW)
    assert dict(found.resource) == {"loki.labels": "no labels"}
    assert found.unreadable == 1


@pytest.mark.parametrize(("seconds", "nanos"), [(-1, 0), (0, -1), (1, -1_000_000_001)])
def test_a_time_of_loki_before_1970_is_kept_as_text(seconds: int, nanos: int) -> None:
    entry = part(1, timestamp(seconds, nanos)) + part(2, "x")
    (found,) = decode_loki(part(1, part(1, "{}") + part(2, entry)), PROTOBUF, received_ns=NOW)
    (line,) = lines((found,))
    assert line["ts"].startswith("2025-11-13T02:13:20")  # `NOW`
    assert line["attributes"]["timestamp"] == f"{seconds} s {nanos} ns"
    assert (found.unreadable, found.timed) == (1, False)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{}", {}),
        (' {a="1",b=`x"y`, } ', {"a": "1", "b": 'x"y'}),
        ('{a="\\n\\t\\\\\\101"}', {"a": "\n\t\\A"}),
        ('{a="1"', None),
        ('{a="1" b="2"}', None),
        ('{a="1",a="2"}', None),
        ("{a=1}", None),
    ],
)
def test_labels_of_loki(text: str, labels: dict[str, str] | None) -> None:
    assert parse_labels(text) == labels


def test_remote_write_counts_what_it_contained() -> None:
    counts = decode_remote_write(REMOTE_WRITE, PROTOBUF, received_ns=NOW).written
    assert counts == WrittenCounts(samples=3, histograms=2, exemplars=1)
    assert decode_remote_write(b"", PROTOBUF, received_ns=NOW).records == ()


def test_a_stale_marker_keeps_its_bits() -> None:
    body = part(1, part(1, label("__name__", "up")) + part(2, double(1, STALE) + integer(2, MS)))
    (found,) = decode_remote_write(body, PROTOBUF, received_ns=NOW).records
    assert isinstance(found.columns, MetricColumns)
    assert found.columns.value.view(np.uint64).tolist() == [0x7FF0000000000002]


def test_a_histogram_with_wrong_spans_and_a_late_sample_are_kept() -> None:
    spans = part(11, signed(1, 0) + integer(2, 2**32 - 1))
    body = part(
        1, part(1, label("__name__", "h")) + part(4, integer(1, 1) + spans + integer(15, MS))
    )
    late = part(1, part(1, label("__name__", "up")) + part(2, double(1, 1.0) + integer(2, 2**60)))
    (found,) = decode_remote_write(body + late, PROTOBUF, received_ns=NOW).records
    kept, far = lines((found,))
    assert kept["attributes"]["sluice.error"].startswith("spans")
    assert far["attributes"]["timestamp"] == str(2**60)
    assert (found.unreadable, found.timed) == (2, False)


def test_a_reference_without_a_symbol_spoils_no_other_series() -> None:
    symbols = b"".join(part(4, one) for one in ("", "__name__", "up"))
    bad, good = part(5, part(1, b"\x01\x07")), part(1, b"\x01\x02")
    good = part(5, good + part(2, double(1, 1.5) + integer(2, MS)))
    for series in ((bad,), (bad, good), (good, bad)):
        body = symbols + b"".join(series)
        found = decode_remote_write(body, f"{PROTOBUF};proto={VERSION_2}", received_ns=NOW)
        listed = {line["name"]: line for line in lines(found.records)}
        assert "no symbol" in listed["sluice.unnamed"]["attributes"]["sluice.error"]
        assert listed["sluice.unnamed"]["attributes"]["sluice.raw"]
        assert ("up" in listed) == (good in series)


def test_labels_that_expand_without_limit_are_refused() -> None:
    labels = b"".join(part(1, label(f"k{place}", "x")) for place in range(2_000))
    samples = part(2, double(1, 1.0) + integer(2, MS)) * 10_000
    with pytest.raises(BodyTooLarge, match="expand"):
        decode_remote_write(part(1, labels + samples), PROTOBUF, received_ns=NOW)


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_a_time_of_loki_in_another_unit_is_not_a_time_of_1970(unit: int) -> None:
    """Seconds instead of nanoseconds are accepted, so they must be found where they belong."""
    sent = str(1_763_000_000 * unit)
    body = json.dumps({"streams": [{"stream": {"app": "x"}, "values": [[sent, "line"]]}]})
    (found,) = decode_loki(body.encode(), JSON, received_ns=NOW)
    assert (found.timed, found.columns.ts.tolist()) == (True, [1_763_000_000 * 10**9])
