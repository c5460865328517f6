"""Accepted manifests for tests of the queue and the reconciler."""

import hashlib

from sluice_protocol.identity import Identity
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.manifests import AcceptedManifest


def manifest(
    seq: int = 0,
    *,
    count: int = 10,
    agent: str = "host-1",
    boot: str = "b1",
    at_ns: int = 1_700_000_000_000_000_000,
    frame: bytes | None = None,
) -> AcceptedManifest:
    """Return the manifest of the batch `seq … seq+count-1`; its bytes are `frame`, or made up."""
    body = frame if frame is not None else f"{agent}/{boot}/{seq}/{count}".encode()
    digest = digest_of(body)
    who = Identity(agent_id=agent, boot_id=boot, seq_start=seq, seq_end=seq + count - 1)
    return AcceptedManifest(
        agent_id=who.agent_id,
        boot_id=who.boot_id,
        seq_start=who.seq_start,
        seq_end=who.seq_end,
        frame_sha256=digest,
        frame_bytes=len(body),
        raw_blob_key=blob_key(digest),
        accepted_at_unix_ns=at_ns,
        collector_id="gw-1",
        wire_version=1,
        frame_version=1,
        attempt_id=hashlib.sha256(body).hexdigest()[:26].upper(),
        kind="logs",
        record_count=count,
        min_ts_unix_ns=at_ns,
        max_ts_unix_ns=at_ns,
        principal="p",
    )
