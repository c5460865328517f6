"""Damaged requests of every other door are decoded or refused by the two named errors."""

import random
from collections.abc import Callable

import pytest
from support.door_bodies import (
    ARN,
    BULK,
    COMMON,
    FIREHOSE,
    FORWARD,
    HEC,
    LOKI,
    LOKI_JSON,
    NDJSON,
    REMOTE_WRITE,
    REMOTE_WRITE_2,
)
from support.otlp_requests import damaged
from support.repetitions import times

from sluice_doors.decoded import BodyTooLarge, BodyUnreadable, DecodedRecords, content_digest
from sluice_doors.forward.messages import decode_forward
from sluice_doors.json.elasticsearch import decode_bulk
from sluice_doors.json.firehose import common_pairs, decode_firehose
from sluice_doors.json.hec import decode_events
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_doors.json.timed_lines import columns_of_lines, timed_lines
from sluice_doors.loki.push import JSON, PROTOBUF, decode_loki
from sluice_doors.prometheus.write import VERSION_2, decode_remote_write
from sluice_protocol.column_codings import encode_columns
from sluice_protocol.columns import check_columns
from sluice_protocol.meaning import BODY_KEYS, TIME_KEYS

TIMED = b"\n".join(
    b'{"time":"2025-11-22T00:00:0%d.5Z","message":"line \\u00e9 %d","a":%d.25,"b":[null,{}]}'
    % (place, place, place)
    for place in range(4)
)
NOW = 1_763_000_000_000_000_000
Decode = Callable[[bytes], tuple[DecodedRecords, ...]]


def decode_both_ways(body: bytes) -> tuple[DecodedRecords, ...]:
    """Decode JSON as the door does for single requests, and as it does for small ones."""
    found = decode_json(body, RecordFields(received_ns=NOW))
    lines = timed_lines(body, TIME_KEYS, BODY_KEYS)
    if lines is not None:
        (decoded,) = found
        assert encode_columns(columns_of_lines([lines])) == encode_columns(decoded.columns)
        assert (decoded.timed, decoded.unreadable) == (True, 0)
    return found


DOORS: dict[str, tuple[bytes, Decode]] = {
    "json": (NDJSON, decode_both_ways),
    "json lines": (TIMED, decode_both_ways),
    "elasticsearch": (BULK, lambda body: decode_bulk(body, received_ns=NOW).records),
    "loki": (LOKI, lambda body: decode_loki(body, PROTOBUF, received_ns=NOW)),
    "loki json": (LOKI_JSON, lambda body: decode_loki(body, JSON, received_ns=NOW)),
    "prometheus": (
        REMOTE_WRITE,
        lambda body: decode_remote_write(body, PROTOBUF, received_ns=NOW).records,
    ),
    "prometheus 2": (
        REMOTE_WRITE_2,
        lambda body: (
            decode_remote_write(body, f"{PROTOBUF};proto={VERSION_2}", received_ns=NOW).records
        ),
    ),
    "hec": (HEC, lambda body: decode_events(body, received_ns=NOW)),
    "firehose": (
        FIREHOSE,
        lambda body: decode_firehose(body, common_pairs(COMMON, ARN), received_ns=NOW),
    ),
    **{
        f"forward {mode}": (
            message,
            lambda body: decode_forward(body, received_ns=NOW, bytes_max=1 << 20),
        )
        for mode, message in FORWARD.items()
    },
}


@pytest.mark.parametrize("count", [200, pytest.param(times(2_000), marks=pytest.mark.long)])
@pytest.mark.parametrize("door", DOORS)
def test_damaged_requests_are_decoded_or_refused(door: str, count: int) -> None:
    good, decode = DOORS[door]
    decoded = 0
    for body in damaged(random.Random(17), [good], count):
        try:
            found = decode(body)
        except (BodyUnreadable, BodyTooLarge):
            continue
        for one in found:
            check_columns(one.columns, len(one.columns))
            content_digest(one)
        decoded += 1
    assert decoded > count // 20
