"""Stored and sent bytes are pinned: a change of one of these files is a new version."""

import itertools
import struct
import zlib

import cbor2
import msgspec
import pytest
import zstandard
from msgspec import structs
from support.builders import manifest
from support.frames import assert_same, entries, identity, logs, metrics
from support.golden import GOLDEN, golden

from sluice_protocol.authority import Authority, decode_authority
from sluice_protocol.columns import Columns
from sluice_protocol.frame import Resource, decode_frame, decode_head, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.journals import (
    DiscoveryRecord,
    GatewayProcess,
    HoldReason,
    HoldRecord,
    JournalHeader,
    decode_journal,
    encode_journal,
    hold_record_key,
    journal_key,
    process_name,
    registration_key,
)
from sluice_protocol.keys import accepted_key, blob_key, digest_of, manifest_id, quarantine_key
from sluice_protocol.maintenance import (
    RunOutcome,
    TaskLease,
    TaskProgress,
    TaskRecord,
    TaskRun,
    decode_task_record,
    task_record_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    ConflictManifest,
    RequestPart,
    WorkList,
    decode_accepted,
    decode_conflict,
    decode_record,
    encode_parts,
    encode_record,
    encode_reference,
)
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.promotions import (
    PromotedType,
    Promotion,
    decode_promotion,
    promotion_key,
)
from sluice_protocol.record_deletes import (
    ActiveDeletes,
    DeleteRecord,
    decode_active_deletes,
    decode_delete,
    delete_key,
)
from sluice_protocol.records import LogRecord, logs_from_records
from sluice_protocol.units import UnixNs
from sluice_protocol.values import (
    BooleanText,
    BytesText,
    FloatText,
    IntegerText,
    JsonText,
)

RESOURCE = (("host.name", "web-1"), ("service.name", "größe"))
FRAMES: dict[str, tuple[Columns, Resource]] = {
    "logs": (logs(), ()),
    "logs-resource": (logs(), RESOURCE),
    "metrics": (metrics(), RESOURCE),
    "entries": (entries(), ()),
    "entries-bare": (entries(with_ts=False), ()),
}
_LOGS = ("ts", "body", "attrs", "attr_key", "attr_val", "severity")
NAMES = {
    "logs": _LOGS,
    "logs-resource": _LOGS,
    "logs-zstd": ("ts", "body"),
    "metrics": ("ts", "name", "type", "attrs", "value", "attr_key", "attr_val"),
    "entries": ("ts", "key", "val"),
    "entries-bare": ("key", "val"),
}
"""The columns of each pinned frame, in the order of its directory."""
WHO = identity(3, agent="agent-ü/1", boot="boot 1")
AT_NS = UnixNs(1_790_000_000_987_654_321)


@pytest.mark.parametrize("name", FRAMES)
def test_plain_frame_bytes_are_pinned(name: str) -> None:
    """The bytes of a plain frame and their meaning never change."""
    columns, resource = FRAMES[name]
    made = encode_frame(identity=WHO, columns=columns, resource=resource, compress=False)
    pinned = golden(f"protocol/{name}.lmbatch", made)
    assert made == pinned
    frame = decode_frame(pinned)
    assert (frame.identity, frame.envelope.resource) == (WHO, resource)
    assert_same(frame.columns, columns)


def _typed() -> Columns:
    """Three records: a value of each type, none, and a text under a key that had another type."""
    first = {
        "integer": IntegerText("-9223372036854775809"),
        "float": FloatText("1.50"),
        "boolean": BooleanText("true"),
        "json": JsonText('{"a":[1,null]}'),
        "bytes": BytesText("AP8="),
        "text": "500",
    }
    rows: list[dict[str, str]] = [first, {}, {"integer": "500"}]
    return logs_from_records(
        [LogRecord(ts_ns=place, body="b", attributes=row) for place, row in enumerate(rows)]
    )


def test_a_frame_with_types_is_pinned() -> None:
    """The bytes of the column of types, one number for each pair in the order of the pairs."""
    made = encode_frame(identity=WHO, columns=_typed(), compress=False)
    pinned = golden("protocol/logs-types.lmbatch", made)
    assert made == pinned
    frame = decode_frame(pinned)
    assert list(ndjson_from_columns(frame.columns)) == list(ndjson_from_columns(_typed()))
    entry = decode_head(pinned).columns[-1]
    body = pinned[decode_head(pinned).body_start :]
    assert (entry.name, entry.type, entry.coding) == ("attr_type", 1, 0)
    assert body[entry.offset :] == bytes([3, 5, 2, 1, 4, 0, 0])


def _repeated() -> Columns:
    return logs_from_records(
        [
            LogRecord(ts_ns=place, body=f"line {place} of a log that repeats itself")
            for place in range(200)
        ]
    )


def test_zstd_frame_is_pinned() -> None:
    """A stored zstd frame stays readable; another zstd may compress a column differently."""
    who = identity(200)
    made = encode_frame(identity=who, columns=_repeated())
    pinned = golden("protocol/logs-zstd.lmbatch", made)
    assert decode_head(pinned).is_compressed
    frame = decode_frame(pinned)
    assert frame.identity == who
    assert_same(frame.columns, _repeated())


@pytest.mark.parametrize("name", NAMES)
def test_a_pinned_frame_is_read_by_the_text_of_the_page_alone(name: str) -> None:
    """A reader that uses only the rules of `docs/protocol.md` finds the same identity and times."""
    data = (GOLDEN / f"protocol/{name}.lmbatch").read_bytes()
    magic, version, envelope_bytes = struct.unpack_from("<4sHH", data)
    assert (magic, version) == (b"LMB1", 3)
    encoded, body = data[8 : 8 + envelope_bytes], data[8 + envelope_bytes :]
    envelope = cbor2.loads(encoded)
    assert cbor2.dumps(envelope, canonical=True) == encoded
    frame = decode_frame(data)
    assert envelope[:2] == [frame.identity.agent_id, frame.identity.boot_id]
    columns = _columns_of(envelope[9], body)
    assert tuple(columns) == NAMES[name]
    assert envelope[5:8] == [frame.envelope.kind, *_span(columns.get("ts"))]


def _columns_of(directory: list[object], body: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    end = 0
    for place in range(0, len(directory), 7):
        name, _, coding, offset, length, checksum, raw_length = directory[place : place + 7]
        stored = body[offset : offset + length]
        assert (offset, checksum) == (end, struct.pack("<I", zlib.crc32(stored)))
        end += length
        found[name] = zstandard.ZstdDecompressor().decompress(stored) if coding & 2 else stored
        assert raw_length == (len(found[name]) if coding & 2 else 0)
    assert end == len(body)
    return found


def _span(times: bytes | None) -> tuple[int | None, int | None]:
    if times is None:
        return None, None
    values = list(itertools.accumulate(struct.unpack(f"<{len(times) // 8}q", times)))
    return min(values), max(values)


def _accepted(who: Identity = WHO) -> AcceptedManifest:
    digest = digest_of(b"frame")
    return AcceptedManifest(
        agent_id=who.agent_id,
        boot_id=who.boot_id,
        seq_start=who.seq_start,
        seq_end=who.seq_end,
        frame_sha256=digest,
        frame_bytes=5,
        raw_blob_key=blob_key(digest),
        accepted_at_unix_ns=AT_NS,
        collector_id="gw-1",
        wire_version=1,
        frame_version=3,
        attempt_id="01K5N7W3M0000000000000000A",
        kind="logs",
        record_count=3,
        min_ts_unix_ns=1,
        max_ts_unix_ns=3,
        principal="host-1",
    )


def test_accepted_manifest_is_pinned() -> None:
    """The manifest that decides an identity, and the names derived from it."""
    manifest = _accepted()
    body = golden("protocol/accepted.json", encode_record(manifest))
    assert encode_record(manifest) == body
    key = accepted_key(WHO)
    assert decode_accepted(key, body) == manifest
    names = "\n".join((key, manifest_id(key, AT_NS), encode_reference(key).decode()))
    assert golden("protocol/accepted-names.txt", names.encode()) == names.encode()


def test_conflict_manifest_is_pinned() -> None:
    """The record of refused bytes."""
    accepted, submitted = digest_of(b"frame"), digest_of(b"other")
    manifest = ConflictManifest(
        agent_id=WHO.agent_id,
        boot_id=WHO.boot_id,
        seq_start=WHO.seq_start,
        seq_end=WHO.seq_end,
        accepted_manifest_key=accepted_key(WHO),
        accepted_raw_blob_key=blob_key(accepted),
        accepted_frame_sha256=accepted,
        submitted_raw_blob_key=blob_key(submitted),
        submitted_frame_sha256=submitted,
        observed_at_unix_ns=AT_NS,
        collector_id="gw-1",
    )
    body = golden("protocol/conflict.json", encode_record(manifest))
    assert encode_record(manifest) == body
    assert decode_conflict(quarantine_key(WHO, submitted), body) == manifest


def test_work_list_is_pinned() -> None:
    """The list that a queue entry names."""
    work = WorkList(queue="spark", lane=2, batches=(_accepted(), _accepted(identity(3))))
    body = golden("protocol/work-list.json", encode_record(work))
    assert encode_record(work) == body
    assert decode_record("k", body, WorkList) == work


def test_manifest_and_work_list_of_a_combined_batch_are_pinned() -> None:
    """The parts of a batch, and the records that consumers of its work list leave out."""
    parts = [
        RequestPart(request=bytes(range(16)), start=0, count=1),
        RequestPart(request=bytes(range(16, 32)), start=2, count=1),
    ]
    manifest = structs.replace(_accepted(), parts=encode_parts(parts))
    body = golden("protocol/accepted-combined.json", encode_record(manifest))
    assert encode_record(manifest) == body
    assert decode_accepted(accepted_key(WHO), body) == manifest
    repeated = structs.replace(manifest, repeated=((0, 1),))
    work = WorkList(queue="spark", lane=2, batches=(repeated, _accepted(identity(3))))
    body = golden("protocol/work-list-combined.json", encode_record(work))
    assert encode_record(work) == body
    assert decode_record("k", body, WorkList) == work


def test_authority_is_pinned() -> None:
    """The settings that all parts of a deployment share."""
    settings = Authority(authority_id="01K5N7W3M0000000000000000B", created_at_unix_ns=AT_NS)
    body = golden("protocol/authority.json", encode_record(settings))
    assert encode_record(settings) == body
    assert decode_authority(body) == settings


def test_discovery_record_is_pinned() -> None:
    """The record by which a query decides how complete its answer is."""
    record = DiscoveryRecord(
        complete_through_unix_ns=AT_NS,
        listed=7,
        held_by="gw-1 (process 00000000000000000005-01J00000000000000000000000)",
        journals={"00000000000000000005-01J00000000000000000000000": 12},
        lanes={"003": AT_NS + 5},
        pass_began_unix_ns=AT_NS - 9,
        pass_queues=("http", "spark"),
        journaled_since_unix_ns=AT_NS - 20,
        revision=4,
        writer="01J00000000000000000000001",
    )
    body = golden("protocol/discovery.json", encode_record(record))
    assert encode_record(record) == body
    assert decode_record("k", body, DiscoveryRecord) == record


def test_hold_record_is_pinned() -> None:
    """The record of a batch that is not enqueued."""
    key = accepted_key(WHO)
    record = HoldRecord(
        key=key, reason=HoldReason.BLOB_MISSING, detail="no blob", seen_at_unix_ns=AT_NS
    )
    body = golden("protocol/hold.json", encode_record(record))
    assert encode_record(record) == body
    assert decode_record(hold_record_key(key), body, HoldRecord) == record


def test_maintenance_record_is_pinned() -> None:
    """The lease and the history of a maintenance task."""
    lease = TaskLease(
        owner="host-17-ab", nonce="n1", started_at_unix_ns=AT_NS, expires_at_unix_ns=AT_NS + 1
    )
    run = TaskRun(
        started_at_unix_ns=AT_NS,
        ended_at_unix_ns=AT_NS + 5,
        outcome=RunOutcome.FAILED.value,
        owner="host-16-cd",
        reason="object store: timeout",
        figures={"files": 3},
    )
    record = TaskRecord(
        task="compact",
        revision=4,
        nonce="n2",
        lease=lease,
        failures=1,
        last_success_unix_ns=AT_NS - 1,
        due_at_unix_ns=AT_NS + 9,
        every_s=86_400.0,
        runs=(run,),
        progress=TaskProgress(at_unix_ns=AT_NS + 3, trouble="", figures={"rows": 7}),
    )
    body = golden("protocol/maintenance.json", encode_record(record))
    assert encode_record(record) == body
    assert decode_task_record(task_record_key("compact"), body) == record


def test_a_promotion_is_pinned() -> None:
    record = Promotion(
        kind="logs",
        source="attributes",
        key="http.status",
        column="attr_http_status",
        type=PromotedType.INTEGER,
        decided_by="operator:alice",
        decided_at_unix_ns=1_790_000_000_987_654_321,
    )
    body = golden("protocol/promotion.json", encode_record(record))
    assert decode_promotion(promotion_key("logs", "attr_http_status"), body) == record


def test_deletes_are_pinned() -> None:
    """A delete with every field, and the register of those that readers apply."""
    delete_id = "01K5N7W3M0000000000000000C"
    record = DeleteRecord(
        delete_id=delete_id,
        kind="logs",
        accepted_until_unix_ns=AT_NS,
        from_unix_ns=AT_NS - 9,
        to_unix_ns=AT_NS - 1,
        agent_id="host-1",
        contains="secret",
        attributes={"k": "v"},
        reason="ticket 17",
        principal="operator:alice",
    )
    body = golden("protocol/delete.json", encode_record(record))
    assert encode_record(record) == body
    assert decode_delete(delete_key(delete_id), body) == record
    register = ActiveDeletes(
        revision=3, nonce="n3", through_id=delete_id, known=7, records=(record,)
    )
    body = golden("protocol/active-deletes.json", encode_record(register))
    assert encode_record(register) == body
    assert decode_active_deletes(body) == register


def test_readers_ignore_unknown_fields() -> None:
    future = msgspec.json.decode(encode_record(_accepted())) | {"of_the_future": [1]}
    assert decode_accepted(accepted_key(WHO), msgspec.json.encode(future)) == _accepted()


def test_journals_are_pinned() -> None:
    """The registration of a gateway process, and one of its journal objects."""
    process = process_name(AT_NS, "01J00000000000000000000000")
    record = GatewayProcess(
        collector_id="gw-1", process=process, acceptance="s3_manifest", started_at_unix_ns=AT_NS
    )
    made = encode_record(record)
    assert made == golden("protocol/gateway-process.json", made)
    assert decode_record(registration_key(process), made, GatewayProcess) == record
    header = JournalHeader(
        process=process, number=7, complete_through_unix_ns=AT_NS, closed=True, batches=2
    )
    manifests = (manifest(0), manifest(10))
    body = encode_journal(header, map(encode_record, manifests))
    assert body == golden("protocol/journal.ndjson", body)
    read = decode_journal(journal_key(process, 7), body)
    assert (read.header, read.manifests) == (header, manifests)
