"""Reading and writing the runs of requests that a lane state names.

A run is created under a fresh name before the first lane state that names it, like a part of the
ledger. Requests that are in no run are those of recent batches; a new owner reads their manifests.
A lost or damaged run does not halt the lane: its requests are unknown, so a repetition of one of
them is enqueued whole.

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

import contextlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import structlog

from sluice_protocol.errors import InvalidRecord, StoreError, UnsupportedRecord
from sluice_protocol.identity import is_combined_life
from sluice_protocol.keys import RECONCILER, accepted_key, digest_of
from sluice_protocol.manifests import REQUEST_BYTES, AcceptedManifest, decode_accepted
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Lane, Runtime
from sluice_reconciler.lanes.enqueued import IntendedBatch
from sluice_reconciler.lanes.request_window import (
    WINDOW_REQUESTS_MAX,
    RequestRun,
    RequestWindow,
    count_merged,
    merge_runs,
    run_of,
)
from sluice_reconciler.lanes.runs import nameable
from sluice_reconciler.lanes.state import LaneRecord, RequestRunReference, part_name
from sluice_store.port import ObjectStore, read_bodies
from sluice_store.retry import WRITE_RETRY, CurrentDeletion, create_known, delete_current_version

LANE_REQUESTS: Final = f"{RECONCILER}lane-requests/"
"""Manifests of recent batches that a new owner reads concurrently."""
_HEAD: Final = struct.Struct("<4sIQ")
_MAGIC: Final = b"LMRQ"
_VERSION: Final = 1

log = structlog.get_logger()


def requests_prefix(lane: Lane) -> str:
    """Return the prefix of the runs of requests of a lane."""
    return f"{LANE_REQUESTS}{lane.queue}.{lane.lane:03d}/"


def run_key(lane: Lane, name: str) -> ObjectKey:
    """Return the key of a run of requests."""
    return ObjectKey(requests_prefix(lane) + name)


def encode_run(run: RequestRun) -> bytes:
    """Return the stored bytes of a run."""
    columns = (run.requests.astype(f"S{REQUEST_BYTES}"), run.batches, run.accepted_s)
    return _HEAD.pack(_MAGIC, _VERSION, len(run)) + b"".join(one.tobytes() for one in columns)


def decode_run(key: str, body: bytes) -> RequestRun:
    """Decode the stored bytes of a run.

    Raises:
        InvalidRecord: They are not a run, or have another version than this build's.
    """
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

    Attributes:
        runs: The runs, oldest first.
        named: The same as the lane state names them.
        stored: The requests that became part of a run.
    """

    runs: tuple[RequestRun, ...]
    named: tuple[RequestRunReference, ...]
    stored: tuple[bytes, ...]


class RequestLog:
    """Reads and writes the runs of requests of one owner, and deletes those that it replaced."""

    def __init__(self, store: ObjectStore, lane: Lane, term: int, runtime: Runtime) -> None:
        self._store = store
        self._lane = lane
        self._term = term
        self._runtime = runtime
        self._known: set[str] = set()
        self._unnamed: set[str] = set()
        self._named: tuple[RequestRunReference, ...] = ()
        self.window = RequestWindow()
        self.forgets_before_s = 0
        """Requests that were accepted before this time, in seconds, are forgotten."""

    async def load(self, record: LaneRecord, enqueued: Sequence[IntendedBatch]) -> None:
        """Read which requests the lane was given.

        Args:
            record: The lane state, of this owner.
            enqueued: The batches that were enqueued since the newest run, oldest first.

        Raises:
            StoreError: The store is unreachable or refused a request.
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
        """Write the requests that no run contains, and forget old ones.

        Raises:
            OutcomeUnknown: The retries of a write are spent.
            StoreError: The store is unreachable or refused a request.
        """
        await self._delete(self._unnamed)
        cutoff_s, unstored = self.forgets_before_s, self.window.unstored
        added = run_of(unstored)
        pairs = zip(self.window.runs, self._named, strict=True)
        kept = [(run, one) for run, one in pairs if one.newest_s >= cutoff_s]
        if len(added):
            older = len(kept) - count_merged([len(run) for run, _ in kept], len(added))
            merged = merge_runs([*(run for run, _ in kept[older:]), added]).since(cutoff_s)
            kept = kept[:older]
            if len(merged):
                kept.append((merged, await self._write(merged)))
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

    async def _write(self, run: RequestRun) -> RequestRunReference:
        body = encode_run(run)
        name = part_name(self._term, self._runtime.ids.ulid())
        self._known.add(name)
        backoff = self._runtime.backoff(WRITE_RETRY)
        await create_known(self._store, run_key(self._lane, name), body, backoff, retry_unsent=True)
        return RequestRunReference(
            name=name, sha256=digest_of(body), requests=len(run), newest_s=run.newest_s
        )

    def swapped(self, spilled: SpilledRequests) -> None:
        """Note that the current state names these runs, and that it will name no other of them."""
        named = {one.name for one in spilled.named}
        self._unnamed |= self._known - named
        self._known, self._named = named, spilled.named
        self.window.settle(spilled.runs, spilled.stored)

    async def collect(self, record: LaneRecord) -> None:
        """Delete the runs that earlier owners left and that no lane state will ever name.

        An error is left to the next owner, because no work depends on the deletion.

        Args:
            record: The state that this owner swapped in.
        """
        prefix, named = requests_prefix(self._lane), {one.name for one in record.requests}
        with contextlib.suppress(StoreError):
            async for page in self._store.list(prefix):
                listed = {one.key.removeprefix(prefix) for one in page.objects}
                await self._delete(listed - nameable(listed, named, record.owner_term))

    async def _delete(self, names: Iterable[str]) -> None:
        with contextlib.suppress(StoreError):
            for name in sorted(names):
                outcome = await delete_current_version(self._store, run_key(self._lane, name))
                if outcome is CurrentDeletion.UNVERSIONED:
                    self._unnamed.clear()
                    return  # the others cannot be deleted either
                self._unnamed.discard(name)
