"""The accepted manifests that benchmarks write."""

from sluice_protocol.frame import FRAME_VERSION
from sluice_protocol.identity import Identity
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.manifests import AcceptedManifest


def log_manifest(
    who: Identity, frame: bytes, accepted_at_ns: int, span: tuple[int, int] | None = None
) -> AcceptedManifest:
    """Return the manifest of a batch of logs.

    `span` is the first and last time of its records, by default that of the acceptance.
    """
    digest = digest_of(frame)
    first_ns, last_ns = (accepted_at_ns, accepted_at_ns) if span is None else span
    return AcceptedManifest(
        agent_id=who.agent_id,
        boot_id=who.boot_id,
        seq_start=who.seq_start,
        seq_end=who.seq_end,
        frame_sha256=digest,
        frame_bytes=len(frame),
        raw_blob_key=blob_key(digest),
        accepted_at_unix_ns=accepted_at_ns,
        collector_id="gw",
        wire_version=1,
        frame_version=FRAME_VERSION,
        attempt_id=digest[:26].upper(),
        kind="logs",
        record_count=who.count,
        min_ts_unix_ns=first_ns,
        max_ts_unix_ns=last_ns,
        principal="p",
    )
