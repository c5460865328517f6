"""Push requests of Loki lead to the same columns through Arrow, in pieces, and line by line."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.door_bodies import LOKI, integer, label, part, timestamp
from support.otlp_requests import damaged
from support.repetitions import examples, times

from sluice_doors import protobuf
from sluice_doors.arrow.texts import NotPlain
from sluice_doors.decoded import (
    BodyTooLarge,
    BodyUnreadable,
    DecodedRecords,
    canonical,
    content_digest,
)
from sluice_doors.loki import arrow as loki_arrow
from sluice_doors.loki import push as loki
from sluice_doors.loki.push import JSON, PROTOBUF, decode_loki
from sluice_protocol.columns import check_columns
from sluice_protocol.ndjson import ndjson_from_columns

NOW = 1_763_000_000_000_000_000
TEXTS = st.sampled_from(["", "x", "héllo", "日本", '"quoted"', "\0"])
KEYS = st.sampled_from(["", "job", "env", "level", "trace", "resource.job", "duplicate.job"])
LABELS = st.lists(
    st.tuples(
        st.sampled_from(["job", "env", "level"]), st.sampled_from(["a", "b", "\\u00fc", "\\xc3"])
    ),
    max_size=3,
).map(lambda pairs: "{" + ", ".join(f'{key}="{one}"' for key, one in pairs) + "}")
PAIRS = st.lists(st.tuples(KEYS, TEXTS).map(lambda pair: label(*pair)), max_size=2)
SECONDS = st.sampled_from([0, 1, 1_763_769_600, 9_223_372_035, 9_223_372_036, 2**62, -1])
ENTRIES = st.builds(
    lambda time, line, own, parsed: b"".join(
        (*time, part(2, line), *(part(3, one) for one in own), *(part(4, one) for one in parsed))
    ),
    st.lists(
        st.builds(
            lambda seconds, nanos: part(1, timestamp(seconds, nanos)),
            st.just(1_763_769_600) | SECONDS,
            st.sampled_from([0, 5, 999_999_999, -1]),
        ),
        max_size=1,
    ),
    TEXTS,
    PAIRS,
    PAIRS,
)
STREAMS = st.builds(
    lambda labels, entries, more: part(
        1, part(1, labels) + b"".join(part(2, one) for one in entries) + b"".join(more)
    ),
    LABELS | st.just("{broken"),
    st.lists(ENTRIES, max_size=4),
    st.lists(st.just(integer(3, 99)), max_size=1),
)
BODIES = st.lists(STREAMS, max_size=4).map(b"".join)


def shown(found: DecodedRecords | None) -> list[object]:
    """Return all that a result contains, after the checks of the protocol."""
    if found is None:
        return []
    form = canonical(found)
    check_columns(form.columns, len(form.columns))
    return [
        content_digest(form),
        form.resource,
        form.timed,
        form.unreadable,
        *ndjson_from_columns(form.columns),
    ]


def by_lines(body: bytes) -> DecodedRecords | None:
    """Decode a body that is too small for Arrow, or as if it were."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf, "_module", lambda name: None)
        found = decode_loki(body, PROTOBUF, received_ns=NOW)
    return found[0] if found else None


@given(BODIES)
@settings(suppress_health_check=list(HealthCheck))
def test_arrow_leads_to_the_same_records(body: bytes) -> None:
    try:
        fast = loki_arrow.decode_push(body)
    except NotPlain:
        return
    assert shown(fast) == shown(by_lines(body))


def test_a_usual_request_is_read_through_arrow() -> None:
    found = loki_arrow.decode_push(LOKI)
    assert len(found.columns) == 3
    assert shown(found) == shown(by_lines(LOKI))


@given(BODIES, st.sampled_from([1, 40, 200]))
@settings(max_examples=examples(80), suppress_health_check=list(HealthCheck))
def test_pieces_lead_to_the_same_records(body: bytes, piece_bytes: int) -> None:
    try:
        whole = loki_arrow.decode_push(body)
        pieces = loki_arrow.decode_push(body, cut_bytes=0, piece_bytes=piece_bytes)
    except NotPlain:
        return
    assert shown(pieces) == shown(whole)


def outcome(body: bytes) -> list[object] | type[Exception]:
    """Return the records of a body, or what it is refused with."""
    try:
        found = decode_loki(body, PROTOBUF, received_ns=NOW)
    except (BodyUnreadable, BodyTooLarge) as error:
        return type(error)
    return shown(found[0] if found else None)


@pytest.mark.parametrize("count", [300, pytest.param(times(4_000), marks=pytest.mark.long)])
def test_damage_has_the_same_outcome(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged body is decoded or refused alike, whether Arrow is installed or not."""
    bodies = list(damaged(random.Random(25), [LOKI], count))
    slow = list(map(outcome, bodies))
    monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", 0)
    differing = [body for body, one in zip(bodies, slow, strict=True) if outcome(body) != one]
    assert differing == []


JSON_LINES = st.lists(
    st.tuples(
        st.sampled_from(["1763769600000000005", "0", "9223372036854775807", "9223372036854775808"])
        | st.sampled_from([5, "", "-1", "٣", "soon"]),
        TEXTS,
    ).map(list)
    | st.sampled_from([["1"], ["1", 2], "text", ["1", "x", {"level": "warn"}]]),
    max_size=4,
)


@given(st.lists(st.tuples(st.dictionaries(KEYS, TEXTS, max_size=2), JSON_LINES), max_size=3))
@settings(suppress_health_check=list(HealthCheck))
def test_lines_of_json_are_the_same_as_columns(
    streams: list[tuple[dict[str, str], list[object]]],
) -> None:
    body = json.dumps(
        {"streams": [{"stream": labels, "values": lines} for labels, lines in streams]}
    ).encode()

    def decoded(lines_min: int) -> list[object]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loki, "COLUMN_LINES_MIN", lines_min)
            found = decode_loki(body, JSON, received_ns=NOW)
        return shown(found[0] if found else None)

    assert decoded(1) == decoded(1_000)


def test_many_usual_lines_are_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [["1763769600000000005", f"line {number}"] for number in range(100)]
    body = json.dumps({"streams": [{"stream": {"job": "api"}, "values": lines}]}).encode()
    monkeypatch.delattr(loki, "_rows")
    (found,) = decode_loki(body, JSON, received_ns=NOW)
    assert (len(found.columns), found.resource) == (100, (("job", "api"),))
