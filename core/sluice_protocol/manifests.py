"""The stored JSON records of acceptance: manifests, reverse references, work lists and markers.

One canonical encoder writes them (UTF-8, sorted keys, no spaces). Decoders ignore unknown fields of
later versions and reject every other deviation from the schema.

A gateway combines small requests of clients that know no sequence numbers into one batch. Its
manifest lists the parts: base64 of 24 bytes for each, in the order of the records.

| offset | bytes | field |
|---|---|---|
| 0 | 16 | the first half of the digest of the request's identity (`identity`) |
| 16 | 4 | index of its first record in the batch, little-endian |
| 20 | 4 | number of its records, little-endian |

Records that no part contains belong to requests without an identity. A part is repeated if an
earlier batch of the lane contains the same request; the copy of the manifest in the work list then
names its records in `repeated`. Source of the parts: ADR 6.
"""

import base64
import binascii
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec

from sluice_protocol.errors import UNREADABLE_JSON, InvalidFrame, InvalidRecord, UnsupportedRecord
from sluice_protocol.fields import Kind
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    accepted_key,
    blob_key,
    parse_digest,
    quarantine_key,
)
from sluice_protocol.units import Digest, ObjectKey, UnixNs

REQUEST_BYTES: Final = 16
PARTS_MAX: Final = 1024
"""Parts of one batch, at most; their list has 32 KiB."""
_PLACE: Final = struct.Struct("<II")
PART_BYTES: Final = REQUEST_BYTES + _PLACE.size

RecordRange = tuple[int, int]
"""Records of a batch: index of the first one, and index behind the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPart:
    """The records of one request in a combined batch.

    `request` is 16 bytes that name the request. `start` is the index of its first record in the
    batch.
    """

    request: bytes
    start: int
    count: int

    @property
    def records(self) -> RecordRange:
        """The range of its records."""
        return self.start, self.start + self.count


def encode_parts(parts: Iterable[RequestPart]) -> str:
    """Return the parts as the manifest contains them."""
    packed = b"".join(one.request + _PLACE.pack(one.start, one.count) for one in parts)
    return base64.b64encode(packed).decode()


def decode_parts(key: str, text: str, record_count: int) -> tuple[RequestPart, ...]:
    """Return the parts of a manifest: base64 of whole parts within the batch, without overlap."""
    try:
        packed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRecord(key, f"parts are not base64: {error}") from error
    if len(packed) % PART_BYTES:
        raise InvalidRecord(key, "parts end within a part")
    parts: list[RequestPart] = []
    end = 0
    for at in range(0, len(packed), PART_BYTES):
        start, count = _PLACE.unpack_from(packed, at + REQUEST_BYTES)
        if start < end or not count:
            raise InvalidRecord(key, "parts overlap or are empty")
        end = start + count
        parts.append(RequestPart(request=packed[at : at + REQUEST_BYTES], start=start, count=count))
    if end > record_count:
        raise InvalidRecord(key, "parts have more records than the batch")
    return tuple(parts)


def joined_ranges(ranges: Iterable[RecordRange]) -> tuple[RecordRange, ...]:
    """Return the same records as sorted ranges that do not touch each other."""
    joined: list[RecordRange] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return tuple(joined)


def kept_ranges(record_count: int, repeated: Sequence[RecordRange]) -> tuple[RecordRange, ...]:
    """Return the ranges of the records that are not repeated; ranges beyond the batch are cut."""
    kept: list[RecordRange] = []
    at = 0
    for start, end in joined_ranges(repeated):
        if at < min(start, record_count):
            kept.append((at, min(start, record_count)))
        at = max(at, end)
    if at < record_count:
        kept.append((at, record_count))
    return tuple(kept)


TRANSFER_MARKERS: Final = "transferred/v1/"
"""Prefix of the transfer markers; it exists only in a spool."""

TransferResult = Literal["accepted", "conflict", "copied"]

_Record = TypeVar("_Record", bound=msgspec.Struct)
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_VERSION: Final = re.compile(r"[0-9]{1,9}")


def encode_record(record: msgspec.Struct) -> bytes:
    """Return the canonical bytes of a stored record: sorted keys, no spaces, UTF-8."""
    return _ENCODER.encode(record)


def decode_record(key: str, body: bytes, kind: type[_Record]) -> _Record:
    """Decode a stored record; unknown fields are ignored."""
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE_JSON as error:
        raise _other_version(key, body, kind) or InvalidRecord(key, str(error)) from error


def _other_version(key: str, body: bytes, kind: type[msgspec.Struct]) -> UnsupportedRecord | None:
    """Return the error for a record of this kind of another version; None for any other body.

    The schema of a signed record is in the record inside.
    """
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except UNREADABLE_JSON:
        return None
    for one in msgspec.structs.fields(kind):
        if one.name == "schema":
            return _compare_versions(key, bytes(found.get("schema", b"")), one.default)
    for one in msgspec.structs.fields(kind):
        if isinstance(one.type, type) and issubclass(one.type, msgspec.Struct):
            inside = _other_version(key, bytes(found.get(one.encode_name, b"")), one.type)
            if inside is not None:
                return inside
    return None


def _compare_versions(key: str, found: bytes, known: str) -> UnsupportedRecord | None:
    name, _, version = found.strip(b'"').decode(errors="replace").rpartition(".v")
    known_name, _, known_version = known.rpartition(".v")
    if name != known_name or version == known_version or not _VERSION.fullmatch(version):
        return None
    return UnsupportedRecord(name, int(version), int(known_version), key)


class AcceptedManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The record that decides an identity.

    Times are Unix ns; `min_ts_unix_ns` and `max_ts_unix_ns` are null without `ts`. `parts` lists
    the requests of a combined batch. `repeated` exists only in the copies in work
    lists: the records that an earlier batch of the lane contains, which no consumer reads again.
    """

    schema: Literal["lightmetrics.accepted_batch.v1"] = "lightmetrics.accepted_batch.v1"
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    frame_sha256: str
    frame_bytes: int
    raw_blob_key: str
    accepted_at_unix_ns: int
    collector_id: str
    wire_version: int
    frame_version: int
    attempt_id: str
    kind: Kind
    record_count: int
    min_ts_unix_ns: int | None
    max_ts_unix_ns: int | None
    principal: str
    parts: str | msgspec.UnsetType = msgspec.UNSET
    repeated: tuple[RecordRange, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def kept(self) -> tuple[RecordRange, ...]:
        """The records that consumers of a work list read: all of them, except the repeated ones."""
        return kept_ranges(self.record_count, self.repeated or ())

    @property
    def identity(self) -> Identity:
        """The identity that this manifest decides."""
        return Identity.of(self)

    @property
    def digest(self) -> Digest:
        """The sha256 that owns the identity."""
        return Digest(self.frame_sha256)

    @property
    def accepted_at_ns(self) -> UnixNs:
        """When it was accepted, by the store's clock."""
        return UnixNs(self.accepted_at_unix_ns)


class ConflictManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The record of bytes that were refused because other bytes own the identity."""

    schema: Literal["lightmetrics.identity_conflict.v1"] = "lightmetrics.identity_conflict.v1"
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    accepted_manifest_key: str
    accepted_raw_blob_key: str
    accepted_frame_sha256: str
    submitted_raw_blob_key: str
    submitted_frame_sha256: str
    observed_at_unix_ns: int
    collector_id: str

    @property
    def identity(self) -> Identity:
        """The identity that was claimed twice."""
        return Identity.of(self)


class BlobReference(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a reverse reference, for readers; the key contains the same information."""

    schema: Literal["lightmetrics.blob_reference.v1"] = "lightmetrics.blob_reference.v1"
    manifest_key: str


class WorkList(msgspec.Struct, frozen=True, kw_only=True):
    """The batches of one queue entry, in the order in which they were discovered.

    The agent of every batch maps to the lane. The manifests are copies, so that a reader needs no
    further request.
    """

    schema: Literal["lightmetrics.work_list.v1"] = "lightmetrics.work_list.v1"
    queue: str
    lane: int
    batches: tuple[AcceptedManifest, ...]


class HighWaterMark(msgspec.Struct, frozen=True, kw_only=True):
    """The highest sequence number that an agent reported with an accepted upload, per boot.

    It is a hint, written best effort. Only the report of missing batches uses it. Source: ADR 29.
    """

    schema: Literal["sluice.high_water.v1"] = "sluice.high_water.v1"
    agent_id: str
    boot_id: str
    seq_end: int


class TransferMarker(msgspec.Struct, frozen=True, kw_only=True):
    """A marker in a spool: the record has been transferred to the authority. Source: ADR 16.

    With `conflict`, the refused bytes are in quarantine in the authority. The time is that of the
    transferring machine.
    """

    schema: Literal["sluice.transfer_marker.v1"] = "sluice.transfer_marker.v1"
    result: TransferResult
    transferred_at_unix_ns: int


def decode_accepted(key: str, body: bytes) -> AcceptedManifest:
    """Decode an accepted manifest and check that it agrees with its key."""
    manifest = decode_record(key, body, AcceptedManifest)
    check_accepted(key, manifest)
    return manifest


def check_accepted(key: str, manifest: AcceptedManifest) -> None:
    """Check that a manifest agrees with its key and names a blob under `raw-blobs/`."""
    try:
        expected_key = accepted_key(manifest.identity)
        expected_blob = blob_key(parse_digest(manifest.frame_sha256))
    except (InvalidFrame, ValueError) as error:
        raise InvalidRecord(
            key, f"manifest does not name a valid identity or digest: {error}"
        ) from error
    if expected_key != key:
        raise InvalidRecord(key, f"manifest belongs under {expected_key}")
    if expected_blob != manifest.raw_blob_key:
        raise InvalidRecord(key, f"raw_blob_key does not name the blob {expected_blob}")


def readable_parts(
    manifest: AcceptedManifest, report: Callable[[InvalidRecord], None] | None = None
) -> tuple[RequestPart, ...]:
    """Return the parts of a combined batch; none, and a `report`, if they are unreadable."""
    if not manifest.parts:
        return ()
    try:
        return decode_parts(accepted_key(manifest.identity), manifest.parts, manifest.record_count)
    except InvalidRecord as error:
        if report is not None:
            report(error)
        return ()


def decode_conflict(key: str, body: bytes) -> ConflictManifest:
    """Decode a quarantine manifest and check that it agrees with its key."""
    manifest = decode_record(key, body, ConflictManifest)
    try:
        submitted = parse_digest(manifest.submitted_frame_sha256)
        expected_key = quarantine_key(manifest.identity, submitted)
    except (InvalidFrame, ValueError) as error:
        raise InvalidRecord(
            key, f"manifest does not name a valid identity or digest: {error}"
        ) from error
    if expected_key != key:
        raise InvalidRecord(key, f"manifest belongs under {expected_key}")
    return manifest


def encode_reference(manifest_key: ObjectKey) -> bytes:
    """Return the body of the reverse reference to a manifest."""
    return encode_record(BlobReference(manifest_key=manifest_key))


def transfer_marker_key(key: ObjectKey) -> ObjectKey:
    """Return the key of the transfer marker of a spooled record."""
    return ObjectKey(f"{TRANSFER_MARKERS}{key}")
