"""OTLP to columns: each field has the place that `docs/doors.md` states."""

import base64
import json

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from support.golden import golden
from support.otlp_requests import LOG_REQUEST, METRIC_REQUEST, otlp_json

from sluice_doors import protobuf
from sluice_doors.attributes import with_resource_in_records
from sluice_doors.decoded import (
    BodyTooLarge,
    BodyUnreadable,
    DecodedRecords,
    canonical,
    content_digest,
)
from sluice_doors.otlp import messages as otlp_messages
from sluice_doors.otlp import protobuf as otlp_protobuf
from sluice_doors.otlp.http import JSON, PROTOBUF, decode_otlp_logs, decode_otlp_metrics
from sluice_doors.otlp.metrics import exponential_buckets
from sluice_protocol.ndjson import ndjson_from_columns

NOW = 1_763_000_000_000_000_000


def lines(found: tuple[DecodedRecords, ...]) -> list[dict]:
    return [json.loads(line) for one in found for line in ndjson_from_columns(one.columns)]


def logs(*records: dict, resource: dict | None = None) -> bytes:
    scoped = {"scopeLogs": [{"logRecords": records}], "resource": resource or {}}
    return json.dumps({"resourceLogs": [scoped]}).encode()


def metrics(*listed: dict) -> bytes:
    return json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": listed}]}]}).encode()


def attribute(key: str, **value: object) -> dict:
    return {"key": key, "value": value}


@pytest.mark.parametrize("form", [PROTOBUF, JSON])
@pytest.mark.parametrize("kind", ["logs", "metrics"])
def test_every_field_is_kept_where_the_golden_file_shows_it(form: str, kind: str) -> None:
    """The file pins the mapping and the digest: a change needs a new canonical form."""
    request = LOG_REQUEST if kind == "logs" else METRIC_REQUEST
    decode = decode_otlp_logs if kind == "logs" else decode_otlp_metrics
    body = request.SerializeToString() if form == PROTOBUF else otlp_json(request)
    (found,) = decode(body, f"{form}; charset=utf-8", received_ns=NOW)
    shown = {
        "resource": dict(found.resource),
        "timed": found.timed,
        "unreadable": found.unreadable,
        "digest": content_digest(found).hex(),
        "records": lines((canonical(found),)),
    }
    text = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
    assert golden(f"doors/otlp_{kind}.json", text.encode()).decode() == text


def test_a_request_without_records_is_empty() -> None:
    for body in (b"", ExportLogsServiceRequest().SerializeToString()):
        assert decode_otlp_logs(body, PROTOBUF, received_ns=NOW) == ()
        assert decode_otlp_metrics(body, PROTOBUF, received_ns=NOW) == ()
    for body in (b'{"resourceLogs":[]}', b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[]}]}]}'):
        assert decode_otlp_logs(body, JSON, received_ns=NOW) == ()
    empty = metrics({"name": "x", "gauge": {"dataPoints": []}})
    assert decode_otlp_metrics(empty, JSON, received_ns=NOW) == ()


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b"", JSON),
        (b"[]", JSON),
        (b"{}", JSON),
        (b'{"resource_spans":[]}', JSON),
        (b'{"resourceLogs":5}', JSON),
        (b'{"resourceLogs":[]', JSON),
        (b"[" * 100_000, JSON),
        (b"\xff\xff", PROTOBUF),
        (b"{}", "text/plain"),
    ],
)
def test_a_body_that_cannot_be_parsed_is_refused(body: bytes, form: str) -> None:
    with pytest.raises(BodyUnreadable):
        decode_otlp_logs(body, form, received_ns=NOW)


@pytest.mark.parametrize("bad", [{"attributes": 5}, "text", {"body": {"intValue": []}}, None])
def test_one_bad_record_is_kept_as_text_and_the_others_are_read(bad: object) -> None:
    good = {"timeUnixNano": "5", "body": {"stringValue": "good"}}
    (found,) = decode_otlp_logs(logs(good, bad, good), JSON, received_ns=NOW)
    first, kept, last = lines((found,))
    assert first == last == {"ts": "1970-01-01T00:00:00.000000005Z", "body": "good"}
    assert json.loads(kept["body"]) == bad
    assert kept["attributes"]["sluice.error"].startswith(("Expected", "Object"))
    assert (found.unreadable, found.timed) == (1, False)


def test_a_bad_scope_or_resource_is_kept_as_text() -> None:
    bad = {"resource": {"attributes": 1}, "scopeLogs": [{"logRecords": [{}]}]}
    scoped = {"scopeLogs": [{"scope": 5, "logRecords": [{}]}, 7, {"logRecords": [{}]}]}
    body = json.dumps({"resourceLogs": [bad, scoped, 3]}).encode()
    (found,) = decode_otlp_logs(body, JSON, received_ns=NOW)
    assert found.unreadable == 4
    assert [json.loads(line["body"]) for line in lines((found,)) if line["body"]] == [
        bad, {"scope": 5, "logRecords": [{}]}, 7, 3,
    ]  # fmt: skip


@pytest.mark.parametrize("time", [2**63, 10_413_792_000 * 10**9, "soon", -1])
def test_a_time_out_of_range_is_kept_as_an_attribute(time: object) -> None:
    (found,) = decode_otlp_logs(logs({"timeUnixNano": time}), JSON, received_ns=NOW)
    (line,) = lines((found,))
    assert found.columns.ts.tolist() == [NOW]
    assert line["attributes"] == {
        "time_unix_nano": str(time), "sluice.error": "time is outside 1970 to 2262",
    }  # fmt: skip
    assert (found.timed, found.unreadable) == (False, 1)


def test_a_time_of_1970_is_a_time() -> None:
    (found,) = decode_otlp_logs(logs({"timeUnixNano": 1}), JSON, received_ns=NOW)
    assert (found.columns.ts.tolist(), found.timed, found.unreadable) == ([1], True, 0)


def test_a_severity_out_of_range_is_kept_as_an_attribute() -> None:
    body = logs({"severityNumber": 25}, {"severityNumber": "SEVERITY_NUMBER_WARN2"})
    (found,) = decode_otlp_logs(body, JSON, received_ns=NOW)
    outside, inside = lines((found,))
    assert outside["attributes"] == {"severity_number": "25"}
    assert inside["severity"] == 14
    assert found.unreadable == 0


def not_utf8() -> bytes:
    """Return a request with text that is not UTF-8 in a body, a value and a key."""
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=1)
    record.body.string_value = "body-XX"
    record.attributes.add(key="key-XX").value.string_value = "value-XX"
    return request.SerializeToString().replace(b"XX", b"\xff\xfe")


def test_text_that_is_not_utf8_is_kept_raw() -> None:
    (found,) = decode_otlp_logs(not_utf8(), PROTOBUF, received_ns=NOW)
    (line,) = lines((found,))
    assert line["body"] == "body-\ufffd\ufffd"
    assert line["attributes"] == {
        "key-\\xff\\xfe": "value-\ufffd\ufffd",
        "sluice.raw": base64.b64encode(b"body-\xff\xfe").decode(),
        "sluice.raw.key-\\xff\\xfe": base64.b64encode(b"value-\xff\xfe").decode(),
        "sluice.error": "text is not UTF-8",
    }
    assert (found.unreadable, found.timed) == (1, True)


def test_a_collision_keeps_the_records_value_and_renames_the_others() -> None:
    own = [
        attribute("a", stringValue="1"),
        attribute("a", intValue="2"),
        attribute("", boolValue=True),
    ]
    body = json.dumps(
        {
            "resourceLogs": [
                {
                    "resource": {"attributes": [attribute("a", stringValue=name)]},
                    "scopeLogs": [{"logRecords": [{"attributes": own}]}],
                }
                for name in ("r1", "r2")
            ]
        }
    ).encode()
    (found,) = decode_otlp_logs(body, JSON, received_ns=NOW)
    assert found.resource == ()
    assert [line["attributes"] for line in lines((found,))] == [
        {"a": "1", "duplicate.a": 2, "sluice.empty_key": True, "resource.a": name}
        for name in ("r1", "r2")
    ]


def test_a_resource_beyond_the_limits_of_a_frame_stays_with_the_records() -> None:
    many = {"attributes": [attribute(f"k{place:03}", stringValue="x") for place in range(70)]}
    (found,) = decode_otlp_logs(logs({}, {}, resource=many), JSON, received_ns=NOW)
    assert len(found.resource) == 63
    assert [len(line["attributes"]) for line in lines((found,))] == [7, 7]


@pytest.mark.parametrize("names", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_attributes_of_a_record_are_decoded(names: int) -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=1)
    for place in range(names):
        record.attributes.add(key=f"k{place}").value.int_value = place
        for _ in range(9):
            record.attributes.add(key="same").value.bool_value = True
    (found,) = decode_otlp_logs(request.SerializeToString(), PROTOBUF, received_ns=NOW)
    attributes = found.columns.attributes
    assert len(attributes.keys) == len(attributes.names) == 10 * names


def test_a_request_that_expands_without_limit_is_refused() -> None:
    """Two resources of 10 000 attributes each, and 2 000 records that would repeat them."""
    attributes = [attribute(f"k{place}", stringValue="x") for place in range(10_000)]
    groups = [
        {
            "resource": {"attributes": [*attributes, attribute("own", stringValue=name)]},
            "scopeLogs": [{"logRecords": [{}] * 1_000}],
        }
        for name in "ab"
    ]
    groups[0]["resource"]["attributes"] = [attribute("own", stringValue="a")]
    body = json.dumps({"resourceLogs": [*groups, *groups[1:]]}).encode()
    with pytest.raises(BodyTooLarge, match="expand"):
        decode_otlp_logs(body, JSON, received_ns=NOW)


def test_protobuf_is_decoded_without_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    body = LOG_REQUEST.SerializeToString()
    monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", 0)
    (fast,) = decode_otlp_logs(body, PROTOBUF, received_ns=NOW)
    monkeypatch.setattr(protobuf, "_module", lambda name: None)
    (slow,) = decode_otlp_logs(body, PROTOBUF, received_ns=NOW)
    assert content_digest(fast) == content_digest(slow)


@pytest.mark.parametrize(("spare_bytes", "arrow"), [(0, True), (1, False)])
def test_only_large_bodies_are_decoded_through_arrow(
    spare_bytes: int, arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, used = LOG_REQUEST.SerializeToString(), False

    def note(name: str) -> None:
        nonlocal used
        used = name == "otlp.arrow_logs"

    monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", len(body) + spare_bytes)
    monkeypatch.setattr(protobuf, "_module", note)
    decode_otlp_logs(body, PROTOBUF, received_ns=NOW)
    assert used == arrow


def test_a_histogram_with_a_wrong_number_of_counts_is_kept_raw() -> None:
    point = {"timeUnixNano": 5, "count": "3", "bucketCounts": ["1", "2"], "explicitBounds": [1, 2]}
    (found,) = decode_otlp_metrics(
        metrics({"name": "h", "histogram": {"dataPoints": [point]}}), JSON, received_ns=NOW
    )
    kept, _ = lines((found,))
    assert json.loads(kept["attributes"]["sluice.raw"]) == {
        "bucket_counts": [1, 2], "count": 3, "explicit_bounds": [1, 2],
    }  # fmt: skip
    assert kept["attributes"]["sluice.error"].startswith("histogram has 2 counts and 2 bounds")
    assert found.unreadable == 1


def test_a_sum_that_can_fall_is_a_gauge() -> None:
    def type_of(temporality: int, *, monotonic: bool) -> str:
        data = {"aggregationTemporality": temporality, "isMonotonic": monotonic,
                "dataPoints": [{"timeUnixNano": 1, "asInt": "1"}]}  # fmt: skip
        found = decode_otlp_metrics(metrics({"name": "s", "sum": data}), JSON, received_ns=NOW)
        return lines(found)[0].get("type", "gauge")

    assert [type_of(one, monotonic=rises) for one in (1, 2) for rises in (True, False)] == [
        "delta", "delta", "cumulative", "gauge",
    ]  # fmt: skip


def test_exponential_buckets_have_both_edges_and_count_everything() -> None:
    rng = np.random.default_rng(7)
    values = np.concatenate([rng.lognormal(0, 2, 500), -rng.lognormal(0, 2, 300)])
    scale, base = 1, 2 ** (2**-1)
    sides = []
    for side in (values[values > 0], -values[values < 0]):
        index = np.ceil(np.log(side) / np.log(base)).astype(int) - 1
        counts = np.bincount(index - index.min())
        sides.append((int(index.min()), counts.tolist()))
    buckets = exponential_buckets(scale, (0.0, 0), [sides[0]], [sides[1]], len(values))
    bounds = [bound for bound, _ in buckets]
    assert bounds == sorted(bounds)
    for bound, count in buckets:
        assert count == np.count_nonzero(values <= bound * (1 + 1e-12 * np.sign(bound)))


def test_the_messages_declare_every_field_of_the_protocol() -> None:
    """A new field of `opentelemetry-proto` needs a place in the columns."""
    for name, ours in {
        "logs.v1.LogRecord": otlp_messages.OtlpLog,
        "logs.v1.ScopeLogs": otlp_messages.ScopeLogs,
        "logs.v1.ResourceLogs": otlp_messages.ResourceLogs,
        "common.v1.AnyValue": otlp_messages.AnyValue,
        "common.v1.KeyValue": otlp_messages.KeyValue,
        "common.v1.InstrumentationScope": otlp_messages.Scope,
        "resource.v1.Resource": otlp_messages.OtlpResource,
        "metrics.v1.Metric": otlp_messages.Metric,
        "metrics.v1.Exemplar": otlp_messages.Exemplar,
    }.items():
        request = otlp_protobuf.METRICS_REQUEST if "metrics" in name else otlp_protobuf.LOGS_REQUEST
        pool = otlp_protobuf.message_type(request).file.pool
        theirs = pool.FindMessageTypeByName(f"sluice_doors.otlp.{name}")
        assert {field.name for field in theirs.fields} == set(ours.__struct_fields__), name


def test_null_fields_are_fields_that_are_not_set() -> None:
    scoped = {"scope": None, "logRecords": [{"body": None}]}
    body = json.dumps({"resourceLogs": [{"resource": None, "scopeLogs": [scoped]}]}).encode()
    (found,) = decode_otlp_logs(body, JSON, received_ns=NOW)
    assert (found.unreadable, lines((found,))[0]["body"]) == (0, "")


def test_a_resource_becomes_attributes_of_each_record() -> None:
    body = logs({"attributes": [attribute("a", stringValue="own")]}, {},
                resource={"attributes": [attribute("a", stringValue="outer")]})  # fmt: skip
    (found,) = decode_otlp_logs(body, JSON, received_ns=NOW)
    moved = with_resource_in_records(found)
    assert moved.resource == ()
    assert [line["attributes"] for line in lines((moved,))] == [
        {"a": "own", "resource.a": "outer"}, {"a": "outer"},
    ]  # fmt: skip
