"""The requests of combined batches that a lane was given lately, and the parts that repeat them.

A part is repeated if another batch that was enqueued before, or that is earlier in the same work
list, contains the same request. A batch is never a repetition of itself: enqueued a second time, it
keeps what it kept before. So a request is left out only where another entry of the lane contains
it.

    unknown --(enqueued)--> known, with its batch --(complete + window)--> unknown

No decision loses records, even if a rebuild empties the lane state and batches are enqueued in
another order. A consumer reads a lane in order. So what it has of a request begins with the batch
that kept it, and what it does not have is decided again. Source: ADR 6.

A run is created under a fresh name before the first lane state that names it, like a part of the
lane state. Requests that are in no run are those of recent batches; a new owner reads their
manifests. A lost or damaged run does not halt the lane: its requests are unknown, so a repetition
of one of them is enqueued whole.

| offset | bytes | field of a run |
|---|---|---|
| 0 | 4 | `LMRQ` |
| 4 | 4 | version: 1 |
| 8 | 8 | number of requests, n |
| 16 | 16 n | the requests, sorted |
| | 8 n | 64 bits of a hash of the batch of each |
| | 4 n | when that batch was accepted, seconds |

Numbers are little-endian. Source: ADR 6.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import structlog
from msgspec.structs import replace as copy_with

from sluice_protocol.errors import InvalidRecord, UnsupportedRecord
from sluice_protocol.identity import is_combined_life
from sluice_protocol.keys import RECONCILER, accepted_key, digest_of
from sluice_protocol.manifests import (
    REQUEST_BYTES,
    AcceptedManifest,
    RecordRange,
    RequestPart,
    decode_accepted,
    joined_ranges,
    readable_parts,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.enqueued import IntendedBatch
from sluice_reconciler.lanes.part_log import OwnedObjects
from sluice_reconciler.lanes.state import LaneRecord, RequestRunReference, state_name
from sluice_store.port import ObjectStore, read_bodies

RUN_REQUESTS_MAX: Final = 262_144
"""Requests of a run above which it is not merged again; about 7 MB."""
UNSTORED_REQUESTS_MAX: Final = 65_536
"""Requests in no run above which the next write of the lane state stores them; about 13 MB."""
WINDOW_REQUESTS_MAX: Final = 4_194_304
"""Requests that a lane remembers at most, about 120 MB; the oldest are forgotten first."""

log = structlog.get_logger()

Requests = npt.NDArray[np.bytes_]
_REQUEST: Final = np.dtype(f"S{REQUEST_BYTES}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRequest:
    """Where a request was enqueued: 64 bits of a hash of the batch that contains it.

    `accepted_s` is when a batch with this request was accepted last.
    """

    batch: int
    accepted_s: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestRun:
    """Requests of 16 bytes, sorted, and their `KnownRequest` values, as equally long columns."""

    requests: Requests
    batches: npt.NDArray[np.uint64]
    accepted_s: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def newest_s(self) -> int:
        """The latest time of acceptance; 0 if the run is empty."""
        return int(self.accepted_s.max(initial=0))

    def since(self, cutoff_s: int) -> "RequestRun":
        """Return the requests that were accepted at or after a time."""
        kept = self.accepted_s >= cutoff_s
        return self if kept.all() else _take(self, np.flatnonzero(kept))

    def find(self, requests: Requests) -> dict[bytes, KnownRequest]:
        """Return the given requests that this run contains."""
        if not len(self):
            return {}
        at = np.searchsorted(self.requests, requests)
        at[at == len(self)] = 0
        hits = np.flatnonzero(self.requests[at] == requests)
        return {
            _padded(requests[hit]): KnownRequest(
                batch=int(self.batches[at[hit]]), accepted_s=int(self.accepted_s[at[hit]])
            )
            for hit in hits
        }


def run_of(known: dict[bytes, KnownRequest]) -> RequestRun:
    """Return requests as a run."""
    ordered = sorted(known)
    return RequestRun(
        requests=_array(ordered),
        batches=np.array([known[one].batch for one in ordered], dtype=np.uint64),
        accepted_s=np.array([known[one].accepted_s for one in ordered], dtype=np.uint32),
    )


def merge_runs(runs: Sequence[RequestRun]) -> RequestRun:
    """Return one run; a request that several contain has the batch of the first, the last time."""
    joined = RequestRun(
        requests=np.concatenate([one.requests for one in runs]),
        batches=np.concatenate([one.batches for one in runs]),
        accepted_s=np.concatenate([one.accepted_s for one in runs]),
    )
    _, first, place = np.unique(joined.requests, return_index=True, return_inverse=True)
    merged = _take(joined, first)
    accepted_s = merged.accepted_s.copy()
    np.maximum.at(accepted_s, place, joined.accepted_s)
    return replace(merged, accepted_s=accepted_s)


def count_merged(sizes: Sequence[int], added: int) -> int:
    """Return how many of the newest runs are merged with a new run of `added` requests.

    `sizes` counts the requests in each run, oldest first.
    """
    total, merged = added, 0
    for size in reversed(sizes):
        if size >= 2 * total or size + total > RUN_REQUESTS_MAX:
            break
        total, merged = total + size, merged + 1
    return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBatches:
    """The decision on the batches of one work list.

    Attributes:
        batches: Copies of their manifests for the work list, in the same order.
        found: The requests that are new, or accepted later than known. A repeated one keeps the
            batch that contains it, and is remembered longer.
    """

    batches: tuple[AcceptedManifest, ...]
    found: dict[bytes, KnownRequest]
    repeated: int


class RequestWindow:
    """The requests of combined batches that one lane was given.

    Stored runs are the oldest first.
    """

    def __init__(self, runs: Iterable[RequestRun] = ()) -> None:
        self.runs = list(runs)
        self._unstored: dict[bytes, KnownRequest] = {}

    def __len__(self) -> int:
        return len(self._unstored) + sum(map(len, self.runs))

    @property
    def must_spill(self) -> bool:
        """Whether so many requests are in no run that they should be stored."""
        return len(self._unstored) > UNSTORED_REQUESTS_MAX

    @property
    def unstored(self) -> dict[bytes, KnownRequest]:
        """The requests that no run contains."""
        return dict(self._unstored)

    def judge(self, batches: Iterable[AcceptedManifest]) -> JudgedBatches:
        """Decide which parts of the next work list's batches, in its order, repeat others.

        Nothing is changed.
        """
        copies: list[AcceptedManifest] = []
        found: dict[bytes, KnownRequest] = {}
        count = 0
        for one in batches:
            parts = readable_parts(one, _log_unreadable)
            repeated = self._repeated(one, parts, found) if parts else ()
            count += len(repeated)
            ranges = joined_ranges(repeated)
            copies.append(copy_with(one, repeated=ranges) if ranges else one)
        return JudgedBatches(batches=tuple(copies), found=found, repeated=count)

    def _repeated(
        self,
        one: AcceptedManifest,
        parts: Sequence[RequestPart],
        found: dict[bytes, KnownRequest],
    ) -> list[RecordRange]:
        """Return the repeated records of a batch; add its other requests to `found`."""
        me = KnownRequest(batch=batch_hash(one), accepted_s=one.accepted_at_unix_ns // NS_PER_S)
        known = {**found, **self.find(part.request for part in parts)}
        repeated: list[RecordRange] = []
        here: set[bytes] = set()
        for part in parts:
            other = known.get(part.request, me)
            if part.request in here or other.batch != me.batch:
                repeated.append(part.records)
            latest_s = max(me.accepted_s, other.accepted_s)
            latest = KnownRequest(batch=other.batch, accepted_s=latest_s)
            if known.get(part.request) != latest:
                found[part.request] = latest
            here.add(part.request)
        return repeated

    def find(self, requests: Iterable[bytes]) -> dict[bytes, KnownRequest]:
        """Return the given requests that the lane knows."""
        wanted = list(requests)
        array = _array(wanted)
        known = {one: self._unstored[one] for one in wanted if one in self._unstored}
        for run in reversed(self.runs):
            known |= run.find(array)  # the oldest decides
        return known

    def add(self, judged: JudgedBatches) -> None:
        """Remember the requests of batches that were enqueued."""
        self._unstored.update(judged.found)

    def settle(self, runs: Iterable[RequestRun], stored: Iterable[bytes]) -> None:
        """Use these runs, which the lane state names now and which contain stored requests."""
        self.runs = list(runs)
        for one in stored:
            self._unstored.pop(one, None)


def batch_hash(manifest: AcceptedManifest) -> int:
    """Return 64 bits of a hash of a batch's identity."""
    key = accepted_key(manifest.identity)
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


def _log_unreadable(error: InvalidRecord) -> None:
    log.warning("request_parts_unreadable", key=error.key, reason=error.reason)


def _array(requests: Sequence[bytes]) -> Requests:
    return np.frombuffer(b"".join(requests), dtype=_REQUEST)


def _padded(request: bytes) -> bytes:
    """Return all 16 bytes: numpy omits zeros at the end."""
    return bytes(request).ljust(REQUEST_BYTES, b"\0")


def _take(run: RequestRun, at: npt.NDArray[np.intp]) -> RequestRun:
    return RequestRun(
        requests=run.requests[at], batches=run.batches[at], accepted_s=run.accepted_s[at]
    )


LANE_REQUESTS: Final = f"{RECONCILER}lane-requests/"
"""Manifests of recent batches that a new owner reads concurrently."""
_HEAD: Final = struct.Struct("<4sIQ")
_MAGIC: Final = b"LMRQ"
_VERSION: Final = 1


def requests_prefix(lane: Lane) -> str:
    """Return the prefix of the runs of requests of a lane."""
    return f"{LANE_REQUESTS}{state_name(lane)}/"


def run_key(lane: Lane, name: str) -> ObjectKey:
    """Return the key of a run of requests."""
    return ObjectKey(requests_prefix(lane) + name)


def encode_run(run: RequestRun) -> bytes:
    """Return the stored bytes of a run."""
    columns = (run.requests.astype(f"S{REQUEST_BYTES}"), run.batches, run.accepted_s)
    return _HEAD.pack(_MAGIC, _VERSION, len(run)) + b"".join(one.tobytes() for one in columns)


def decode_run(key: str, body: bytes) -> RequestRun:
    """Decode the stored bytes of a run."""
    if len(body) < _HEAD.size:
        raise InvalidRecord(key, "run of requests is shorter than its head")
    magic, version, count = _HEAD.unpack_from(body)
    if magic != _MAGIC:
        raise InvalidRecord(key, "not a run of requests")
    if version != _VERSION:
        raise UnsupportedRecord("run of requests", version, _VERSION, key)
    ends = [_HEAD.size, REQUEST_BYTES * count, 8 * count, 4 * count]
    if len(body) != sum(ends):
        raise InvalidRecord(key, "run of requests has another length than its head states")
    at = np.cumsum(ends)
    return RequestRun(
        requests=np.frombuffer(body[at[0] : at[1]], dtype=f"S{REQUEST_BYTES}"),
        batches=np.frombuffer(body[at[1] : at[2]], dtype="<u8"),
        accepted_s=np.frombuffer(body[at[2] : at[3]], dtype="<u4"),
    )


async def _read_run(
    store: ObjectStore, lane: Lane, reference: RequestRunReference
) -> RequestRun | None:
    key = run_key(lane, reference.name)
    read, reason = await store.get(key), "it does not exist"
    if isinstance(read, Found):
        reason = "its bytes are not those that the lane state names"
        if digest_of(read.body) == reference.sha256:
            try:
                return decode_run(key, read.body)
            except InvalidRecord as error:
                reason = error.reason
    log.warning("request_run_lost", key=key, reason=reason, requests=reference.requests)
    return None


async def _read_batches(
    store: ObjectStore, batches: Sequence[IntendedBatch]
) -> list[AcceptedManifest]:
    """Return the manifests of batches; those that are missing or unreadable are left out."""
    keys = [accepted_key(one.identity) for one in batches]
    bodies = await read_bodies(store, keys)
    found: list[AcceptedManifest] = []
    for key, body in zip(keys, bodies, strict=True):
        try:
            if body is not None:
                found.append(decode_accepted(key, body))
        except InvalidRecord as error:
            log.warning("request_parts_unreadable", key=key, reason=error.reason)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SpilledRequests:
    """The runs of the next lane state, which all exist.

    Both are the oldest first, `named` as the lane state has them; `stored` are the requests that
    became part of a run.
    """

    runs: tuple[RequestRun, ...]
    named: tuple[RequestRunReference, ...]
    stored: tuple[bytes, ...]


async def join_requests(
    store: ObjectStore, records: Sequence[LaneRecord], lane: Lane, runtime: Runtime
) -> tuple[RequestRunReference, ...]:
    """Write the requests that several closed lanes were given as one run of a new lane.

    A new lane gets all of them: they do not name their agents, and they are forgotten soon.
    """
    read = [
        await _read_run(store, record.of_lane, one) for record in records for one in record.requests
    ]
    runs = [run for run in read if run is not None]
    if not runs:
        return ()
    return (await RequestLog(store, lane, 0, runtime).write(merge_runs(runs)),)


class RequestLog:
    """Reads and writes the runs of requests of one owner, and deletes those that it replaced."""

    def __init__(self, store: ObjectStore, lane: Lane, term: int, runtime: Runtime) -> None:
        self._store = store
        self._lane = lane
        self._objects = OwnedObjects(store, requests_prefix(lane), term, runtime)
        self._named: tuple[RequestRunReference, ...] = ()
        self.window = RequestWindow()
        self.forgets_before_s = 0
        """Requests that were accepted before this time, in seconds, are forgotten."""

    async def load(self, record: LaneRecord, enqueued: Sequence[IntendedBatch]) -> None:
        """Read which requests the lane was given, by the lane state of this owner.

        `enqueued` are the batches since the newest run, oldest first.
        """
        runs = [(one, await _read_run(self._store, self._lane, one)) for one in record.requests]
        kept = [(one, run) for one, run in runs if run is not None]
        self._named = tuple(one for one, _ in kept)
        self.window = RequestWindow([run for _, run in kept])
        combined = [one for one in enqueued if is_combined_life(one.agent_id, one.boot_id)]
        self.window.add(self.window.judge(await _read_batches(self._store, combined)))

    def unchanged(self) -> SpilledRequests:
        """Return the runs that the lane state names."""
        return SpilledRequests(runs=tuple(self.window.runs), named=self._named, stored=())

    async def spill(self) -> SpilledRequests:
        """Write the requests that no run contains, and forget old ones."""
        await self._objects.delete_unnamed()
        cutoff_s, unstored = self.forgets_before_s, self.window.unstored
        added = run_of(unstored)
        pairs = zip(self.window.runs, self._named, strict=True)
        kept = [(run, one) for run, one in pairs if one.newest_s >= cutoff_s]
        if len(added):
            older = len(kept) - count_merged([len(run) for run, _ in kept], len(added))
            merged = merge_runs([*(run for run, _ in kept[older:]), added]).since(cutoff_s)
            kept = kept[:older]
            if len(merged):
                kept.append((merged, await self.write(merged)))
        while sum(len(run) for run, _ in kept) > WINDOW_REQUESTS_MAX:
            run, _ = kept.pop(0)
            lane = self._lane
            log.warning(
                "requests_forgotten_early", queue=lane.queue, lane=lane.lane, requests=len(run)
            )
        return SpilledRequests(
            runs=tuple(run for run, _ in kept),
            named=tuple(one for _, one in kept),
            stored=tuple(unstored),
        )

    async def write(self, run: RequestRun) -> RequestRunReference:
        """Store a run that no lane state names yet."""
        body = encode_run(run)
        name = await self._objects.create(body)
        return RequestRunReference(
            name=name, sha256=digest_of(body), requests=len(run), newest_s=run.newest_s
        )

    def swapped(self, spilled: SpilledRequests) -> None:
        """Note that the current state names these runs, and that it will name no other of them."""
        self._objects.swapped({one.name for one in spilled.named})
        self._named = spilled.named
        self.window.settle(spilled.runs, spilled.stored)

    async def collect(self, record: LaneRecord) -> None:
        """Delete the runs that earlier owners left and no lane state will ever name."""
        await self._objects.collect({one.name for one in record.requests})
