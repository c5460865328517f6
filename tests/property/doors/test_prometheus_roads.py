"""Remote write 1.0 leads to the same columns through Arrow, in pieces, and point by point."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.door_bodies import MS, REMOTE_WRITE, double, has_group, integer, label, part
from support.otlp_requests import damaged
from support.repetitions import examples, times

from sluice_doors import protobuf
from sluice_doors.arrow.texts import NotPlain
from sluice_doors.decoded import BodyTooLarge, BodyUnreadable, canonical, content_digest
from sluice_doors.prometheus import arrow as prometheus_arrow
from sluice_doors.prometheus.write import RemoteWrite, decode_remote_write
from sluice_protocol.columns import check_columns
from sluice_protocol.ndjson import ndjson_from_columns

NOW = 1_763_000_000_000_000_000
VALUES = st.sampled_from(["", "a", "héllo", "x_total", "up", "sluice.unnamed"])
KEYS = st.sampled_from(["", "job", "env", "duplicate.job"])
TIMES = st.just(MS) | st.sampled_from([0, 1, 9_223_372_036_854, 9_223_372_036_855, -1])
SAMPLES = st.builds(
    lambda value, ms: part(2, double(1, value) + integer(2, ms)),
    st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    TIMES,
)
LABELS = st.builds(
    lambda name, pairs: [label("__name__", name), *(label(*pair) for pair in pairs)],
    VALUES,
    st.lists(st.tuples(KEYS, VALUES), max_size=3),
)
SERIES = st.builds(
    lambda labels, samples: part(1, b"".join([*(part(1, one) for one in labels), *samples])),
    LABELS,
    st.lists(SAMPLES, max_size=3),
)
METADATA = st.builds(lambda name: part(3, integer(1, 1) + part(2, name) + part(4, "help")), VALUES)
BODIES = st.lists(SERIES | METADATA, max_size=6).map(b"".join)


def shown(found: RemoteWrite) -> list[object]:
    """Return all that a result contains, after the checks of the protocol."""
    parts: list[object] = [found.written]
    for one in map(canonical, found.records):
        check_columns(one.columns, len(one.columns))
        parts += [content_digest(one), one.timed, one.unreadable]
        parts += ndjson_from_columns(one.columns)
    return parts


def by_points(body: bytes) -> RemoteWrite:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf, "_module", lambda name: None)
        return decode_remote_write(body, "", received_ns=NOW)


@given(BODIES)
@settings(suppress_health_check=list(HealthCheck))
def test_arrow_leads_to_the_same_points(body: bytes) -> None:
    try:
        fast = prometheus_arrow.decode_write(body, received_ns=NOW)
    except NotPlain:
        return
    assert shown(fast) == shown(by_points(body))


@given(BODIES, st.sampled_from([1, 60]))
@settings(max_examples=examples(80), suppress_health_check=list(HealthCheck))
def test_pieces_lead_to_the_same_points(body: bytes, piece_bytes: int) -> None:
    try:
        whole = prometheus_arrow.decode_write(body, received_ns=NOW)
        pieces = prometheus_arrow.decode_write(
            body, received_ns=NOW, cut_bytes=0, piece_bytes=piece_bytes
        )
    except NotPlain:
        return
    assert shown(pieces) == shown(whole)


def test_a_usual_request_is_read_through_arrow() -> None:
    """Two series, of which one has two samples, and metadata behind the first."""
    series = [
        part(1, part(1, label("__name__", name)) + b"".join(
            part(2, double(1, 1.0) + integer(2, MS + place)) for place in range(count)
        ))
        for name, count in (("up", 2), ("load", 1))
    ]  # fmt: skip
    body = series[0] + part(3, part(2, "up") + part(4, "help")) + series[1]
    fast = prometheus_arrow.decode_write(body, received_ns=NOW)
    assert fast.written.samples == 3
    assert shown(fast) == shown(by_points(body))


@pytest.mark.parametrize("count", [300, pytest.param(times(4_000), marks=pytest.mark.long)])
def test_damage_has_the_same_outcome(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged body is decoded or refused alike, whether Arrow is installed or not."""

    def outcome(body: bytes) -> list[object] | type[Exception]:
        try:
            return shown(decode_remote_write(body, "", received_ns=NOW))
        except (BodyUnreadable, BodyTooLarge) as error:
            return type(error)

    plain = b"".join(
        part(1, part(1, label("__name__", name)) + part(2, double(1, 1.0) + integer(2, MS)))
        for name in ("up", "x_total")
    )
    bodies = list(damaged(random.Random(26), [plain, REMOTE_WRITE], count))
    slow = list(map(outcome, bodies))
    monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", 0)
    other = [body for body, one in zip(bodies, slow, strict=True) if outcome(body) != one]
    # The parser of Arrow ignores a group whose end has another number (ADR 20).
    assert [body for body in other if not has_group(body)] == []
    assert len(other) <= count // 1_000
