"""Makes one frame of many small requests. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

import msgspec

from sluice_doors.attributes import with_resource_in_records
from sluice_doors.decoded import DecodedRecords
from sluice_doors.json.timed_lines import TimedLines, columns_of_lines
from sluice_protocol.column_codings import COLUMNS, U8, ZSTD, StoredColumn
from sluice_protocol.columns import check_columns, columns_bytes, join_columns, kind_of
from sluice_protocol.fields import Kind
from sluice_protocol.frame import Envelope, Resource, encode_envelope, encode_frame
from sluice_protocol.identity import DOOR_AGENT_PREFIX, Identity, IdentitySource, RequestIdentity
from sluice_protocol.manifests import REQUEST_BYTES, RequestPart, encode_parts
from sluice_protocol.units import (
    AGENT_ID_BYTES_MAX,
    BOOT_ID_BYTES_MAX,
    FRAME_BYTES_MAX,
    RAW_BYTES_MAX,
)

DOOR_LANES: Final = 4
"""Agents among which the small requests of a principal are divided."""


_ANY_ENVELOPE: Final = Envelope(
    agent_id="a" * AGENT_ID_BYTES_MAX,
    boot_id="b" * BOOT_ID_BYTES_MAX,
    seq_start=0,
    seq_end=0,
    count=1,
    kind="metrics",
    min_ts_ns=0,
    max_ts_ns=0,
)
_ANY_COLUMNS: Final = tuple(
    StoredColumn(name, U8, ZSTD, FRAME_BYTES_MAX, FRAME_BYTES_MAX, b"crc.", RAW_BYTES_MAX)
    for name in COLUMNS["metrics"]
)


class DoorLane(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests may be in one frame; `number` (below `DOOR_LANES`) follows from a request."""

    principal: str
    kind: Kind
    number: int

    @property
    def agent_id(self) -> str:
        """The agent of the combined batches."""
        return f"{DOOR_AGENT_PREFIX}{self.principal}:c{self.number}"


class SmallRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The records of one kind of a request that is combined with others.

    The records are in canonical form, or lines that are decoded with the frame. `size_bytes` is
    what they add to a frame, at most, and the memory that they take.
    """

    records: DecodedRecords | TimedLines
    identity: RequestIdentity
    size_bytes: int

    @property
    def frame_bytes(self) -> int:
        """Bytes that the records add to a frame, about; lines are a third larger than columns."""
        records = self.records
        return len(records.lines) if isinstance(records, TimedLines) else self.size_bytes

    @property
    def count(self) -> int:
        """Number of records."""
        records = self.records
        return len(records.times) if isinstance(records, TimedLines) else len(records.columns)

    @property
    def source(self) -> IdentitySource:
        """What identifies the request."""
        return self.identity.source

    @property
    def lane(self) -> DoorLane:
        """The lane where equal requests meet."""
        records = self.records
        return DoorLane(
            principal=self.identity.principal,
            kind="logs" if isinstance(records, TimedLines) else kind_of(records.columns),
            number=self.identity.digest[REQUEST_BYTES] % DOOR_LANES,
        )

    @property
    def request(self) -> bytes | None:
        """The name of the request in the list of parts; None if it has no identity."""
        is_named = self.identity.source != "none"
        return self.identity.digest[:REQUEST_BYTES] if is_named else None


def combined_bytes(records: DecodedRecords) -> int:
    """Return how many bytes records add to a frame, at most; equal for equal records.

    Pairs of the resource that not all requests of the frame have are repeated for each record.
    """
    pair_bytes = sum(len(key.encode()) + len(value.encode()) + 8 for key, value in records.resource)
    return columns_bytes(records.columns) + pair_bytes * len(records.columns)


def check_records(records: DecodedRecords) -> None:
    """Check that the records fit into a frame, so that they do not spoil the frame of others."""
    check_columns(records.columns, len(records.columns))
    envelope = msgspec.structs.replace(_ANY_ENVELOPE, resource=records.resource)
    encode_envelope(envelope, _ANY_COLUMNS)


def combine(
    lane: DoorLane, boot_id: str, seq_start: int, requests: Sequence[SmallRequest]
) -> tuple[bytes, str]:
    """Return the frame of requests from `seq_start` on, and its parts as the manifest has them."""
    ordered, records = _in_groups(requests)
    shared = _shared_pairs(records)
    columns = join_columns([_with_outer(one, shared).columns for one in records])
    parts, at = list[RequestPart](), 0
    for one in ordered:
        count = one.count
        if one.request is not None:
            parts.append(RequestPart(request=one.request, start=at, count=count))
        at += count
    identity = Identity(
        agent_id=lane.agent_id, boot_id=boot_id, seq_start=seq_start, seq_end=seq_start + at - 1
    )
    return encode_frame(identity=identity, columns=columns, resource=shared), encode_parts(parts)


def decoded(*records: DecodedRecords | TimedLines) -> DecodedRecords:
    """Return records in columns: of one request, or of several with lines of equal fields."""
    if isinstance(records[0], DecodedRecords):
        return records[0]
    lines = [one for one in records if isinstance(one, TimedLines)]
    columns = columns_of_lines(lines)
    return DecodedRecords(columns=columns, resource=(), timed=True, unreadable=0)


def _in_groups(
    requests: Sequence[SmallRequest],
) -> tuple[list[SmallRequest], list[DecodedRecords]]:
    """Return the requests in the order of their records, and the records.

    Lines with equal fields are decoded together, which costs little more than one of them.
    """
    groups: dict[object, list[SmallRequest]] = {}
    for place, one in enumerate(requests):
        found = one.records
        name = (found.time, found.message) if isinstance(found, TimedLines) else place
        groups.setdefault(name, []).append(one)
    ordered = list(chain.from_iterable(groups.values()))
    return ordered, [decoded(*(one.records for one in group)) for group in groups.values()]


def _shared_pairs(records: Sequence[DecodedRecords]) -> Resource:
    first = records[0].resource
    if all(one.resource == first for one in records):
        return first
    common = set(first).intersection(*(one.resource for one in records))
    return tuple(pair for pair in first if pair in common)


def _with_outer(records: DecodedRecords, shared: Resource) -> DecodedRecords:
    if len(records.resource) == len(shared):
        return records
    inside = set(shared)
    outer = tuple(pair for pair in records.resource if pair not in inside)
    return with_resource_in_records(replace(records, resource=outer))
