"""The key layout: functions that build and parse every key that sluice writes.

All keys are relative to the deployment's prefix. Dates and hours are UTC. The layout is stored, so
a change is a new version and never an edit (`docs/protocol.md`, Identity and keys).
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from sluice_protocol.errors import InvalidFrame, InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs

RAW_BLOBS: Final = "raw-blobs/v1/"
RAW_BLOBS_BY_TIME: Final = "raw-blobs-by-time/v1/"
ACCEPTED: Final = "accepted/v1/"
ACCEPTED_BY_TIME: Final = "accepted-by-time/v1/"
ACCEPTED_BY_BLOB: Final = "accepted-by-blob/v1/"
QUARANTINE: Final = "quarantine/v1/"
QUARANTINE_CONFLICTS: Final = "quarantine/v1/identity-conflict/"
QUARANTINE_BY_BLOB: Final = "quarantine-by-blob/v1/"
WORK_LISTS: Final = "manifests/v1/"
ROLLUP: Final = "rollup/v1/"
INDEX: Final = "index/v1/"
QUEUE: Final = "queue/v1/"
AUTHORITY: Final = "authority/v1/"
AUTHORITY_SETTINGS: Final = ObjectKey("authority/v1/settings.json")
DELETES: Final = "deletes/v1/"
ACTIVE_DELETES: Final = ObjectKey("reconciler/v1/active-deletes.json")
DECISIONS: Final = "decisions/v1/"
PROMOTIONS: Final = "promotions/v1/"
RETENTION: Final = "retention/v1/"
"""Decisions of operators: retention, holds and erasures."""
RETENTION_DECISIONS: Final = f"{RETENTION}decisions/"
HOLDS: Final = f"{RETENTION}holds/"
ERASURES: Final = f"{RETENTION}erasures/"
EXPIRED: Final = "expired/v1/"
"""Tombstones: which batches expired, by the hour in which the youngest was accepted."""
DOCTOR: Final = "doctor/v1/"
RECONCILER: Final = "reconciler/v1/"
HIGH_WATER: Final = "reconciler/v1/high-water/"
AUDIT: Final = "audit/v1/"
AUDIT_CHAIN: Final = f"{AUDIT}chain/"
"""Every certificate by its position in the chain. Positions are contiguous and permanent."""
GC_PLANS: Final = "gc/v1/plans/"
GC_PROOFS: Final = "gc/v1/proofs/"
GC_TRASH: Final = "gc/v1/trash/"
GC_APPROVALS: Final = "gc/v1/approvals/"
"""Approvals of plans by operators. The role that deletes blobs cannot write here."""
GC_EVIDENCE: Final = "gc/v1/evidence/"
"""Listed rows of audits. Certificates are under `AUDIT`, where nothing is removed."""
GATEWAYS: Final = "gateways/v1/"
GATEWAY_PROCESSES: Final = f"{GATEWAYS}processes/"
GATEWAY_JOURNALS: Final = f"{GATEWAYS}journals/"
MAINTAIN: Final = "maintain/v1/"
MAINTAIN_TASKS: Final = f"{MAINTAIN}tasks/"
LAKE: Final = "lake/v1/"
PACKED_DELETES: Final = ObjectKey(f"{LAKE}deletes.json.z")
LEDGER_LOG: Final = f"{LAKE}batches/_delta_log/"
"""Prefix that has objects once the lake has its ledger of ingested batches."""
DEAD_LETTER_FILES: Final = f"{LAKE}dead_letters/"
LOGS_LOG: Final = f"{LAKE}logs/_delta_log/"
"""The log of the table to which each round of the ingestion commits first."""

INGEST_QUEUE: Final = "spark"
"""The queue that the Spark ingest consumes; it has no other consumer."""

ALL_PREFIXES: Final = (
    *(RAW_BLOBS, RAW_BLOBS_BY_TIME, ACCEPTED, ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB, QUARANTINE),
    *(QUARANTINE_BY_BLOB, WORK_LISTS, ROLLUP, INDEX, QUEUE, AUTHORITY, DELETES, DECISIONS),
    *(
        PROMOTIONS,
        RETENTION,
        EXPIRED,
        DOCTOR,
        RECONCILER,
        AUDIT,
        "gc/v1/",
        GATEWAYS,
        LAKE,
        MAINTAIN,
    ),
)
"""Every prefix under which sluice writes; policies are rendered from it."""

METRIC_NAME_BYTES_MAX: Final = 120

_NS_PER_HOUR: Final = 3600 * NS_PER_S
_HEX64: Final = re.compile(r"[0-9a-f]{64}")
_IDENTITY_TAIL: Final = re.compile(
    r"agent=(?P<agent>(?:[0-9a-f]{2})+)/boot=(?P<boot>(?:[0-9a-f]{2})+)"
    r"/(?P<start>[0-9]{20})-(?P<end>[0-9]{20})"
)
_PACK: Final = re.compile(r"([0-9]{20})-([0-9]{20})-[0-9a-f]{32}\.ndjson")
_TOMBSTONE: Final = re.compile(
    re.escape(EXPIRED) + r"date=([0-9-]{10})/hour=([0-9]{2})/([0-9-]{10})T([0-9]{2})"
    r"-[0-9A-HJKMNP-TV-Z]{26}-[0-9]{6}\.json\.z"
)
_BLOB: Final = re.compile(r"raw-blobs/v1/sha256/(..)/(..)/([0-9a-f]{64})\.lmbatch")


def digest_of(body: bytes | memoryview) -> Digest:
    """Return the sha256 of `body` as a digest."""
    return Digest(hashlib.sha256(body).hexdigest())


def parse_digest(text: str) -> Digest:
    """Return 64 lower-case hex digits as a digest."""
    if _HEX64.fullmatch(text) is None:
        raise ValueError(text)
    return Digest(text)


def _fan(digest: Digest) -> str:
    return f"{digest[:2]}/{digest[2:4]}/{digest}"


@lru_cache(maxsize=4096)  # the boots of many batches repeat
def _boot_folder(agent_id: str, boot_id: str) -> str:
    return f"agent={agent_id.encode().hex()}/boot={boot_id.encode().hex()}/"


def _who(identity: Identity) -> str:
    boot = _boot_folder(identity.agent_id, identity.boot_id)
    return f"{boot}{identity.seq_start:020d}-{identity.seq_end:020d}"


def hour_of(at_ns: int) -> int:
    """Return the hour since 1970 of an instant."""
    return at_ns // _NS_PER_HOUR


def hour_path(at_ns: int) -> str:
    """Return `date=YYYY-MM-DD/hour=HH` of an instant, in UTC."""
    return path_of_hour(hour_of(at_ns))


@lru_cache(maxsize=4096)
def path_of_hour(hour: int) -> str:
    """Return `date=YYYY-MM-DD/hour=HH` of an hour since 1970."""
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    return moment.strftime("date=%Y-%m-%d/hour=%H")


def agent_prefix(agent_id: str) -> str:
    """Return the prefix under `accepted/` of every batch of one agent."""
    return f"{ACCEPTED}agent={agent_id.encode().hex()}/"


def blob_key(digest: Digest) -> ObjectKey:
    """Return the key of the raw blob with these bytes."""
    return ObjectKey(f"{RAW_BLOBS}sha256/{_fan(digest)}.lmbatch")


def trash_key(digest: Digest) -> ObjectKey:
    """Return the key of the copy of a deleted blob."""
    return ObjectKey(f"{GC_TRASH}sha256/{_fan(digest)}.lmbatch")


def raw_blob_by_time_key(digest: Digest, at_ns: UnixNs) -> ObjectKey:
    """Return the key of the by-time entry of a referenced blob, dated by `accepted_at`."""
    return ObjectKey(f"{RAW_BLOBS_BY_TIME}{hour_path(at_ns)}/sha256={digest}.json")


def accepted_key(identity: Identity) -> ObjectKey:
    """Return the key of the identity manifest, the only object that decides an identity."""
    return ObjectKey(f"{ACCEPTED}{_who(identity)}.json")


def manifest_id(accepted: ObjectKey, accepted_at_ns: UnixNs) -> str:
    """Return the id of a by-time entry: a function of the manifest, the same for every writer.

    It is `<accepted_at, 20 digits>-<first 32 hex digits of sha256(the manifest's key)>`.
    """
    return f"{accepted_at_ns:020d}-{hashlib.sha256(accepted.encode()).hexdigest()[:32]}"


def accepted_by_time_key(accepted: ObjectKey, accepted_at_ns: UnixNs) -> ObjectKey:
    """Return the key of the by-time entry of an accepted manifest."""
    name = manifest_id(accepted, accepted_at_ns)
    return ObjectKey(f"{ACCEPTED_BY_TIME}{hour_path(accepted_at_ns)}/{name}.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSpan:
    """The first and last instant in a packed index object, both inclusive, Unix ns."""

    first_ns: UnixNs
    last_ns: UnixNs

    def contains(self, at_ns: UnixNs) -> bool:
        """Return True if an entry of this instant may be in the object."""
        return self.first_ns <= at_ns <= self.last_ns


def pack_key(folder: str, span: PackSpan, content: Digest) -> ObjectKey:
    """Return the key of a packed index object: by-time entries of one hour in one object.

    The last instant is first in the name, so that a listing from an instant on contains every
    packed object with a later entry. The content hash is last, so that the same entries have the
    same key. `folder` is that of the hour under `accepted-by-time/` or `raw-blobs-by-time/`.
    `content` is the sha256 of the body.
    """
    return ObjectKey(f"{folder}/{span.last_ns:020d}-{span.first_ns:020d}-{content[:32]}.ndjson")


def parse_pack_key(key: str) -> PackSpan | None:
    """Return the span of a packed index object, or None for the key of a single entry."""
    found = _PACK.fullmatch(key.rpartition("/")[2])
    if found is None:
        return None
    return PackSpan(first_ns=UnixNs(int(found[2])), last_ns=UnixNs(int(found[1])))


def accepted_by_blob_prefix(digest: Digest) -> str:
    """Return the prefix of every accepted reference to a blob."""
    return f"{ACCEPTED_BY_BLOB}sha256/{_fan(digest)}/"


def accepted_reference_key(digest: Digest, accepted: ObjectKey) -> ObjectKey:
    """Return the key of the reverse reference from a blob to the manifest at an accepted key."""
    return ObjectKey(f"{accepted_by_blob_prefix(digest)}{accepted.removeprefix(ACCEPTED)}")


def accepted_by_blob_key(digest: Digest, identity: Identity) -> ObjectKey:
    """Return the key of the reverse reference from a blob to an accepted identity."""
    return ObjectKey(f"{accepted_by_blob_prefix(digest)}{_who(identity)}.json")


def chain_key(chain_index: int) -> ObjectKey:
    """Return the key of a position in the chain of certificates."""
    return ObjectKey(f"{AUDIT_CHAIN}{chain_index:020d}.json")


def high_water_prefix(agent_id: str) -> str:
    """Return the prefix of the high-water marks of all boots of one agent."""
    return f"{HIGH_WATER}agent={agent_id.encode().hex()}/"


def high_water_key(agent_id: str, boot_id: str) -> ObjectKey:
    """Return the key of the high-water mark of one boot of an agent."""
    return ObjectKey(f"{high_water_prefix(agent_id)}boot={boot_id.encode().hex()}.json")


def quarantine_prefix(identity: Identity) -> str:
    """Return the prefix of the quarantine manifests of bytes refused under an identity."""
    return f"{QUARANTINE_CONFLICTS}{_who(identity)}/"


def quarantine_key(identity: Identity, submitted: Digest) -> ObjectKey:
    """Return the key of the quarantine manifest of bytes refused under an identity."""
    return ObjectKey(f"{quarantine_prefix(identity)}{submitted}.json")


def quarantine_by_blob_prefix(digest: Digest) -> str:
    """Return the prefix of every quarantine reference to a blob."""
    return f"{QUARANTINE_BY_BLOB}sha256/{_fan(digest)}/"


def quarantine_by_blob_key(submitted: Digest, identity: Identity) -> ObjectKey:
    """Return the key of the reverse reference from a quarantined blob to the refused identity."""
    return ObjectKey(f"{quarantine_by_blob_prefix(submitted)}{_who(identity)}.json")


def work_list_key(queue: str, lane: int, ulid: str, at_ns: UnixNs) -> ObjectKey:
    """Return the key of a work list; `at_ns` is the Date of the writer's last store response."""
    return ObjectKey(f"{WORK_LISTS}{hour_path(at_ns)}/{at_ns:020d}-{queue}.{lane:03d}-{ulid}.json")


def register_key(queue: str, lane: int) -> ObjectKey:
    """Return the key of a lane's compare-and-swap register."""
    return ObjectKey(f"{QUEUE}{queue}.{lane:03d}/manifest")


def segment_key(queue: str, lane: int, first: int, last: int) -> ObjectKey:
    """Return the key of an immutable segment of older queue entries."""
    return ObjectKey(f"{QUEUE}{queue}.{lane:03d}/segments/{first:020d}-{last:020d}")


def damaged_copy_key(queue: str, lane: int, digest: Digest) -> ObjectKey:
    """Return the key of the copy of a lane's object that `sluice rebuild` replaced."""
    return ObjectKey(f"{QUEUE}{queue}.{lane:03d}/damaged-{digest}")


def tombstone_key(first_hour: int, last_hour: int, run_id: str, part: int) -> ObjectKey:
    """Return the key of a tombstone of batches that were accepted in a range of hours since 1970.

    The last hour is the folder and the first is in the name. So one listing from an hour on, which
    ends where the longest range ends, contains every tombstone that may name a batch of that hour.
    """
    first = path_of_hour(first_hour).replace("date=", "").replace("/hour=", "T")
    return ObjectKey(f"{EXPIRED}{path_of_hour(last_hour)}/{first}-{run_id}-{part:06d}.json.z")


def tombstone_hours(key: str) -> range:
    """Return the hours since 1970 whose batches a tombstone may name; none for another key."""
    found = _TOMBSTONE.fullmatch(key)
    if found is None:
        return range(0)
    last, first = (f"{found[at]}T{found[at + 1]}:00:00+00:00" for at in (1, 3))
    try:
        return range(_hour_at(first), _hour_at(last) + 1)
    except ValueError:
        return range(0)


@lru_cache(maxsize=4096)  # the hours of many tombstones repeat
def _hour_at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) // 3600


def metric_segment(name: str) -> str:
    """Return the `<metric-name>` path segment: hex of the name, or a hash of a longer one."""
    raw = name.encode()
    if len(raw) <= METRIC_NAME_BYTES_MAX:
        return raw.hex()
    return f"sha256-{hashlib.sha256(raw).hexdigest()}"


def rollup_key(window: str, metric: str, at_ns: UnixNs, chunk_id: str) -> ObjectKey:
    """Return the key of a rollup chunk; `at_ns` is an instant in the hour of the chunk."""
    place = f"{ROLLUP}window={window}/{hour_path(at_ns)}/metric={metric_segment(metric)}"
    return ObjectKey(f"{place}/{chunk_id}.lmrollup.zst")


def index_progress_key(table: str) -> ObjectKey:
    """Return the key of the state in which every file of a table has an index chunk."""
    return ObjectKey(f"{INDEX}{table}/progress.json")


def index_prefix(table: str, date: str) -> str:
    """Return the prefix of the index chunks of a date, `YYYY-MM-DD`."""
    return f"{INDEX}{table}/date={date}/"


def index_key(table: str, at_ns: UnixNs, chunk_id: str) -> ObjectKey:
    """Return the key of an index chunk; `at_ns` is an instant in the hour of the chunk."""
    return ObjectKey(f"{INDEX}{table}/{hour_path(at_ns)}/{chunk_id}.lmindex")


@lru_cache(maxsize=4096)  # the agents of many batches repeat
def hash_of_agent(agent_id: str) -> int:
    """Return the first 8 bytes of sha256(agent_id), big-endian."""
    return int.from_bytes(hashlib.sha256(agent_id.encode()).digest()[:8], "big")


def lane_of(agent_id: str, lanes: int) -> int:
    """Return the lane of an agent: its hash mod `lanes`."""
    return hash_of_agent(agent_id) % lanes


@lru_cache(maxsize=8192)
def _id_of(digits: str) -> str:
    return bytes.fromhex(digits).decode()


def _identity_of(match: re.Match[str], key: str) -> Identity:
    try:
        return Identity(
            agent_id=_id_of(match["agent"]),
            boot_id=_id_of(match["boot"]),
            seq_start=int(match["start"]),
            seq_end=int(match["end"]),
        )
    except (UnicodeDecodeError, InvalidFrame) as error:
        raise InvalidRecord(key, f"key does not name a valid identity: {error}") from error


def _parse_tail(prefix: str, suffix: str, key: str) -> Identity:
    found = None
    if key.startswith(prefix) and key.endswith(suffix):
        found = _IDENTITY_TAIL.fullmatch(key[len(prefix) : len(key) - len(suffix)])
    if found is None:
        raise InvalidRecord(
            key, f"key is not of the form {prefix}agent=…/boot=…/<start>-<end>{suffix}"
        )
    return _identity_of(found, key)


def parse_accepted_key(key: str) -> Identity:
    """Return the identity that an `accepted/` key names."""
    return _parse_tail(ACCEPTED, ".json", key)


def parse_trash_key(key: str) -> Digest:
    """Return the digest that the key of a copy of a deleted blob names."""
    try:
        digest = parse_digest(key.rpartition("/")[2].removesuffix(".lmbatch"))
    except ValueError as error:
        raise InvalidRecord(key, "key is not a copy in the trash") from error
    if trash_key(digest) != key:
        raise InvalidRecord(key, "key is not a copy in the trash")
    return digest


def parse_blob_key(key: str) -> Digest:
    """Return the digest that a `raw-blobs/` key names."""
    found = _BLOB.fullmatch(key)
    if found is None or found[3][:4] != found[1] + found[2]:
        raise InvalidRecord(
            key, "key is not of the form raw-blobs/v1/sha256/<hh>/<hh>/<sha256>.lmbatch"
        )
    return Digest(found[3])


def parse_quarantine_key(key: str) -> tuple[Identity, Digest]:
    """Return the identity and the submitted digest that a `quarantine/` key names."""
    place, _, name = key.rpartition("/")
    if not name.endswith(".json") or _HEX64.fullmatch(name[:-5]) is None:
        raise InvalidRecord(key, "key does not end in <sha256>.json")
    return _parse_tail(QUARANTINE_CONFLICTS, "", place), Digest(name[:-5])


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobReferenceKey:
    """The two parts of a reverse reference's key: the blob, and the identity that names it."""

    digest: Digest
    identity: Identity


def parse_by_blob_key(key: str) -> BlobReferenceKey:
    """Return the digest and identity of an `accepted-by-blob/` or `quarantine-by-blob/` key."""
    for root in (ACCEPTED_BY_BLOB, QUARANTINE_BY_BLOB):
        fan = re.match(re.escape(root) + r"sha256/(..)/(..)/([0-9a-f]{64})/", key)
        if fan is not None and fan[3][:4] == fan[1] + fan[2]:
            return BlobReferenceKey(
                digest=Digest(fan[3]), identity=_parse_tail(fan[0], ".json", key)
            )
    raise InvalidRecord(key, "key is not a reverse reference")
