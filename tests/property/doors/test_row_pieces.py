"""Records that are built piece by piece have the same canonical form as all of them together."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.door_bodies import LOKI, LOKI_JSON, REMOTE_WRITE, firehose
from support.repetitions import examples

from sluice_doors import rows as row_pieces
from sluice_doors.decoded import DecodedRecords, canonical, form_digest
from sluice_doors.json.elasticsearch import decode_bulk
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.json.hec import decode_events
from sluice_doors.loki.push import decode_loki
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


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(objects=OBJECTS, rows=st.integers(1, 4))
def test_pieces_of_any_size_lead_to_one_form(
    monkeypatch: pytest.MonkeyPatch, objects: list[dict[str, object]], rows: int
) -> None:
    whole = decoded(objects)
    with monkeypatch.context() as patch:
        patch.setattr(row_pieces, "PIECE_ROWS", rows)
        assert decoded(objects) == whole
