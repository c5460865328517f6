"""One frame of many requests: records, resources, parts and sizes."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from sluice_doors.decoded import DecodedRecords, canonical, form_digest
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_doors.json.timed_lines import timed_lines
from sluice_doors.requests import identity_of_lines
from sluice_gateway.doors.combined_frames import (
    DoorLane,
    SmallRequest,
    check_records,
    combine,
    combined_bytes,
)
from sluice_gateway.doors.service import RequestOrigin, make_frames
from sluice_protocol.column_codings import encode_columns
from sluice_protocol.columns import (
    LogColumns,
    MetricColumns,
    SignalColumns,
    TextColumn,
    check_columns,
    columns_bytes,
    join_columns,
    slice_columns,
)
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.frame import Resource, decode_frame
from sluice_protocol.identity import request_identity
from sluice_protocol.manifests import decode_parts
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.records import LogRecord, MetricPoint, logs_from_records, metrics_from_records

LANE = DoorLane(principal="shop", kind="logs", number=1)
ORIGIN = RequestOrigin(principal="shop", door="json", key=b"", unique=b"u")


def logs(*bodies: str, severity: int = 0, **attributes: str) -> LogColumns:
    columns = logs_from_records(
        [
            LogRecord(ts_ns=n, body=body, severity=severity, attributes=attributes)
            for n, body in enumerate(bodies)
        ]
    )
    assert isinstance(columns, LogColumns)
    return columns


def small(columns: SignalColumns, resource: Resource = ()) -> SmallRequest:
    records = canonical(
        DecodedRecords(columns=columns, resource=resource, timed=True, unreadable=0)
    )
    identity = request_identity(
        principal="shop", door="json", kind="logs", source="content", value=form_digest(records)
    )
    return SmallRequest(records=records, identity=identity, size_bytes=combined_bytes(records))


def lines(columns: SignalColumns) -> list[str]:
    return list(ndjson_from_columns(columns))


def test_joined_columns_have_the_records_of_all_parts() -> None:
    parts = [logs("a", "b", x="1"), logs("c"), logs("d", severity=9, y="2", x="3")]
    joined = join_columns(parts)
    assert _without_severity(joined) == [one for part in parts for one in _without_severity(part)]
    assert '"severity":9' in lines(joined)[3]
    check_columns(joined, len(joined))


def _without_severity(columns: SignalColumns) -> list[str]:
    return [re.sub('"severity":[0-9]+,?', "", one).replace(",}", "}") for one in lines(columns)]


def test_joined_metrics_share_their_names() -> None:
    def metric(name: str) -> MetricColumns:
        columns = metrics_from_records([MetricPoint(ts_ns=1, name=name, value=2.0)])
        assert isinstance(columns, MetricColumns)
        return columns

    joined = join_columns([metric("up"), metric("down"), metric("up")])
    assert isinstance(joined, MetricColumns)
    assert joined.name.names == ("up", "down")
    assert joined.name.indexes.tolist() == [0, 1, 0]
    check_columns(joined, len(joined))


def test_a_frame_lists_its_parts_and_a_cut_returns_each_request() -> None:
    requests = [small(logs("a", "b", x="1")), small(logs("c")), small(logs("d"))]
    unnamed = structs.replace(requests[1].identity, source="none")
    requests[1] = structs.replace(requests[1], identity=unnamed)
    body, text = combine(LANE, "boot", 10, requests)
    frame = decode_frame(body)
    assert (frame.identity.agent_id, frame.identity.boot_id) == ("door:shop:c1", "boot")
    assert (frame.identity.seq_start, frame.identity.seq_end) == (10, 13)
    parts = decode_parts("k", text, 4)
    assert [(one.start, one.count) for one in parts] == [(0, 2), (3, 1)]
    assert [one.request for one in parts] == [requests[0].request, requests[2].request]
    for part, request in zip(parts, (requests[0], requests[2]), strict=True):
        cut = slice_columns(frame.columns, *part.records)
        assert isinstance(cut, LogColumns)
        assert lines(cut) == lines(request.records.columns)


def test_lines_are_decoded_together_and_each_request_keeps_its_part() -> None:
    bodies = (b'{"time":1,"message":"a","x":1}\n{"time":2}', b'[{"y":null,"time":3}]')
    first, third = (_lines_request(body, "message") for body in bodies)
    other = _lines_request(b'{"time":4,"text":"t"}', "text")
    columns = small(logs("c"), (("host", "h"),))
    requests = [first, columns, other, third]
    assert {one.lane.kind for one in requests} == {"logs"}
    body, text = combine(LANE, "boot", 0, requests)
    frame = decode_frame(body)
    assert frame.envelope.resource == ()
    parts = {one.request: one for one in decode_parts("k", text, 5)}
    expected = {
        first.request: (["a", ""], [10**9, 2 * 10**9]),
        columns.request: (["c"], [0]),
        other.request: (["t"], [4 * 10**9]),
        third.request: ([""], [3 * 10**9]),
    }
    for name, (texts, times) in expected.items():
        cut = slice_columns(frame.columns, *parts[name].records)
        assert isinstance(cut, LogColumns)
        assert [json.loads(one)["body"] for one in lines(cut)] == texts
        assert cut.ts.tolist() == times


def _lines_request(body: bytes, message: str) -> SmallRequest:
    found = timed_lines(body, ("time",), (message,))
    identity = identity_of_lines(found, ORIGIN)
    return SmallRequest(records=found, identity=identity, size_bytes=found.size_bytes)


def test_pairs_that_not_all_requests_have_become_attributes() -> None:
    first = small(logs("a"), (("host", "h1"), ("service", "s")))
    second = small(logs("b", host="own"), (("host", "h2"), ("service", "s")))
    frame = decode_frame(combine(LANE, "boot", 0, [first, second])[0])
    assert frame.envelope.resource == (("service", "s"),)
    assert isinstance(frame.columns, LogColumns)
    found = lines(frame.columns)
    assert '"attributes":{"host":"h1"}' in found[0]
    assert '"host":"own"' in found[1]
    assert '"resource.host":"h2"' in found[1]
    alike = decode_frame(combine(LANE, "boot", 0, [first, first])[0])
    assert alike.envelope.resource == first.records.resource


def test_the_size_decides_and_follows_from_the_records() -> None:
    plain = b'{"time":"2026-01-01T00:00:00Z","message":"m","a":"1","b":"2"}'
    other = b'{"b":"2","a":"1","message":"m","time":"2026-01-01T00:00:00Z"}'
    found = []
    for body in (plain, other):
        [records] = decode_json(body, RecordFields(received_ns=1))
        records = canonical(records)
        [made] = make_frames(records, records, ORIGIN, own_frame_bytes=100_000)
        assert isinstance(made, SmallRequest)
        found.append((made.request, made.size_bytes, made.lane))
        [made] = make_frames(records, records, ORIGIN, own_frame_bytes=made.size_bytes)
        assert not isinstance(made, SmallRequest)
    assert found[0] == found[1]


def test_the_size_bounds_the_columns_and_repeated_pairs() -> None:
    request = small(logs("a" * 100, "b", x="1"), (("host", "h" * 50),))
    assert columns_bytes(request.records.columns) >= sum(
        len(one.data) for one in encode_columns(request.records.columns).values()
    )
    assert combined_bytes(request.records) > columns_bytes(request.records.columns) + 2 * 54


def test_records_that_break_a_rule_are_refused_alone() -> None:
    bad = TextColumn(offsets=np.array([0, 1], np.int32), data=b"\xff")
    with pytest.raises(InvalidFrame):
        check_records(replace(small(logs("a")).records, columns=replace(logs("a"), body=bad)))
    with pytest.raises(InvalidFrame):
        check_records(replace(small(logs("a")).records, resource=(("k", "v" * 70_000),)))


def test_equal_requests_have_one_lane_and_lanes_are_few() -> None:
    lanes = {small(logs(str(n))).lane for n in range(100)}
    assert {one.agent_id for one in lanes} == {f"door:shop:c{n}" for n in range(4)}
    assert small(logs("x")).lane == small(logs("x")).lane
