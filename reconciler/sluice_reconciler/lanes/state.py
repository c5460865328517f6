"""The stored state of one lane: which batches it was given, and which process may append to it.

`reconciler/v1/lanes/<queue>.<lane>` is one JSON record in a zstd frame, replaced with If-Match. It
contains what was enqueued, and the append intent for what is enqueued next:

- `owner_term`: A process that raises it by a swap fences all earlier owners.
- `writes`: the number of appends, over all owner terms, that are in the register.
- `pending`: the append intent: the batches of the next append, stored before it is made.
- `recent`: the batches that were enqueued since the newest part was written.
- `runs`: the parts with everything else, oldest run first (`lane_parts`). A part is created once,
  before the first record that names it, and never changed.
- `settled_s`, `unsettled`: what is known of boots that are in no part, see below.
- `owner`: the process that raised the owner term. It fences nothing: it is shown to operators.
- `requests`: the runs with the requests of combined batches, oldest first (`request_log`), except
  those of `recent`.

A crash between the intent and the append leaves `pending` set. The next owner reads from the
queue's register whether the append is there, so no batch is enqueued twice or forgotten.

The settled time of a lane is a fact about `accepted/`: every batch of the lane whose manifest was
created before it is enqueued, except the unsettled ones, which the lane state names. It comes from
a full pass that compared the lane and left no batch behind. A boot whose batches were all enqueued
before that time can therefore be retired, that is, removed from the lane state. When a batch of it
appears again, the listing of its boot restores exactly what the lane state contained.

    in the state --(idle, rewrite of all runs)--> retired --(any batch of it)--> restored

Source: `docs/reconciler.md`, State; ADR 24 and 25.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from sluice_protocol.compression import ZstdError, compress_zstd, decompress_zstd
from sluice_protocol.errors import InvalidRecord, UnsupportedRecord, UnsupportedVersion
from sluice_protocol.keys import RECONCILER
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import NS_PER_S, Digest, ETag, ObjectKey, UnixNs
from sluice_queue.lane import Lane
from sluice_reconciler.lanes.enqueued import IntendedBatch
from sluice_reconciler.lanes.parts import BootCounts
from sluice_reconciler.lanes.sequence_ranges import BootRanges, ListedBatch
from sluice_store.port import ObjectStore

STATE_BYTES_MAX: Final = 1 << 30
LANES: Final = f"{RECONCILER}lanes/"
LANE_PARTS: Final = f"{RECONCILER}lane-parts/"
DAMAGED_LANES: Final = f"{RECONCILER}damaged-lanes/"

CLOCK_MARGIN_S: Final = 60
"""More than the clocks of gateways and store differ, and than a timestamp precedes its object."""

RETIRED_SHARE: Final = 4
"""All runs are rewritten when at least one in this many boots is idle."""

RETIRED_MIN: Final = 1024
"""Idle boots below which they are not worth a rewrite."""

UNSETTLED_MAX: Final = 1000
"""Batches that are held back in one lane above which no boot is retired."""

_LANE: Final = re.compile(
    rf"{LANES}(?P<queue>[a-z0-9][a-z0-9_-]*)\.(?P<lane>\d{{3}})(\.(?P<layout>\d+))?"
)
_PART_NAME: Final = re.compile(r"(?P<term>\d{10})-[0-9A-HJKMNP-TV-Z]{26}")


class LaneStateDamaged(InvalidRecord):
    """The stored state of a lane cannot be read: no batch can be appended to the lane."""

    def __str__(self) -> str:
        return (
            f"state of a lane is damaged: {self.reason}; stop the reconcilers and run `sluice"
            f" rebuild`, which keeps a copy, key=`{self.key}`"
        )


class PartReference(msgspec.Struct, frozen=True, array_like=True):
    """A part as the lane state names it.

    Attributes:
        name: The end of its key: the owner term that wrote it, and a ULID.
        first: The first half of its first key.
        last: The first half of its last key.
    """

    name: str
    sha256: str
    boots: int
    first: int
    last: int


class RequestRunReference(msgspec.Struct, frozen=True, array_like=True):
    """A run of requests as the lane state names it.

    Attributes:
        name: The end of its key: the owner term that wrote it, and a ULID.
        newest_s: The latest time at which a batch of them was accepted, seconds.
    """

    name: str
    sha256: str
    requests: int
    newest_s: int


class SettledLane(msgspec.Struct, frozen=True, array_like=True):
    """The settled time of a lane of an earlier layout, for the agents that were in it.

    Attributes:
        lanes: How many lanes that layout had.
    """

    lanes: int
    lane: int
    settled_s: int


class OwnerClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The process that took a lane, as the lane state names it.

    Attributes:
        url: Where its operator API is reached; empty if it has none.
        pid: Its number in its pid namespace; 0 if unknown.
        sharing: Whether it writes a member record. Of another process it is not known whether it
            still runs.
        since_unix_ns: By the store's clock.
    """

    member: str
    url: str = ""
    host: str = ""
    pid: int = 0
    sharing: bool = False
    since_unix_ns: int = 0


Run = tuple[PartReference, ...]
"""Parts that have no boot in common, in the order of their keys."""


class LaneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a lane.

    Attributes:
        nonce: Fresh with every write, so that no ETag recurs.
        producer_id: 32 hex digits: the id under which every owner of this lane appends.
        owner_term: Raised by each process that takes the lane over.
        writes: Appends of all owner terms that are in the register.
        pending: The batches of append number `writes + 1`, if its intent was stored.
        recent: The batches that were enqueued since the newest run, oldest first.
        runs: The parts with all other enqueued batches, oldest run first.
        ledger_since_unix_ns: The state contains what was enqueued since then, or longer; 0 until
            its first owner has written. A full pass that began before compared another state.
        settled_s: Every batch whose manifest was created before this time, by the store's clock in
            seconds, is enqueued, except `unsettled`. 0 if no boot was ever retired.
        unsettled: Batches that were not enqueued when the settled time was set.
        requests: The runs with the requests of combined batches that are not recent, oldest first.
        released: Whether the owner stopped in order: any process may take the lane without a wait.
        owner: The process that raised the owner term; None if it gave no name. It stays after a
            release.
        layout: The layout of lanes to which the lane belongs.
        closed_for: The number of lanes of the next layout, once no process may append to this lane
            any more; else 0.
        settled_lanes: Settled times of lanes of earlier layouts from which boots came, as far as
            they are later than `settled_s`.
    """

    schema: Literal["sluice.reconciler_lane.v6"] = "sluice.reconciler_lane.v6"
    queue: str
    lane: int
    nonce: str
    producer_id: str
    owner_term: int = 0
    writes: int = 0
    pending: tuple[IntendedBatch, ...] = ()
    recent: tuple[IntendedBatch, ...] = ()
    runs: tuple[Run, ...] = ()
    ledger_since_unix_ns: int = 0
    settled_s: int = 0
    unsettled: tuple[IntendedBatch, ...] = ()
    requests: tuple[RequestRunReference, ...] = ()
    released: bool = False
    owner: OwnerClaim | None = None
    layout: int = 0
    closed_for: int = 0
    settled_lanes: tuple[SettledLane, ...] = ()

    @property
    def has_owner(self) -> bool:
        """Whether a process owns the lane: it took and did not release it."""
        return self.owner_term > 0 and not self.released

    @property
    def of_lane(self) -> Lane:
        """The lane."""
        return Lane(queue=self.queue, lane=self.lane, layout=self.layout)

    def parts(self) -> Iterator[PartReference]:
        """Yield every part that the record names."""
        for run in self.runs:
            yield from run


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLaneState:
    """A lane's state as it was read.

    Attributes:
        written_ns: None if this process wrote it.
    """

    record: LaneRecord
    etag: ETag
    date_ns: UnixNs
    written_ns: UnixNs | None = field(default=None, compare=False)


def state_name(lane: Lane) -> str:
    """Return the name of a lane's state in keys; the first layout of lanes is not named."""
    name = f"{lane.queue}.{lane.lane:03d}"
    return f"{name}.{lane.layout}" if lane.layout else name


def lane_key(lane: Lane) -> ObjectKey:
    """Return the key of a lane's state."""
    return ObjectKey(f"{LANES}{state_name(lane)}")


def parts_prefix(lane: Lane) -> str:
    """Return the prefix of the parts of a lane's state."""
    return f"{LANE_PARTS}{state_name(lane)}/"


def part_key(lane: Lane, name: str) -> ObjectKey:
    """Return the key of a part."""
    return ObjectKey(parts_prefix(lane) + name)


def part_name(owner_term: int, ulid: str) -> str:
    """Return the name of a part that an owner in this term writes."""
    return f"{owner_term:010d}-{ulid}"


def term_of_part(name: str) -> int | None:
    """Return the owner term that wrote a part, or None for any other name."""
    matched = _PART_NAME.fullmatch(name)
    return int(matched["term"]) if matched is not None else None


def damaged_state_key(lane: Lane, sha256: Digest) -> ObjectKey:
    """Return the key of the copy of a damaged state that `sluice rebuild` replaced."""
    return ObjectKey(f"{DAMAGED_LANES}{state_name(lane)}-{sha256}")


def encode_lane(record: LaneRecord) -> bytes:
    """Return the stored bytes: canonical JSON in one zstd frame."""
    return compress_zstd(encode_record(record), level=3)


def decode_lane(key: ObjectKey, body: bytes) -> LaneRecord:
    """Decode the stored bytes of a lane's state."""
    try:
        return decode_record(key, decompress_zstd(body, STATE_BYTES_MAX), LaneRecord)
    except ZstdError as error:
        raise LaneStateDamaged(key, f"not a zstd frame: {error}") from error
    except UnsupportedRecord as error:
        raise UnsupportedVersion("lane state", error.found, error.known, key) from error
    except InvalidRecord as error:
        raise LaneStateDamaged(key, error.reason) from error


async def read_lane_state(store: ObjectStore, lane: Lane) -> StoredLaneState | None:
    """Read a lane's state without its parts; return None if the lane has none yet."""
    key = lane_key(lane)
    match await store.get(key):
        case NotFound():
            return None
        case Found(info=info, body=body):
            return StoredLaneState(
                record=decode_lane(key, body),
                etag=info.etag,
                date_ns=info.date_ns,
                written_ns=info.last_modified_ns,
            )


async def list_lane_states(store: ObjectStore) -> list[Lane]:
    """Return the lanes that have a state, of every layout, in order."""
    matches = [_LANE.fullmatch(one.key) async for page in store.list(LANES) for one in page.objects]
    return [
        Lane(queue=one["queue"], lane=int(one["lane"]), layout=int(one["layout"] or 0))
        for one in matches
        if one is not None
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPass:
    """A full pass that left no batch behind: when it began, and the queues that it compared."""

    began_ns: int
    queues: Collection[str]


def settled_time_s(record: LaneRecord, shown: ShownPass, quiet_s: int) -> int | None:
    """Return the settled time that a pass shows for a lane, or None if it shows none.

    A pass counts only if it compared the lane, and only if it began after the present state of the
    lane: a rebuild empties it, and an earlier pass compared the one before. A boot is
    kept for `quiet_s` after its last batch.
    """
    if record.queue not in shown.queues or not record.ledger_since_unix_ns:
        return None
    if shown.began_ns <= record.ledger_since_unix_ns:
        return None
    settled_s = shown.began_ns // NS_PER_S - quiet_s - CLOCK_MARGIN_S
    return settled_s if settled_s > record.settled_s else None


def is_rewrite_due(counts: BootCounts) -> bool:
    """Return True if enough boots are idle."""
    return counts.idle >= RETIRED_MIN and counts.idle * RETIRED_SHARE >= counts.total


def is_settled(listed: ListedBatch, settled_s: int, unsettled: Collection[tuple[int, int]]) -> bool:
    """Return True if a listed batch of a retired boot was enqueued.

    `unsettled` has the sequence numbers of the unsettled batches of its boot.
    """
    is_before = listed.last_modified_ns < settled_s * NS_PER_S
    return is_before and (listed.start, listed.end) not in unsettled


def restore_ranges(
    listed: Iterable[ListedBatch], settled_s: int, unsettled: Collection[tuple[int, int]]
) -> BootRanges:
    """Return what a lane was given of a retired boot, from the whole listing of its boot."""
    ranges = BootRanges()
    for one in listed:
        if is_settled(one, settled_s, unsettled):
            ranges.add(one.start, one.end)
    return ranges
