"""The records that an upload leaves in the store, made from what was validated."""

from sluice_gateway.upload import Upload
from sluice_protocol.frame import FRAME_VERSION
from sluice_protocol.keys import accepted_key, blob_key
from sluice_protocol.manifests import AcceptedManifest, ConflictManifest
from sluice_protocol.units import Digest, UnixNs


def accepted_manifest(
    upload: Upload, accepted_at_ns: UnixNs, collector_id: str
) -> AcceptedManifest:
    """Gives the manifest that claims the identity for these bytes; the same in every try."""
    envelope, identity = upload.envelope, upload.identity
    return AcceptedManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=upload.digest,
        frame_bytes=len(upload.frame),
        raw_blob_key=blob_key(upload.digest),
        accepted_at_unix_ns=accepted_at_ns,
        collector_id=collector_id,
        wire_version=envelope.wire_version,
        frame_version=FRAME_VERSION,
        attempt_id=upload.attempt_id,
        kind=envelope.kind,
        record_count=envelope.count,
        min_ts_unix_ns=envelope.min_ts_ns,
        max_ts_unix_ns=envelope.max_ts_ns,
        principal=upload.principal,
    )


def conflict_manifest(
    upload: Upload, owner: Digest, observed_at_ns: UnixNs, collector_id: str
) -> ConflictManifest:
    """Gives the record of a refusal: whose identity it is and which bytes were refused."""
    identity = upload.identity
    return ConflictManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        accepted_manifest_key=accepted_key(identity),
        accepted_raw_blob_key=blob_key(owner),
        accepted_frame_sha256=owner,
        submitted_raw_blob_key=blob_key(upload.digest),
        submitted_frame_sha256=upload.digest,
        observed_at_unix_ns=observed_at_ns,
        collector_id=collector_id,
    )
