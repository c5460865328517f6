"""Records that are built piece by piece have the same canonical form as all of them together."""

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.door_bodies import LOKI, LOKI_JSON, REMOTE_WRITE, firehose
from support.repetitions import examples, times

from sluice_doors import rows as row_pieces
from sluice_doors.decoded import DecodedRecords, canonical, form_digest
from sluice_doors.json.elasticsearch import decode_bulk
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.json.hec import decode_events
from sluice_doors.loki.push import decode_loki
from sluice_doors.otlp.http import JSON, SIGNALS
from sluice_doors.prometheus.write import decode_remote_write

NOW_NS = 1_790_000_000_000_000_000
VALUES = st.one_of(st.text(max_size=5), st.integers(0, 9), st.none(), st.just("\udcff"))
OBJECTS = st.lists(
    st.dictionaries(st.sampled_from(["time", "message", "a", "b", "host"]), VALUES, max_size=4),
    min_size=1,
    max_size=9,
)


def form(records: Sequence[DecodedRecords]) -> list[tuple[bytes, bool, int]]:
    return [(form_digest(canonical(one)), one.timed, one.unreadable) for one in records]


def lines(objects: Sequence[object]) -> list[bytes]:
    return [json.dumps(one).encode() for one in objects]


def hec_body(objects: Sequence[dict[str, object]]) -> bytes:
    """Return events and points."""
    events: list[object] = [
        {"time": 1790000000 + place, "event": one, "host": one.get("host")}
        if place % 3
        else {"event": "metric", "fields": {"metric_name:m": place, "a": "b"}}
        for place, one in enumerate(objects)
    ]
    return b"\n".join(lines(events))


def decoded(objects: Sequence[dict[str, object]]) -> list[list[tuple[bytes, bool, int]]]:
    bulk = b"\n".join(b'{"create":{}}\n' + one for one in lines(objects))
    return [
        form(decode_bulk(bulk, received_ns=NOW_NS).records),
        form(decode_events(hec_body(objects), received_ns=NOW_NS)),
        form(decode_firehose(firehose(*lines(objects)), {}, received_ns=NOW_NS)),
        form(decode_loki(LOKI, "application/x-protobuf", received_ns=NOW_NS)),
        form(decode_loki(LOKI_JSON, "application/json", received_ns=NOW_NS)),
        form(decode_remote_write(REMOTE_WRITE, "", received_ns=NOW_NS).records),
    ]


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(objects=OBJECTS, rows=st.integers(1, 4))
def test_pieces_of_any_size_lead_to_one_form(
    monkeypatch: pytest.MonkeyPatch, objects: list[dict[str, object]], rows: int
) -> None:
    whole = decoded(objects)
    with monkeypatch.context() as patch:
        patch.setattr(row_pieces, "PIECE_ROWS", rows)
        assert decoded(objects) == whole


NAMES = st.sampled_from(
    [
        *("", "k", "scope.k", "resource.k", "resource.k#2", "otel.scope.k", "le", "point.le"),
        *("sluice.error", "sluice.raw", "sluice.raw.k", "otlp.sluice.error", "trace_id", "k\udcff"),
        *("otlp.trace_id", "resource.resource.k", "sluice.empty_key", "flags", "resource.trace_id"),
    ]
)
TEXTS = st.sampled_from(["", "x", "ü", "\udcff"])
ATTRIBUTES = st.lists(
    st.builds(lambda key, text: {"key": key, "value": {"stringValue": text}}, NAMES, TEXTS),
    max_size=3,
)
TIMES = st.sampled_from([0, 5, "7", -1])


def points(attributes: list[object], time: object, name: str) -> object:
    """Return a metric with buckets, an exemplar and a start."""
    exemplar = {"filteredAttributes": attributes, "asInt": 1, "traceId": "ab"}
    point = {"attributes": attributes, "timeUnixNano": 9, "startTimeUnixNano": time, "count": 2}
    whole = {**point, "bucketCounts": [1, 1], "explicitBounds": [0.5], "exemplars": [exemplar]}
    return {"name": name, "histogram": {"dataPoints": [whole, {**point, "bucketCounts": [-1]}]}}


def span(attributes: list[object], time: object, name: str) -> object:
    return {"attributes": attributes, "startTimeUnixNano": time, "name": name, "kind": 77}


def log(attributes: list[object], time: object, text: str) -> object:
    traced = {"traceId": "ab", "severityNumber": 99, "body": {"stringValue": text}}
    return {"attributes": attributes, "timeUnixNano": time, **traced}


@pytest.mark.parametrize(
    ("signal", "groups", "listed", "made"),
    [
        ("logs", "scopeLogs", "logRecords", log),
        ("metrics", "scopeMetrics", "metrics", points),
        ("traces", "scopeSpans", "spans", span),
    ],
)
@pytest.mark.parametrize("count", [25, pytest.param(times(1_000), marks=pytest.mark.long)])
def test_what_records_share_is_joined_as_if_merged_into_each(
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    signal: str,
    groups: str,
    listed: str,
    made: Callable[[list[object], object, str], object],
) -> None:
    """Names that several sources have, bad text and errors lead to the same renamed attributes."""
    records = st.lists(st.builds(made, ATTRIBUTES, TIMES, TEXTS), min_size=1, max_size=4)
    scopes = st.lists(
        st.builds(
            lambda scope, found: {"scope": {"name": "s", "attributes": scope}, listed: found},
            ATTRIBUTES,
            records,
        ),
        min_size=1,
        max_size=2,
    )
    resources = st.lists(
        st.builds(
            lambda own, found: {"resource": {"attributes": own}, groups: found}, ATTRIBUTES, scopes
        ),
        min_size=1,
        max_size=3,
    )

    def outcome(body: bytes, least: int) -> list[tuple[bytes, bool, int]]:
        monkeypatch.setattr(row_pieces, "_REPEATED_MIN", least)
        return form(SIGNALS[signal](body, JSON, received_ns=NOW_NS))

    def check(parts: list[object]) -> None:
        body = json.dumps({groups.replace("scope", "resource"): parts}).encode()
        assert outcome(body, 0) == outcome(body, 1_000)

    chosen = settings(max_examples=count, suppress_health_check=list(HealthCheck))
    chosen(given(resources)(check))()
