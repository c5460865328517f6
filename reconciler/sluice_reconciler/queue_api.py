"""Queues over HTTP: claim entries under a lease, commit or return them, and read their data."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

import msgspec
import structlog
from aiohttp import web

from sluice_protocol.columns import slice_columns
from sluice_protocol.errors import (
    BadUsage,
    ErrorCode,
    InvalidFrame,
    SluiceError,
    StoreError,
    TooLarge,
    UnsupportedVersion,
)
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_reconciler.http_queue import CLAIMS_MAX, ClaimedEntry, HttpQueue, LeaseLost, ServedLane
from sluice_store.port import ObjectStore
from sluice_store.stored_expiry import TombstoneReader
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import decode_json_body, json_response
from sluice_web.parameters import ChoiceParameter, IntegerParameter, TextParameter

DataForm = Literal["records", "frame"]
CHUNK_BYTES: Final = 64 << 10


class BatchUnreadable(SluiceError):
    """The blob of a claimed batch is missing or is not what its manifest names."""

    code = ErrorCode.CORRUPT_OBJECT

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"cannot read a batch: {self.detail}; the entry was returned to the queue"


@dataclass(slots=True, kw_only=True)
class DataCount:
    """How much of a response was written completely."""

    entries: int = 0
    batches: int = 0
    records: int = 0


class EntryHead(msgspec.Struct, frozen=True, kw_only=True):
    """The line of an entry: its claim, without its batches, which follow."""

    lease_id: str
    lane: int
    sequence: int
    attempts: int
    lease_s: float
    batches: int


async def entry_chunks(
    store: ObjectStore, entry: ClaimedEntry, form: DataForm, count: DataCount
) -> AsyncIterator[bytes]:
    """Yield the lines of an entry in chunks, and count what they contain.

    A batch that has expired is its manifest with `expired`, without records: an entry contains one
    only after `sluice rebuild`. If a blob is missing or wrong, raise `BatchUnreadable`: what was
    yielded is incomplete.
    """
    head = EntryHead(
        lease_id=entry.lease_id,
        lane=entry.lane,
        sequence=entry.sequence,
        attempts=entry.attempts,
        lease_s=entry.lease_s,
        batches=len(entry.batches),
    )
    yield _line({"entry": head})
    tombstones = TombstoneReader(store)
    for manifest in entry.batches:
        found = await store.get(ObjectKey(manifest.raw_blob_key))
        body = found.body if isinstance(found, Found) else None
        if body is None and await tombstones.find(manifest) is not None:
            yield _line({"batch": manifest, "expired": True})
            count.batches += 1
            continue
        frame = await asyncio.to_thread(_decode, manifest, body)
        if form == "frame":
            yield await asyncio.to_thread(_line, {"batch": manifest, "frame": body})
        else:
            yield _line({"batch": manifest})
            for chunk in _record_chunks(frame, manifest):
                yield chunk
        count.batches += 1
        count.records += sum(end - start for start, end in manifest.kept)
    count.entries += 1


def summary_line(count: DataCount) -> bytes:
    """Return the last line of a complete response."""
    return _line({"summary": count})


def error_line(error: SluiceError) -> bytes:
    """Return the last line of a response that could not be completed."""
    return _line({"error": {"code": error.code, "detail": str(error)}})


def _decode(manifest: AcceptedManifest, body: bytes | None) -> Frame:
    """Return the frame of a blob that is exactly what its manifest names."""
    if body is None or digest_of(body) != manifest.frame_sha256:
        reason = "missing" if body is None else "not the accepted bytes"
        raise BatchUnreadable(f"its blob is {reason}, key=`{manifest.raw_blob_key}`")
    try:
        return decode_frame(body)
    except (InvalidFrame, UnsupportedVersion, TooLarge) as error:
        raise BatchUnreadable(f"{error}, key=`{manifest.raw_blob_key}`") from error


def _record_chunks(frame: Frame, manifest: AcceptedManifest) -> Iterator[bytes]:
    chunk, columns = bytearray(), [frame.columns]
    if manifest.repeated:
        columns = [slice_columns(frame.columns, *kept) for kept in manifest.kept]
    for record in chain.from_iterable(map(ndjson_from_columns, columns)):
        chunk += b'{"record":' + record.encode() + b"}\n"
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


ANY_LANE: Final = 9999
"""No lane has this number."""
NDJSON: Final = "application/x-ndjson"
_ENTRIES: Final = (
    "The entries; with `data` other than `none` NDJSON, whose last line is a summary or an error"
)
_FENCED: Final = {
    "307": "Another reconciler owns the lane: repeat the request there",
    "409": "Another reconciler opened the lane: the entries will be delivered again",
}
QUEUE: Final = TextParameter(name="queue")
_CONSUMER: Final = TextParameter(name="consumer")
_COUNT: Final = IntegerParameter(name="max", default=1, maximum=CLAIMS_MAX)
_LANE: Final = IntegerParameter(name="lane", default=ANY_LANE, minimum=0, maximum=ANY_LANE)
_DATA: Final = ChoiceParameter(name="data", choices=("none", "records", "frame"), default="none")

log = structlog.get_logger()


class LeaseIds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of commit, failed and heartbeat; `queue` is optional where there is one queue."""

    lease_ids: list[str]
    queue: str | None = None


class ClaimedEntries(msgspec.Struct, frozen=True):
    """Entries that were claimed."""

    queue: str
    entries: list[ClaimedEntry]


class CommittedCount(msgspec.Struct, frozen=True):
    """How many entries were committed."""

    committed: int


class ReturnedCount(msgspec.Struct, frozen=True):
    """How many entries were returned to the queue."""

    returned: int


class ExtendedCount(msgspec.Struct, frozen=True):
    """How many leases were extended."""

    extended: int


class ServedLanes(msgspec.Struct, frozen=True):
    """The lanes of queues over HTTP that this process opened; empty without such queues."""

    lanes: list[ServedLane]


class QueueApi:
    """The endpoints over the queues that one reconciler serves."""

    def __init__(self, queues: Mapping[str, HttpQueue], store: ObjectStore) -> None:
        self._queues = queues
        self._store = store

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/v1/queue/next",
                handler=self._next,
                summary="Claim entries under a lease",
                parameters=(QUEUE, _COUNT, _CONSUMER, _LANE, _DATA),
                result=ClaimedEntries,
                result_summary=_ENTRIES,
            ),
            Endpoint(
                method="POST",
                path="/v1/queue/commit",
                handler=self._commit,
                summary="Commit claimed entries",
                body=LeaseIds,
                result=CommittedCount,
                problems=_FENCED,
            ),
            Endpoint(
                method="GET",
                path="/v1/queue/consumers",
                handler=self._consumers,
                summary="Return the lanes that this process serves, and who holds leases",
                result=ServedLanes,
            ),
            Endpoint(
                method="POST",
                path="/v1/queue/failed",
                handler=self._failed,
                summary="Return claimed entries to the queue",
                body=LeaseIds,
                result=ReturnedCount,
            ),
            Endpoint(
                method="POST",
                path="/v1/queue/heartbeat",
                handler=self._heartbeat,
                summary="Extend the leases of claimed entries",
                body=LeaseIds,
                result=ExtendedCount,
            ),
        )

    def _queue(self, name: str | None) -> HttpQueue:
        """Return the queue of a request, which may leave the name out where there is one queue."""
        if name is None and len(self._queues) == 1:
            return next(iter(self._queues.values()))
        if name is None or name not in self._queues:
            known = ", ".join(self._queues) or "none; set http_queues"
            raise BadUsage(f"no such queue over HTTP, queue=`{name}`, known=`{known}`")
        return self._queues[name]

    async def _next(self, request: web.Request) -> web.StreamResponse:
        count, lane = _COUNT.read(request.query), _LANE.read(request.query)
        form = _DATA.read(request.query)
        queue = self._queue(QUEUE.read(request.query))
        wanted = None if lane == ANY_LANE else lane
        elsewhere = queue.redirect_url(() if wanted is None else (wanted,))
        if elsewhere:
            return _redirect(elsewhere, request)
        claims = await queue.claim(count, _CONSUMER.read(request.query) or "", wanted)
        match form:
            case "records" | "frame":
                return await self._send_data(request, queue, claims, form)
            case _:
                return json_response(ClaimedEntries(queue.queue, claims))

    async def _send_data(
        self, request: web.Request, queue: HttpQueue, claims: list[ClaimedEntry], form: DataForm
    ) -> web.StreamResponse:
        """Send the data of claimed entries; return those that cannot be read to the queue."""
        response = web.StreamResponse(headers={"Content-Type": NDJSON})
        await response.prepare(request)
        count = DataCount()
        try:
            for entry in claims:
                async for chunk in entry_chunks(self._store, entry, form, count):
                    await response.write(chunk)
            await response.write(summary_line(count))
        except (BatchUnreadable, StoreError) as error:
            unsent = [entry.lease_id for entry in claims[count.entries :]]
            with suppress(LeaseLost):
                await queue.fail(unsent)
            log.warning("queue_data_incomplete", queue=queue.queue, reason=str(error))
            await response.write(error_line(error))
        await response.write_eof()
        return response

    async def _leases(self, request: web.Request) -> tuple[HttpQueue, list[str], str]:
        """Return the queue, the leases, and where the request belongs if not here."""
        body = decode_json_body(await request.read(), LeaseIds)
        queue = self._queue(body.queue)
        return queue, body.lease_ids, queue.redirect_url(queue.lanes_of(body.lease_ids))

    async def _consumers(self, request: web.Request) -> web.Response:
        del request
        lanes = [one for queue in self._queues.values() for one in queue.served_lanes()]
        return json_response(ServedLanes(lanes))

    async def _commit(self, request: web.Request) -> web.Response:
        queue, lease_ids, elsewhere = await self._leases(request)
        if elsewhere:
            return _redirect(elsewhere, request)
        return json_response(CommittedCount(await queue.commit(lease_ids)))

    async def _failed(self, request: web.Request) -> web.Response:
        queue, lease_ids, elsewhere = await self._leases(request)
        if elsewhere:
            return _redirect(elsewhere, request)
        await queue.fail(lease_ids)
        return json_response(ReturnedCount(len(lease_ids)))

    async def _heartbeat(self, request: web.Request) -> web.Response:
        queue, lease_ids, elsewhere = await self._leases(request)
        if elsewhere:
            return _redirect(elsewhere, request)
        await queue.extend(lease_ids)
        return json_response(ExtendedCount(len(lease_ids)))


def _redirect(owner_url: str, request: web.Request) -> web.Response:
    """Return a 307 to the owner of a lane; method and body stay the same (RFC 9110, 15.4.8)."""
    return web.Response(status=307, headers={"Location": owner_url.rstrip("/") + request.path_qs})
