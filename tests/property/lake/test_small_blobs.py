"""Small blobs that are decoded together are the same table as blobs that are decoded alone."""

import hashlib

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import raw_frames
from support.builders import manifest_of
from support.repetitions import examples

from sluice_lake.records import DecodedBatch, records_table, small_blobs_table
from sluice_protocol.column_codings import checksum_of
from sluice_protocol.errors import SluiceError
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.frame import (
    HEADER_BYTES,
    decode_frame,
    decode_head,
    encode_envelope,
    encode_frame,
)
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.records import (
    EntryRecord,
    LogRecord,
    MetricPoint,
    SpanRecord,
    entries_from_records,
    logs_from_records,
    metrics_from_records,
    spans_from_records,
)
from sluice_protocol.values import BooleanText, BytesText, FloatText, IntegerText, JsonText

TIMES = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=5)
NAMES = st.text(min_size=1, max_size=3)
TYPED = st.one_of(
    st.integers().map(lambda number: IntegerText(str(number))),
    st.booleans().map(lambda one: BooleanText(str(one).lower())),
    st.sampled_from([JsonText("null"), BytesText(""), FloatText("NaN")]),
)
PAIRS = st.dictionaries(NAMES, TEXTS | TYPED, max_size=3)
NAMED = st.dictionaries(NAMES, TEXTS, max_size=3)
RECORDS = {
    "logs": st.builds(
        LogRecord, ts_ns=TIMES, body=TEXTS, severity=st.integers(0, 24), attributes=PAIRS
    ),
    "metrics": st.builds(
        MetricPoint,
        ts_ns=TIMES,
        name=NAMES,
        value=st.floats(),
        type=st.integers(0, 2),
        attributes=PAIRS,
    ),
    "spans": st.builds(
        SpanRecord,
        ts_ns=TIMES,
        name=NAMES,
        span_kind=st.integers(0, 5),
        duration_ns=TIMES,
        status=st.integers(0, 2),
        **dict.fromkeys(("status_message", "trace_id", "span_id", "parent_id", "events"), TEXTS),
        attributes=PAIRS,
    ),
    "entries": st.builds(
        EntryRecord, key=st.binary(max_size=4), value=st.binary(max_size=4), ts_ns=st.none()
    ),
}
MAKERS = {
    "logs": logs_from_records,
    "metrics": metrics_from_records,
    "entries": entries_from_records,
    "spans": spans_from_records,
}


@st.composite
def batches(draw: st.DrawFn) -> tuple[Kind, list[tuple[AcceptedManifest, bytes]]]:
    kind = draw(st.sampled_from(list(KINDS)))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        records = draw(st.lists(RECORDS[kind], min_size=1, max_size=4))
        if kind == "entries" and draw(st.booleans()):
            records = [EntryRecord(key=one.key, value=one.value, ts_ns=7) for one in records]
        start = draw(st.integers(0, 2**40))
        who = Identity(
            agent_id=draw(st.sampled_from(["a", "ä"])),
            boot_id="b",
            seq_start=start,
            seq_end=start + len(records) - 1,
        )
        resource = tuple(draw(NAMED).items())
        frame = encode_frame(
            identity=who,
            columns=MAKERS[kind](records),
            resource=resource,
            compress=draw(st.booleans()),
        )
        found.append((manifest_of(frame, at_ns=draw(st.integers(0, 2**60))), frame))
    return kind, found


def alone(kind: Kind, manifest: AcceptedManifest, frame: bytes) -> pa.Table:
    decoded = DecodedBatch(
        frame=decode_frame(frame), accepted_at_ns=manifest.accepted_at_unix_ns, sequence=0
    )
    return records_table(kind, [decoded], plain=True)


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@settings(max_examples=examples(60))
@given(batches())
def test_blobs_decoded_together_equal_blobs_decoded_alone(
    made: tuple[Kind, list[tuple[AcceptedManifest, bytes]]],
) -> None:
    kind, found = made
    table = small_blobs_table(kind, [one for one, _ in found], [frame for _, frame in found])
    table.validate(full=True)
    single = pa.concat_tables([alone(kind, *one) for one in found])
    assert table.schema == single.schema
    assert rows(table) == rows(single)


def changed_column(good: bytes, name: str, place: int, value: int) -> bytes:
    """Return a plain frame with one other byte in a column, under a matching checksum."""
    head = decode_head(good)
    columns, pieces = [], []
    for one in head.columns:
        start = head.body_start + one.offset
        data = bytearray(good[start : start + one.length])
        if one.name == name:
            data[place] = value
        columns.append(one._replace(checksum=checksum_of(data)))
        pieces.append(bytes(data))
    envelope = encode_envelope(head.envelope, columns)
    return b"".join((good[:HEADER_BYTES], envelope, *pieces))


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_that_is_refused_alone_is_refused_in_a_group(kind: Kind) -> None:
    """Each byte of a column is changed; a group with the frame is refused, or is equal."""
    made: dict[str, list[object]] = {
        "logs": [LogRecord(ts_ns=n, body="äb", attributes={"k": "v", "l": "€"}) for n in (1, 2)],
        "metrics": [MetricPoint(ts_ns=n, name=f"m{n}", value=1.0) for n in (1, 2)],
        "entries": [EntryRecord(key=b"k", value=b"v", ts_ns=n) for n in (1, 2)],
        "spans": [SpanRecord(ts_ns=n, name="s", trace_id="äb", duration_ns=n) for n in (1, 2)],
    }
    who = Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=1)
    other = Identity(agent_id="a", boot_id="b", seq_start=2, seq_end=3)
    columns = MAKERS[kind](made[kind])
    good = encode_frame(identity=who, columns=columns)
    target = encode_frame(identity=other, columns=columns, compress=False)
    places = [(one.name, at) for one in decode_head(target).columns for at in range(one.length)]
    refused = 0
    for name, place in places:
        for value in (0, 1, 0x80, 0xFF):
            changed = changed_column(target, name, place, value)
            manifests = [manifest_of(good), replace_digest(manifest_of(target), changed)]
            table = small_blobs_table(kind, manifests, [good, changed])
            try:
                single = alone(kind, manifests[1], changed)
            except SluiceError:
                assert table is None
                refused += 1
            else:
                assert table is not None
                expected = pa.concat_tables([alone(kind, manifests[0], good), single])
                assert rows(table) == rows(expected)
    assert refused > len(places) / 2


def replace_digest(manifest: AcceptedManifest, frame: bytes) -> AcceptedManifest:
    digest = hashlib.sha256(frame).hexdigest()
    return msgspec.structs.replace(manifest, frame_sha256=digest, frame_bytes=len(frame))


def test_a_missing_damaged_or_foreign_blob_is_refused() -> None:
    columns = logs_from_records([LogRecord(ts_ns=1, body="a")])
    who = Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=0)
    frame = encode_frame(identity=who, columns=columns)
    other = encode_frame(
        identity=Identity(agent_id="c", boot_id="b", seq_start=0, seq_end=0), columns=columns
    )
    manifest = manifest_of(frame)
    assert small_blobs_table("logs", [manifest], [frame]) is not None
    assert small_blobs_table("logs", [manifest], [None]) is None
    assert small_blobs_table("logs", [manifest], [other]) is None
    assert small_blobs_table("logs", [replace_digest(manifest, other)], [other]) is None
    assert small_blobs_table("metrics", [manifest], [frame]) is None
    later = msgspec.structs.replace(manifest, max_ts_unix_ns=2)
    assert small_blobs_table("logs", [later], [frame]) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"attrs": raw_frames.Raw(raw_frames.U16, b"\x00\x01\x00")},
        {"body": raw_frames.Raw(raw_frames.TEXT_U16, b"\x00\x01\x00")},
        {"attr_key": raw_frames.Raw(raw_frames.NAMES_U16, b"\x00\x00\x01")},
        {"attr_key": raw_frames.Raw(raw_frames.NAMES_U32, b"\xff" * 8)},
    ],
)
def test_a_column_that_is_cut_inside_a_number_is_refused(
    changes: dict[str, raw_frames.Raw],
) -> None:
    """A stored blob that no gateway would have accepted is not used, and ends no query."""
    frame = raw_frames.frame(raw_frames.envelope(), raw_frames.logs(**changes))
    assert small_blobs_table("logs", [manifest_of(frame)], [frame]) is None
