"""Reads the blobs of newly accepted batches for the live state, beside the reconciler's work.

One at a time, and only what waits: when more come than it can read, the oldest are passed over and
the live state says so. Nothing waits for it. Source: ADR 0048.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec
import structlog

from sluice_protocol.columns import (
    AttributeColumns,
    Columns,
    EntryColumns,
    LogColumns,
    MetricColumns,
    TextColumn,
)
from sluice_protocol.errors import InvalidFrame, StoreError, TooLarge, UnsupportedVersion
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_reconciler.live_window import LINE_OVERHEAD_BYTES, LiveWindow
from sluice_store.port import ObjectStore

log = structlog.get_logger()

WAITING_MAX: Final = 1000
"""Batches that wait to be read; about 1 KiB each."""


class LiveReader:
    """Feeds a live state."""

    def __init__(self, store: ObjectStore, live: LiveWindow) -> None:
        """Binds the reader; nothing is read yet."""
        self._store = store
        self._live = live
        self._waiting: deque[AcceptedManifest] = deque()
        self._work = asyncio.Event()
        self._grew = asyncio.Condition()

    def saw(self, batches: Sequence[AcceptedManifest], now_ns: int) -> None:
        """Takes note of batches whose blob was proved; only those of the window are read."""
        self._live.watch(now_ns)
        if not self._live.on:
            return
        young = [one for one in batches if one.accepted_at_ns > now_ns - self._live.window_ns]
        self._waiting.extend(sorted(young, key=lambda one: one.accepted_at_unix_ns))
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self._live.pass_over()
        if young:
            self._work.set()

    async def run(self) -> None:
        """Reads what waits, for ever."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._waiting:
                await self._read(self._waiting.popleft())

    async def _read(self, manifest: AcceptedManifest) -> None:
        try:
            found = await self._store.get(ObjectKey(manifest.raw_blob_key))
            if not isinstance(found, Found):
                self._live.pass_over()
                return
            lines = await asyncio.to_thread(
                newest_lines, manifest, found.body, self._live.agent_bytes_max
            )
        except (StoreError, InvalidFrame, UnsupportedVersion, TooLarge) as error:
            log.warning("batch not shown live", key=manifest.raw_blob_key, reason=str(error))
            self._live.pass_over()
            return
        self._live.add(manifest.agent_id, lines, cut=manifest.record_count - len(lines))
        async with self._grew:
            self._grew.notify_all()

    async def wait(self, place: int, seconds: float) -> None:
        """Waits until the live state goes beyond a place, so many seconds at most."""
        try:
            async with asyncio.timeout(seconds), self._grew:
                await self._grew.wait_for(lambda: self._live.place > place)
        except TimeoutError:
            return


def newest_lines(manifest: AcceptedManifest, blob: bytes, bytes_max: int) -> list[bytes]:
    """Gives the newest records of a frame as lines of JSON, so many bytes of them at most.

    A line is that of `docs/protocol.md`, NDJSON, with agent_id, boot_id, seq, kind,
    accepted_at_unix_ns and the frame's resource beside it.

    Raises:
        InvalidFrame: The blob is no frame.
        UnsupportedVersion: It is one of another version.
        TooLarge: It is over the limits.
    """
    frame = decode_frame(blob)
    count = len(frame.columns)
    # JSON is hardly ever smaller than the columns: more of them could not be kept.
    few = min(count, 1 + count * bytes_max // max(1, frame.payload_raw_bytes))
    start = count - few
    lines = [
        _line(manifest, frame, start + number, text)
        for number, text in enumerate(ndjson_from_columns(_from(frame.columns, start)))
    ]
    room, first = bytes_max, len(lines)
    while first > 0 and room >= len(lines[first - 1]) + LINE_OVERHEAD_BYTES:
        first -= 1
        room -= len(lines[first]) + LINE_OVERHEAD_BYTES
    return lines[first:]


def _line(manifest: AcceptedManifest, frame: Frame, number: int, text: str) -> bytes:
    who = {
        "agent_id": manifest.agent_id,
        "boot_id": manifest.boot_id,
        "seq": manifest.seq_start + number,
        "kind": manifest.kind,
        "accepted_at_unix_ns": manifest.accepted_at_unix_ns,
    }
    if frame.envelope.resource:
        who["resource"] = dict(frame.envelope.resource)
    return msgspec.json.encode(who)[:-1] + b"," + text.encode()[1:]


def _from(columns: Columns, start: int) -> Columns:
    """Gives the columns from a record on."""
    match columns:
        case LogColumns(severity=severity):
            return replace(
                columns,
                ts=columns.ts[start:],
                body=_text(columns.body, start),
                severity=None if severity is None else severity[start:],
                attributes=_attributes(columns.attributes, start),
            )
        case MetricColumns():
            return replace(
                columns,
                ts=columns.ts[start:],
                name=columns.name[start:],
                value=columns.value[start:],
                type=columns.type[start:],
                attributes=_attributes(columns.attributes, start),
            )
        case EntryColumns(ts=ts):
            return replace(
                columns,
                key=_text(columns.key, start),
                value=_text(columns.value, start),
                ts=None if ts is None else ts[start:],
            )


def _text(column: TextColumn, start: int) -> TextColumn:
    return replace(column, offsets=column.offsets[start:])


def _attributes(columns: AttributeColumns | None, start: int) -> AttributeColumns | None:
    if columns is None:
        return None
    first = int(columns.offsets[start])
    return replace(
        columns,
        offsets=columns.offsets[start:] - first,
        keys=columns.keys[first:],
        values=_text(columns.values, first),
    )
