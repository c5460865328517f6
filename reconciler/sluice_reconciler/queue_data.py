"""The data of claimed entries as NDJSON, so that a consumer needs no access to the store.

Lines, in this order: for each entry `{"entry": …}`; for each of its batches `{"batch": …}` with its
manifest. With `data=frame` that line has the member `frame`, the bytes in base64; the manifest's
`repeated` names the records to leave out. With `data=records` one `{"record": …}` follows for each
other record, in the format of `sluice frame inspect --records`. The last line is `{"summary": …}`.
A stream without it is incomplete: an `{"error": …}` line states why, or the connection was lost.
One batch is in memory at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

import msgspec

from sluice_protocol.column_slices import slice_columns
from sluice_protocol.errors import (
    ErrorCode,
    InvalidFrame,
    SluiceError,
    TooLarge,
    UnsupportedVersion,
)
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_reconciler.http_queue import ClaimedEntry
from sluice_store.port import ObjectStore

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

    Raises:
        BatchUnreadable: A blob is missing or wrong; what was yielded is incomplete.
        StoreError: The store is unreachable or refused the request.
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
    for manifest in entry.batches:
        found = await store.get(ObjectKey(manifest.raw_blob_key))
        body = found.body if isinstance(found, Found) else None
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
