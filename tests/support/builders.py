"""Builders of identities, frames and manifests for tests, with keyword defaults."""

from collections.abc import Sequence

from msgspec.structs import replace

from sluice_protocol.columns import Columns
from sluice_protocol.expiry import RowTally, TableVersion, Tombstone, group_by_boot
from sluice_protocol.fields import Kind
from sluice_protocol.frame import FRAME_VERSION, decode_head, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, blob_key, digest_of, hour_of
from sluice_protocol.manifests import AcceptedManifest, ConflictManifest
from sluice_protocol.records import LogRecord, logs_from_records
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_queue.register import Descriptor

ACCEPTED_AT_NS = 1_700_000_000_000_000_000


def make_identity(
    seq: int = 0, *, count: int = 10, agent: str = "host-1", boot: str = "b1"
) -> Identity:
    """Return the identity of the batch with the sequence numbers `seq … seq+count-1`."""
    return Identity(agent_id=agent, boot_id=boot, seq_start=seq, seq_end=seq + count - 1)


def log_columns(bodies: Sequence[str], *, from_ns: int = ACCEPTED_AT_NS) -> Columns:
    """Return one log record for each body, one nanosecond apart."""
    return logs_from_records(
        [LogRecord(ts_ns=from_ns + n, body=body) for n, body in enumerate(bodies)]
    )


def salted_frame(identity: Identity, columns: Columns, salt: str = "") -> bytes:
    """Return a frame; another `salt` results in other bytes of the same identity."""
    resource = (("salt", salt),)
    return encode_frame(identity=identity, columns=columns, resource=resource)


def accepted_manifest(
    identity: Identity,
    digest: Digest,
    *,
    frame_bytes: int = 100,
    at_ns: int = ACCEPTED_AT_NS,
    kind: Kind = "logs",
    span: tuple[int | None, int | None] | None = None,
    collector_id: str = "gw-1",
    attempt_id: str | None = None,
    principal: str = "p",
) -> AcceptedManifest:
    """Return the manifest of bytes with this digest; the time span defaults to `at_ns`."""
    first_ns, last_ns = (at_ns, at_ns) if span is None else span
    return AcceptedManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=digest,
        frame_bytes=frame_bytes,
        raw_blob_key=blob_key(digest),
        accepted_at_unix_ns=at_ns,
        collector_id=collector_id,
        wire_version=1,
        frame_version=FRAME_VERSION,
        attempt_id=attempt_id if attempt_id is not None else digest[:26].upper(),
        kind=kind,
        record_count=identity.count,
        min_ts_unix_ns=first_ns,
        max_ts_unix_ns=last_ns,
        principal=principal,
    )


def manifest(
    seq: int = 0,
    *,
    count: int = 10,
    agent: str = "host-1",
    boot: str = "b1",
    at_ns: int = ACCEPTED_AT_NS,
    frame: bytes | None = None,
) -> AcceptedManifest:
    """Return the manifest of a batch of any bytes: `frame`, or bytes derived from its name."""
    body = frame if frame is not None else f"{agent}/{boot}/{seq}/{count}".encode()
    who = make_identity(seq, count=count, agent=agent, boot=boot)
    return accepted_manifest(who, digest_of(body), frame_bytes=len(body), at_ns=at_ns)


def manifest_of(frame: bytes, *, at_ns: int = ACCEPTED_AT_NS) -> AcceptedManifest:
    """Return the manifest of a valid frame, with the span of its envelope."""
    envelope = decode_head(frame).envelope
    return accepted_manifest(
        envelope.identity,
        digest_of(frame),
        frame_bytes=len(frame),
        at_ns=at_ns,
        kind=envelope.kind,
        span=(envelope.min_ts_ns, envelope.max_ts_ns),
    )


def later_release(frame: bytes, *, at_ns: int = ACCEPTED_AT_NS) -> tuple[bytes, AcceptedManifest]:
    """Return the frame with a version that no release reads yet, and its manifest."""
    later = frame[:4] + bytes((FRAME_VERSION + 1,)) + frame[5:]
    digest = digest_of(later)
    manifest = replace(
        manifest_of(frame, at_ns=at_ns),
        frame_sha256=digest,
        raw_blob_key=blob_key(digest),
        frame_version=FRAME_VERSION + 1,
    )
    return later, manifest


def conflict_manifest(
    identity: Identity,
    *,
    accepted: Digest,
    submitted: Digest,
    at_ns: int = ACCEPTED_AT_NS,
    collector_id: str = "gw-1",
) -> ConflictManifest:
    """Return the quarantine manifest of bytes that were refused under an identity."""
    return ConflictManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        accepted_manifest_key=accepted_key(identity),
        accepted_raw_blob_key=blob_key(accepted),
        accepted_frame_sha256=accepted,
        submitted_raw_blob_key=blob_key(submitted),
        submitted_frame_sha256=submitted,
        observed_at_unix_ns=at_ns,
        collector_id=collector_id,
    )


def descriptors(first: int, count: int) -> tuple[Descriptor, ...]:
    """Return entries of a queue with sequence numbers from `first` on."""
    return tuple(
        Descriptor(
            sequence=first + number,
            location=ObjectKey("x"),
            size_bytes=1,
            batches=1,
            frame_bytes=1,
            first_accepted_at_ns=UnixNs(1),
            last_accepted_at_ns=UnixNs(1),
            ingested_at_ns=UnixNs(1),
        )
        for number in range(count)
    )


def tombstone_of(
    manifest: AcceptedManifest,
    state: TableVersion,
    *,
    run_id: str = "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    authority_id: str = "A",
    at_ns: int = 1,
) -> Tombstone:
    """Return a tombstone that names one batch; its table and the ledger are in one state."""
    hour = hour_of(manifest.accepted_at_unix_ns)
    return Tombstone(
        run_id=run_id,
        part=0,
        first_hour=hour,
        last_hour=hour,
        authority_id=authority_id,
        rule=1,
        keep_s=30 * 86_400,
        audit_id="A0",
        certificate_sha256=digest_of(b""),
        tables={manifest.kind: state, "batches": state},
        deletes=0,
        made_at_unix_ns=at_ns,
        compared={manifest.kind: RowTally(rows=manifest.record_count, content="c-c")},
        boots=group_by_boot([(manifest.identity, manifest.digest)]),
    )
